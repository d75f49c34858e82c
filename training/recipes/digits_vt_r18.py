"""The full VT-ResNet-18 on the UCI optical digits, at 32 pixels.

Paper: Wu et al., "Visual Transformers", arXiv 2006.03677, for the model; the data are those of the recipe digits.
Command: python -m training train digits_vt_r18
Hardware: about two minutes on two CPU cores.
Expected: at least 97 % test accuracy on average over three seeds, as checked by `make vt-accuracy` for 18, 34, 50 and
101 layers.
Measured: 98.89 % on average over three seeds (2026-11-22, two CPU cores, TensorFlow 2.21, Keras 3.15); for the other
depths see docs/recipes.md.

At 32 pixels the feature map from which the tokens are computed has 2 x 2 pixels.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="digits_vt_r18",
    model=Model(function="VTResNet18", input_shape=(32, 32, 1)),
    data=Data(dataset="digits"),
    augment=Augment(translation=0.04, rotation=5, scale=0.05, fill="black"),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.05),
    schedule=Schedule(warmup="5%"),
    fit=Fit(epochs=6, batch_size=64, label_smoothing=0.1),
)
