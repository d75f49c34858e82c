"""CIFAR-10 from scratch with a small Vision Transformer.

Paper: none for this model; the data are from Krizhevsky, 2009 (60,000 colour photographs of 32 x 32 pixels).
Command: python -m training train cifar10
Hardware: not measured. Intended for one GPU; a CPU takes days.
Expected: about 93 % test accuracy, estimated from reported results of small models trained from scratch.
Measured: nothing yet. Tests check only that the recipe runs.
"""

from keras_vit.architectures.vision_transformer import ViTConfig
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="cifar10",
    model=Model(
        config=ViTConfig(
            patch_size=4, hidden_dim=256, num_layers=8, num_heads=8, mlp_dim=512, pooling="avg", drop_path_rate=0.1
        ),
        input_shape=(32, 32, 3),
    ),
    data=Data(dataset="cifar10", validation_fraction=0.02),
    augment=Augment(flip=True, translation=0.125, rotation=10, scale=0.1),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.1),
    schedule=Schedule(warmup="5%"),
    fit=Fit(epochs=200, batch_size=128, label_smoothing=0.1),
)
