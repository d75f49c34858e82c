"""The layers that the models are composed of, one public class a file."""

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.attention_augmented_conv2d import AttentionAugmentedConv2D
from keras_vit.layers.attention_pooling import AttentionPooling
from keras_vit.layers.average_token_pooling import AverageTokenPooling
from keras_vit.layers.axial_attention import AxialAttention
from keras_vit.layers.axial_bottleneck_unit import AxialBottleneckUnit
from keras_vit.layers.axial_encoder_block import AxialEncoderBlock
from keras_vit.layers.bottleneck_unit import BottleneckUnit
from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.clustering_tokenizer import ClusteringTokenizer
from keras_vit.layers.convolutional_block_attention import ConvolutionalBlockAttention
from keras_vit.layers.double_attention import DoubleAttention
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.encoder_block import EncoderBlock
from keras_vit.layers.filter_tokenizer import FilterTokenizer
from keras_vit.layers.global_reasoning import GlobalReasoning
from keras_vit.layers.group_normalization import GroupNormalization
from keras_vit.layers.layer_normalization import LayerNormalization
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.learned_2d_position_embedding import Learned2DPositionEmbedding
from keras_vit.layers.learned_position_embedding import LearnedPositionEmbedding
from keras_vit.layers.local_relation import LocalRelation
from keras_vit.layers.local_self_attention import LocalSelfAttention
from keras_vit.layers.mlp_block import MlpBlock
from keras_vit.layers.padded_conv2d import PaddedConv2D
from keras_vit.layers.padded_max_pooling import PaddedMaxPooling2D
from keras_vit.layers.pairwise_self_attention import PairwiseSelfAttention
from keras_vit.layers.patch_embedding import PatchEmbedding
from keras_vit.layers.patchwise_self_attention import PatchwiseSelfAttention
from keras_vit.layers.pointwise_convolution import PointwiseConvolution
from keras_vit.layers.pooling_tokenizer import PoolingTokenizer
from keras_vit.layers.pre_activation_unit import PreActivationUnit
from keras_vit.layers.recurrent_tokenizer import RecurrentTokenizer
from keras_vit.layers.register_tokens import RegisterTokens
from keras_vit.layers.relative_position_embedding import RelativePositionEmbedding
from keras_vit.layers.residual_unit import ResidualUnit
from keras_vit.layers.self_attention_unit import SelfAttentionUnit
from keras_vit.layers.sincos_position_embedding import SincosPositionEmbedding
from keras_vit.layers.squeeze_excitation import SqueezeExcitation
from keras_vit.layers.std_conv2d import StdConv2D
from keras_vit.layers.token_graph_convolution import TokenGraphConvolution
from keras_vit.layers.token_merging import TokenMerging
from keras_vit.layers.token_pooling import TokenPooling
from keras_vit.layers.token_projector import TokenProjector
from keras_vit.layers.token_transformer import TokenTransformer
from keras_vit.layers.upsample_like import UpsampleLike

__all__ = [
    "AttentionAugmentedConv2D",
    "AttentionPooling",
    "AverageTokenPooling",
    "AxialAttention",
    "AxialBottleneckUnit",
    "AxialEncoderBlock",
    "BottleneckUnit",
    "ClassToken",
    "ClusteringTokenizer",
    "ConvolutionalBlockAttention",
    "DoubleAttention",
    "DropPath",
    "Dropout",
    "EncoderBlock",
    "FilterTokenizer",
    "GlobalReasoning",
    "GroupNormalization",
    "LayerNormalization",
    "LayerScale",
    "Learned2DPositionEmbedding",
    "LearnedPositionEmbedding",
    "LocalRelation",
    "LocalSelfAttention",
    "MlpBlock",
    "MultiHeadSelfAttention",
    "PaddedConv2D",
    "PaddedMaxPooling2D",
    "PairwiseSelfAttention",
    "PatchEmbedding",
    "PatchwiseSelfAttention",
    "PointwiseConvolution",
    "PoolingTokenizer",
    "PreActivationUnit",
    "RecurrentTokenizer",
    "RegisterTokens",
    "RelativePositionEmbedding",
    "ResidualUnit",
    "SelfAttentionUnit",
    "SincosPositionEmbedding",
    "SqueezeExcitation",
    "StdConv2D",
    "TokenGraphConvolution",
    "TokenMerging",
    "TokenPooling",
    "TokenProjector",
    "TokenTransformer",
    "UpsampleLike",
]
