"""The layers that the models are composed of, one public class a file."""

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.average_token_pooling import AverageTokenPooling
from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.encoder_block import EncoderBlock
from keras_vit.layers.learned_position_embedding import LearnedPositionEmbedding
from keras_vit.layers.mlp_block import MlpBlock
from keras_vit.layers.patch_embedding import PatchEmbedding
from keras_vit.layers.sincos_position_embedding import SincosPositionEmbedding
from keras_vit.layers.token_pooling import TokenPooling

__all__ = [
    "AverageTokenPooling",
    "ClassToken",
    "DropPath",
    "EncoderBlock",
    "LearnedPositionEmbedding",
    "MlpBlock",
    "MultiHeadSelfAttention",
    "PatchEmbedding",
    "SincosPositionEmbedding",
    "TokenPooling",
]
