"""VT-ResNet-18 on ImageNet-1k from scratch with the paper's advanced recipe: long, regularised, with a teacher.

Paper: Wu et al., "Visual Transformers", arXiv 2006.03677, section 5.2 and Table 8.
Command: python -m training train pretrain_imagenet_vt_r18_advanced
Hardware: about 5 exaFLOPs (6 x MACs x images x epochs), and 18 for the teacher: an estimated 50 hours on one A100.
Expected: 76.8 % top-1 (paper, Table 8); 79.9, 80.6 and 82.3 % with 34, 50 and 101 layers.
Measured: nothing yet. Tests check only that the recipe runs.

The paper's teacher, FBNetV3-G, is not available in this package. An AugReg B/16 with 84.53 % top-1 replaces it;
distillation.teacher=PATH sets another teacher for the same classes. The paper does not give the label smoothing, nor
RMSProp's momenta, epsilon and weight decay. These values are from EfficientNet's code (arXiv 1905.11946), which uses
RMSProp with similar learning rates, but adds the weight decay to the gradients. The drop path rate increases from 0 in
the first residual unit to 0.1 in the last. Batch norms use the images of all devices, as in the paper. The moving
average covers only the trained weights, not the statistics of batch norms.
"""

from training.recipe.config import Augment, Data, Distillation, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="pretrain_imagenet_vt_r18_advanced",
    model=Model(
        function="VTResNet", arguments={"size": "VT-R18", "drop_path_rate": 0.1, "dropout_rate": 0.2}, resize=256
    ),
    data=Data(dataset="imagenet2012", validation_fraction=0.01, cache=False),
    augment=Augment(crop="inception", crop_area=(0.08, 1.0), flip=True, autoaugment=True),
    optimizer=Optimizer(
        kind="rmsprop",
        learning_rate=0.16,
        momentum=0.9,
        square_momentum=0.9,
        epsilon=1e-3,
        weight_decay=1e-5,
        clip_norm=None,
        ema=0.99985,
    ),
    schedule=Schedule(decay="exponential", warmup="5 epochs", start=0.01, rate=0.9875, every="1 epoch"),
    fit=Fit(epochs=400, batch_size=2048, label_smoothing=0.1),
    distillation=Distillation(teacher="B/16@augreg-i21k-i1k-224", weight=0.8),
)
