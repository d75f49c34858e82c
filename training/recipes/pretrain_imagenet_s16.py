"""ViT-S/16 on ImageNet-1k in 90 epochs: the cheapest good model from scratch.

Paper: Beyer et al., "Better plain ViT baselines for ImageNet-1k", arXiv 2205.01580; configs/vit_s16_i1k.py of
google-research/big_vision.
Command: python -m training train pretrain_imagenet_s16
Hardware: 6 to 7 hours on the authors' TPU v3-8; about 3 exaFLOPs (6 x MACs x images x epochs).
Expected: 76.5 % top-1, reported by the authors. Their longer run has fit.epochs=300.
Measured: nothing yet. Tests check only that the recipe runs.

This package multiplies the weight decay by the learning rate, but big_vision does not. The weight decay of this recipe
is therefore big_vision's, 1e-4, divided by the learning rate: 1e-4 / 1e-3 = 0.1. big_vision stores Adam's momentum in
bfloat16. This package stores it in float32.
"""

from keras_vit.architectures.vision_transformer import VARIANTS
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="pretrain_imagenet_s16",
    model=Model(
        config=VARIANTS["S/16"].replace(pooling="avg", position_embedding="sincos_2d", representation_dim=384),
        resize=256,
    ),
    data=Data(dataset="imagenet2012", validation_fraction=0.01, cache=False),
    augment=Augment(crop="inception", flip=True, randaugment_ops=2, randaugment_magnitude=10, mixup=0.2),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.1),
    schedule=Schedule(decay="cosine", warmup="10000 steps"),
    fit=Fit(epochs=90, batch_size=1024),
)
