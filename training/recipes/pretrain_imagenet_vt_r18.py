"""VT-ResNet-18 on ImageNet-1k from scratch, with the recipe of the paper's ablations.

Paper: Wu et al., "Visual Transformers", arXiv 2006.03677, Tables 2 to 7: SGD with momentum for 90 epochs, a tenth of
the learning rate every 30.
Command: python -m training train pretrain_imagenet_vt_r18
Hardware: about 1 exaFLOP (6 x MACs x images x epochs), an estimate of 2.5 hours of one A100.
Expected: 72.0 % top-1, the paper's (Tables 5 and 6, 16 tokens).
Measured: nothing yet but that it runs.

The paper's weight decay, 4e-5, is added to the gradients, so that momentum 0.9 makes ten times as much of it; here it
is not, and is ten times as large. "Standard augmentation" is read as crops of 8 to 100 % of the area, and mirroring. By
their counts the models of those tables carry no tokens over from module to module; that of Table 8, which this is,
does: model.function=VTResNet model.arguments.split_tokens=false gives the other. The last 1 % of the training images
are held out for validation.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="pretrain_imagenet_vt_r18",
    model=Model(function="VTResNet18", resize=256),
    data=Data(dataset="imagenet2012", validation_fraction=0.01, cache=False),
    augment=Augment(crop="inception", crop_area=(0.08, 1.0), flip=True),
    optimizer=Optimizer(kind="sgd", learning_rate=0.1, momentum=0.9, weight_decay=4e-4, clip_norm=None),
    schedule=Schedule(decay="exponential", warmup="0%", rate=0.1, every="30 epochs"),
    fit=Fit(epochs=90, batch_size=256),
)
