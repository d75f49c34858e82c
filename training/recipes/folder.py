"""A directory of your own photographs, one folder for each class, with a small Vision Transformer from scratch.

Paper: none.
Command: python -m training train folder data.directory=path/to/your/photographs
"""

from keras_vit.config import VARIANTS
from training.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="folder",
    model=Model(config=VARIANTS["Ti/16"].replace(num_layers=6, pooling="avg"), input_shape=(128, 128, 3)),
    data=Data(dataset="folder", validation_fraction=0.1, test_fraction=0.2),
    augment=Augment(flip=True, translation=0.1, rotation=10, scale=0.2),
    optimizer=Optimizer(learning_rate=5e-4, weight_decay=0.1),
    schedule=Schedule(warmup=0.05),
    fit=Fit(epochs=60, batch_size=32, label_smoothing=0.1),
)
