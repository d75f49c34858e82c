"""The layers of the models, one public class per file."""

from keras_vit.layers.convolutional.attention_augmented_conv2d import AttentionAugmentedConv2D
from keras_vit.layers.convolutional.axial_attention import AxialAttention
from keras_vit.layers.convolutional.axial_bottleneck_unit import AxialBottleneckUnit
from keras_vit.layers.convolutional.bottleneck_unit import BottleneckUnit
from keras_vit.layers.convolutional.convolutional_block_attention import ConvolutionalBlockAttention
from keras_vit.layers.convolutional.double_attention import DoubleAttention
from keras_vit.layers.convolutional.global_reasoning import GlobalReasoning
from keras_vit.layers.convolutional.group_normalization import GroupNormalization
from keras_vit.layers.convolutional.local_relation import LocalRelation
from keras_vit.layers.convolutional.local_self_attention import LocalSelfAttention
from keras_vit.layers.convolutional.padded_conv2d import PaddedConv2D
from keras_vit.layers.convolutional.padded_max_pooling import PaddedMaxPooling2D
from keras_vit.layers.convolutional.pairwise_self_attention import PairwiseSelfAttention
from keras_vit.layers.convolutional.patchwise_self_attention import PatchwiseSelfAttention
from keras_vit.layers.convolutional.pointwise_convolution import PointwiseConvolution
from keras_vit.layers.convolutional.pre_activation_unit import PreActivationUnit
from keras_vit.layers.convolutional.residual_unit import ResidualUnit
from keras_vit.layers.convolutional.self_attention_unit import SelfAttentionUnit
from keras_vit.layers.convolutional.squeeze_excitation import SqueezeExcitation
from keras_vit.layers.convolutional.std_conv2d import StdConv2D
from keras_vit.layers.convolutional.upsample_like import UpsampleLike
from keras_vit.layers.positions.learned_2d_position_embedding import Learned2DPositionEmbedding
from keras_vit.layers.positions.learned_position_embedding import LearnedPositionEmbedding
from keras_vit.layers.positions.relative_position_embedding import RelativePositionEmbedding
from keras_vit.layers.positions.sincos_position_embedding import SincosPositionEmbedding
from keras_vit.layers.transformer.attention import MultiHeadSelfAttention
from keras_vit.layers.transformer.attention_pooling import AttentionPooling
from keras_vit.layers.transformer.average_token_pooling import AverageTokenPooling
from keras_vit.layers.transformer.axial_encoder_block import AxialEncoderBlock
from keras_vit.layers.transformer.class_token import ClassToken
from keras_vit.layers.transformer.drop_path import DropPath
from keras_vit.layers.transformer.dropout import Dropout
from keras_vit.layers.transformer.encoder_block import EncoderBlock
from keras_vit.layers.transformer.layer_normalization import LayerNormalization
from keras_vit.layers.transformer.layer_scale import LayerScale
from keras_vit.layers.transformer.merging_encoder_block import MergingEncoderBlock
from keras_vit.layers.transformer.mlp_block import MlpBlock
from keras_vit.layers.transformer.patch_embedding import PatchEmbedding
from keras_vit.layers.transformer.register_tokens import RegisterTokens
from keras_vit.layers.transformer.token_merging import TokenMerging
from keras_vit.layers.transformer.token_pooling import TokenPooling
from keras_vit.layers.visual_tokens.clustering_tokenizer import ClusteringTokenizer
from keras_vit.layers.visual_tokens.filter_tokenizer import FilterTokenizer
from keras_vit.layers.visual_tokens.pooling_tokenizer import PoolingTokenizer
from keras_vit.layers.visual_tokens.recurrent_tokenizer import RecurrentTokenizer
from keras_vit.layers.visual_tokens.token_graph_convolution import TokenGraphConvolution
from keras_vit.layers.visual_tokens.token_projector import TokenProjector
from keras_vit.layers.visual_tokens.token_transformer import TokenTransformer

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
    "MergingEncoderBlock",
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
