"""A directory of your own photographs, one folder for each class, with a small Vision Transformer from scratch.

Paper: none.
Command: python -m training train folder data.directory=path/to/your/photographs
Hardware: five minutes for 232 training images on two CPU cores.
Expected: depends on the photographs. From scratch a Vision Transformer wants thousands of them.
Measured: 56 % test accuracy on eight classes of Caltech-101 with 40 photographs each, where chance is 12.5 % and a
nearest-neighbour classifier on the pixels reaches 45 % (2026-11-21, seed 0).
"""

from keras_vit.config import VARIANTS
from training.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="folder",
    model=Model(config=VARIANTS["Ti/16"].replace(num_layers=6, pooling="avg"), input_shape=(128, 128, 3)),
    data=Data(dataset="folder", validation_fraction=0.1, test_fraction=0.2),
    augment=Augment(flip=True, translation=0.1, rotation=10, scale=0.2),
    optimizer=Optimizer(learning_rate=5e-4, weight_decay=0.1),
    schedule=Schedule(warmup="5%"),
    fit=Fit(epochs=60, batch_size=32, label_smoothing=0.1),
)
