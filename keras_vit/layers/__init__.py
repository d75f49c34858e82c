"""The layers of the models, one public class per file."""

from keras_vit.layers.convolutional.attention_augmented_conv2d import (
    AttentionAugmentedConv2D as AttentionAugmentedConv2D,
)
from keras_vit.layers.convolutional.axial_attention import AxialAttention as AxialAttention
from keras_vit.layers.convolutional.axial_bottleneck_unit import AxialBottleneckUnit as AxialBottleneckUnit
from keras_vit.layers.convolutional.bottleneck_unit import BottleneckUnit as BottleneckUnit
from keras_vit.layers.convolutional.convolutional_block_attention import (
    ConvolutionalBlockAttention as ConvolutionalBlockAttention,
)
from keras_vit.layers.convolutional.depth_activation import DepthActivation as DepthActivation
from keras_vit.layers.convolutional.double_attention import DoubleAttention as DoubleAttention
from keras_vit.layers.convolutional.feature_fusion import FeatureFusion as FeatureFusion
from keras_vit.layers.convolutional.global_reasoning import GlobalReasoning as GlobalReasoning
from keras_vit.layers.convolutional.group_normalization import GroupNormalization as GroupNormalization
from keras_vit.layers.convolutional.local_relation import LocalRelation as LocalRelation
from keras_vit.layers.convolutional.local_self_attention import LocalSelfAttention as LocalSelfAttention
from keras_vit.layers.convolutional.padded_conv2d import PaddedConv2D as PaddedConv2D
from keras_vit.layers.convolutional.padded_max_pooling import PaddedMaxPooling2D as PaddedMaxPooling2D
from keras_vit.layers.convolutional.pairwise_self_attention import PairwiseSelfAttention as PairwiseSelfAttention
from keras_vit.layers.convolutional.patchwise_self_attention import PatchwiseSelfAttention as PatchwiseSelfAttention
from keras_vit.layers.convolutional.pointwise_convolution import PointwiseConvolution as PointwiseConvolution
from keras_vit.layers.convolutional.pre_activation_unit import PreActivationUnit as PreActivationUnit
from keras_vit.layers.convolutional.residual_unit import ResidualUnit as ResidualUnit
from keras_vit.layers.convolutional.resize_like import ResizeLike as ResizeLike
from keras_vit.layers.convolutional.self_attention_unit import SelfAttentionUnit as SelfAttentionUnit
from keras_vit.layers.convolutional.squeeze_excitation import SqueezeExcitation as SqueezeExcitation
from keras_vit.layers.convolutional.std_conv2d import StdConv2D as StdConv2D
from keras_vit.layers.convolutional.upsample_like import UpsampleLike as UpsampleLike
from keras_vit.layers.detection.label_similarity import LabelSimilarity as LabelSimilarity
from keras_vit.layers.detection.patch_boxes import PatchBoxes as PatchBoxes
from keras_vit.layers.positions.learned_2d_position_embedding import (
    Learned2DPositionEmbedding as Learned2DPositionEmbedding,
)
from keras_vit.layers.positions.learned_position_embedding import LearnedPositionEmbedding as LearnedPositionEmbedding
from keras_vit.layers.positions.relative_position_embedding import (
    RelativePositionEmbedding as RelativePositionEmbedding,
)
from keras_vit.layers.positions.rotary_frequencies import RotaryFrequencies as RotaryFrequencies
from keras_vit.layers.positions.rotary_position_embedding import RotaryPositionEmbedding as RotaryPositionEmbedding
from keras_vit.layers.positions.sincos_position_embedding import SincosPositionEmbedding as SincosPositionEmbedding
from keras_vit.layers.regularization.drop_path import DropPath as DropPath
from keras_vit.layers.regularization.dropout import Dropout as Dropout
from keras_vit.layers.regularization.patch_dropout import PatchDropout as PatchDropout
from keras_vit.layers.text.similarity import Similarity as Similarity
from keras_vit.layers.text.text_attention_mask import TextAttentionMask as TextAttentionMask
from keras_vit.layers.text.text_pooling import TextPooling as TextPooling
from keras_vit.layers.text.text_positions import TextPositions as TextPositions
from keras_vit.layers.text.token_embedding import TokenEmbedding as TokenEmbedding
from keras_vit.layers.transformer.attention import MultiHeadSelfAttention as MultiHeadSelfAttention
from keras_vit.layers.transformer.attention_pooling import AttentionPooling as AttentionPooling
from keras_vit.layers.transformer.average_token_pooling import AverageTokenPooling as AverageTokenPooling
from keras_vit.layers.transformer.axial_encoder_block import AxialEncoderBlock as AxialEncoderBlock
from keras_vit.layers.transformer.class_token import ClassToken as ClassToken
from keras_vit.layers.transformer.encoder_block import EncoderBlock as EncoderBlock
from keras_vit.layers.transformer.layer_normalization import LayerNormalization as LayerNormalization
from keras_vit.layers.transformer.layer_scale import LayerScale as LayerScale
from keras_vit.layers.transformer.merging_encoder_block import MergingEncoderBlock as MergingEncoderBlock
from keras_vit.layers.transformer.mlp_block import MlpBlock as MlpBlock
from keras_vit.layers.transformer.naflex_mask import NaFlexMask as NaFlexMask
from keras_vit.layers.transformer.naflex_patches import NaFlexPatches as NaFlexPatches
from keras_vit.layers.transformer.patch_embedding import PatchEmbedding as PatchEmbedding
from keras_vit.layers.transformer.register_tokens import RegisterTokens as RegisterTokens
from keras_vit.layers.transformer.token_merging import TokenMerging as TokenMerging
from keras_vit.layers.transformer.token_pooling import TokenPooling as TokenPooling
from keras_vit.layers.visual_tokens.clustering_tokenizer import ClusteringTokenizer as ClusteringTokenizer
from keras_vit.layers.visual_tokens.filter_tokenizer import FilterTokenizer as FilterTokenizer
from keras_vit.layers.visual_tokens.pooling_tokenizer import PoolingTokenizer as PoolingTokenizer
from keras_vit.layers.visual_tokens.recurrent_tokenizer import RecurrentTokenizer as RecurrentTokenizer
from keras_vit.layers.visual_tokens.token_graph_convolution import TokenGraphConvolution as TokenGraphConvolution
from keras_vit.layers.visual_tokens.token_projector import TokenProjector as TokenProjector
from keras_vit.layers.visual_tokens.token_transformer import TokenTransformer as TokenTransformer

__all__ = [name for name, value in list(globals().items()) if isinstance(value, type)]
