"""UCI optical digits: the default recipe, which needs no download.

Paper: none; the data are the 1,797 scans of 8 x 8 pixels in scikit-learn (Alpaydin and Kaynak, UCI, 1998).
Command: make train
Hardware: one to two minutes on two CPU cores.
Expected: at least 97 % test accuracy on average over three seeds, as checked by `make accuracy`.
Measured: 98.06, 99.17 and 99.17 % with seeds 0, 1 and 2 (2026-11-22, two CPU cores, TensorFlow 2.21, Keras 3.15); a
nearest-neighbour classifier reaches 98.61 % on the same 360 images.
"""

from keras_vit.architectures.vision_transformer import ViTConfig
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="digits",
    model=Model(
        config=ViTConfig(patch_size=8, hidden_dim=64, num_layers=4, num_heads=4, mlp_dim=128, pooling="avg"),
        # The scans have 8 x 8 pixels. They are enlarged so that small rotations and shifts do not blur them.
        input_shape=(32, 32, 1),
    ),
    data=Data(dataset="digits"),
    augment=Augment(translation=0.1, rotation=10, scale=0.1, fill="black"),
    optimizer=Optimizer(learning_rate=2e-3, weight_decay=0.05),
    schedule=Schedule(warmup="5%"),
    fit=Fit(epochs=50, batch_size=64),
)
