"""CIFAR-10 from scratch with a plain Vision Transformer: the recipe of studies, a few minutes on a CPU core.

Paper: none; the data are from Krizhevsky, 2009 (60,000 colour photographs of 32 x 32 pixels).
Command: python -m training train cifar10_study (the studies change this recipe: docs/studies.md)
Hardware: one CPU core.
Expected: no published number. The studies compare models with each other.
Measured: see the pages of the studies.

As in "An Image is Worth 16x16 Words", the patches are embedded linearly, a class token is classified, and attentions
are initialised at random. Images are only flipped and shifted. There is no convolutional stem, no mimetic attention and
no Mixup, so a study shows the effect of what it changes.
"""

from keras_vit.architectures.vision_transformer import ViTConfig
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="cifar10_study",
    model=Model(
        config=ViTConfig(patch_size=4, hidden_dim=96, num_layers=4, num_heads=3, mlp_dim=192),
        input_shape=(32, 32, 3),
    ),
    data=Data(dataset="cifar10"),
    augment=Augment(flip=True, translation=0.125),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.05),
    schedule=Schedule(warmup="5%"),
    fit=Fit(steps=2_000, batch_size=128, report_every="10%", final_weights="best"),
)
