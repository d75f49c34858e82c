"""VT-ResNet-18 on ImageNet-1k from scratch, with the recipe of the paper's ablations.

Paper: Wu et al., "Visual Transformers", arXiv 2006.03677, Tables 2 to 7: SGD with momentum for 90 epochs; the learning
rate is divided by 10 every 30 epochs.
Command: python -m training train pretrain_imagenet_vt_r18
Hardware: about 1 exaFLOP (6 x MACs x images x epochs), an estimated 2.5 hours on one A100.
Expected: 72.0 % top-1 (paper, Tables 5 and 6, 16 tokens).
Measured: nothing yet. Tests check only that the recipe runs.

The paper adds the weight decay, 4e-5, to the gradients, so a momentum of 0.9 multiplies its effect by ten. This package
does not add it to the gradients, so the recipe's weight decay is ten times as large. This recipe assumes that "standard
augmentation" means crops of 8 to 100 % of the area, and mirroring. It trains the model of Table 8, which passes tokens
from one module to the next. The paper's MACs show that the models of Tables 2 to 7 do not pass tokens. To train such a
model, set model.function=VTResNet model.arguments.split_tokens=false. The last 1 % of the training images is held out
for validation.
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
