"""A small ViT and a small text encoder that learn to find the captions of drawn pictures. No data are downloaded.

Paper: CLIP, arXiv 2103.00020; the models are much smaller.
Command: python -m training train drawn_pairs
Hardware: five minutes on two CPU cores.
Expected: a recall at 1 above 60 % among 100 captions, each of which differs from another one in one word.
Measured: see docs/guides/classify_without_training.md.
"""

from keras_vit.architectures.vision_transformer import ViTConfig
from training.recipe.config import Data, Fit, Model, Optimizer, Recipe, Schedule, Text

RECIPE = Recipe(
    name="drawn_pairs",
    task="contrastive",
    model=Model(config=ViTConfig(8, 128, num_layers=4, num_heads=4, mlp_dim=512), input_shape=(48, 48, 3)),
    text=Text(config={"context_length": 20, "hidden_dim": 128, "num_layers": 3, "num_heads": 4, "mlp_dim": 512}),
    data=Data(dataset="drawn_pairs"),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.05, clip_norm=1.0),
    schedule=Schedule(warmup="5%"),
    fit=Fit(epochs=5, batch_size=256),
)
