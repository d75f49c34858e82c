"""A small EoMT that finds the objects of drawn scenes and their pixels, so that no data are downloaded.

Paper: EoMT, arXiv 2503.19108; the model is much smaller, and trained from random weights.
Command: python -m training train scenes_eomt
Hardware: twenty minutes on two CPU cores.
Expected: an AP50 above 35 %.
Measured: an AP50 of 81.91 % and an AP of 77.54 % with seed 0 (2026-11-30, TensorFlow 2.21, Keras 3.15).
"""

from keras_vit.architectures.vision_transformer import ViTConfig
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="scenes_eomt",
    task="instance_segmentation",
    model=Model(
        config=ViTConfig(8, 128, num_layers=6, num_heads=4, mlp_dim=384, layer_scale=1.0, pooling=None),
        head="eomt",
        head_arguments={"num_queries": 16, "num_blocks": 2, "num_upscales": 1},
        input_shape=(96, 96, 3),
        attention_initialization="mimetic",
    ),
    data=Data(dataset="scenes"),
    augment=Augment(flip=True),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.05, clip_norm=1.0),
    schedule=Schedule(warmup="5%"),
    fit=Fit(epochs=4, batch_size=16, report_every="25%"),
)
