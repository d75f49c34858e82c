"""Small image-text models with random weights."""

import pathlib

import keras_vit
from keras_vit.text.tokenizers import Tokenizer
from tests.models.tiny import CONFIG
from tests.test_case import randomize

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "modern"
SHAPE, CONTEXT = (16, 24, 3), 24


def random_model(activation="softmax", projection=True, attention="causal", **changes):
    """A model with the small vocabulary of CLIP, whose images have a projection or not."""
    image = CONFIG if projection else CONFIG.replace(pooling="avg", class_token=False)
    arguments = {"classes": 20, "classifier_activation": None} if projection else {"include_top": False}
    width = 20 if projection else image.hidden_dim
    text = keras_vit.TextConfig(
        573, CONTEXT, 12, num_layers=2, num_heads=3, mlp_dim=16, projection_dim=width, attention=attention
    )
    tokenizer = Tokenizer.from_file("clip", GOLDEN / "tokenizers" / "clip", CONTEXT)
    images = keras_vit.ViT(image, **{"input_shape": SHAPE} | arguments | changes)
    return randomize(keras_vit.ImageTextModel(images, text, activation, tokenizer), scale=0.3)
