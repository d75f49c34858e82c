"""The layers that the models are composed of, one public class a file."""

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.attention_pooling import AttentionPooling
from keras_vit.layers.average_token_pooling import AverageTokenPooling
from keras_vit.layers.bottleneck_unit import BottleneckUnit
from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.encoder_block import EncoderBlock
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.learned_position_embedding import LearnedPositionEmbedding
from keras_vit.layers.mlp_block import MlpBlock
from keras_vit.layers.patch_embedding import PatchEmbedding
from keras_vit.layers.register_tokens import RegisterTokens
from keras_vit.layers.sincos_position_embedding import SincosPositionEmbedding
from keras_vit.layers.std_conv2d import StdConv2D
from keras_vit.layers.token_pooling import TokenPooling

__all__ = [
    "AttentionPooling",
    "AverageTokenPooling",
    "BottleneckUnit",
    "ClassToken",
    "DropPath",
    "Dropout",
    "EncoderBlock",
    "LayerScale",
    "LearnedPositionEmbedding",
    "MlpBlock",
    "MultiHeadSelfAttention",
    "PatchEmbedding",
    "RegisterTokens",
    "SincosPositionEmbedding",
    "StdConv2D",
    "TokenPooling",
]
