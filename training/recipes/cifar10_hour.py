"""CIFAR-10 from scratch in an hour on two CPU cores.

Paper: none; the data are from Krizhevsky, 2009 (60,000 colour photographs of 32 x 32 pixels).
Command: python -m training train cifar10_hour
Hardware: two CPU cores, at most an hour.
Expected: 84 % test accuracy.
Measured: 84.45, 84.19 and 84.38 % with seeds 0, 1 and 2, in at most 45 minutes each (2026-11-27, two cores of an Intel
Xeon of family 6, model 207, TensorFlow 2.21, Keras 3.15; make bench-cifar10 ARGS="hour --seeds 0 1 2").
"""

from keras_vit.architectures.stem import ConvStemConfig
from keras_vit.architectures.vision_transformer import ViTConfig
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="cifar10_hour",
    model=Model(
        config=ViTConfig(
            patch_size=2,
            hidden_dim=128,
            num_layers=6,
            num_heads=2,
            mlp_dim=256,
            stem=ConvStemConfig((64, 128)),
            pooling="avg",
        ),
        input_shape=(32, 32, 3),
        attention_initialization="mimetic",
    ),
    data=Data(dataset="cifar10"),
    augment=Augment(flip=True, translation=0.125, mixup=0.2),
    optimizer=Optimizer(kind="muon", learning_rate=4e-3, momentum=0.95, weight_decay=0.05),
    schedule=Schedule(warmup="5%"),
    fit=Fit(steps=10_000, batch_size=128, label_smoothing=0.1, report_every="5%"),
)
