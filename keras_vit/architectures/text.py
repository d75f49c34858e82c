"""`TextConfig`, the architecture of a text encoder."""

import dataclasses

from keras_vit.architectures.base import Architecture, optional, setting
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.checks import check_count, check_epsilon, check_flag, check_size


@dataclasses.dataclass(frozen=True)
class TextConfig(Architecture):
    """The architecture of a text encoder: a Transformer that maps token ids to one vector for each text.

    Args:
        vocabulary_size: Number of tokens in the vocabulary.
        context_length: Maximum number T of tokens of a text.
        hidden_dim: Width D of the tokens. A multiple of `num_heads`.
        num_layers: Number L of encoder blocks.
        num_heads: Number K of attention heads.
        mlp_dim: Width M of the hidden layer of each block's MLP.
        mlp: Activation of the MLP, as in `keras_vit.ViTConfig`: `"quick_gelu"` (CLIP, arXiv 2103.00020),
            `"gelu_exact"` (OpenCLIP, Perception Encoder), `"gelu_tanh"` (SigLIP) or `"relu"` (TIPSv2).
        layer_norm_epsilon: Number that is added to the variance in each LayerNorm.
        attention: Which tokens a token attends to. `"causal"`: those up to itself (CLIP). `"valid"`: those that are no
            padding (TIPSv2). `"all"`: all, also padding (SigLIP, arXiv 2303.15343).
        position_embedding: `"learned"`: a table with a row for each position is added to the tokens. `"sincos"`: the
            tokens are multiplied by the square root of D, then sines and cosines of the position are added (TIPSv2).
        pooling: Which token is the vector of the text. `"end"`: the first one with the id `end_id`. `"largest"`: the
            first one with the largest id, which is the end token of CLIP's vocabulary. `"last"`: the last one, whatever
            it is (SigLIP). `"mean"`: the mean of those that are no padding (TIPSv2).
        end_id: Id of the end token, for `pooling="end"`.
        padding_id: Id of padding.
        projection_dim: Width of the projection of the vector. `None`: there is no projection.
        projection_bias: Whether the projection has a bias.

    Raises:
        ValueError: If a value is invalid.

    Example:

    >>> import keras_vit
    >>> config = keras_vit.TextConfig(49408, 77, 512, num_layers=12, num_heads=8, mlp_dim=2048, projection_dim=512)
    >>> config.attention, config.pooling
    ('causal', 'largest')
    """

    kind = "text_encoder"
    title = "text encoder"
    output = "embedding"
    loads = ("text_encoder",)

    vocabulary_size: int = setting(check_size)
    context_length: int = setting(check_size)
    hidden_dim: int = setting(check_size)
    num_layers: int = setting(check_size)
    num_heads: int = setting(check_size)
    mlp_dim: int = setting(check_size)
    mlp: str = setting(("gelu_tanh", "gelu_exact", "quick_gelu", "relu"), "gelu_exact")
    layer_norm_epsilon: float = setting(check_epsilon, 1e-5)
    attention: str = setting(("causal", "valid", "all"), "causal")
    position_embedding: str = setting(("learned", "sincos"), "learned")
    pooling: str = setting(("end", "largest", "last", "mean"), "largest")
    end_id: int | None = setting(optional(check_count), None)
    padding_id: int = setting(check_count, 0)
    projection_dim: int | None = setting(optional(check_size), None)
    projection_bias: bool = setting(check_flag, False)

    def check_combinations(self):
        self.blocks  # noqa: B018 (It checks the fields of the blocks.)
        if (self.pooling == "end") != (self.end_id is not None):
            raise ValueError(
                f"end_id is the id of the end token, for pooling='end'. Received: pooling={self.pooling!r}, "
                f"end_id={self.end_id}"
            )
        if (largest := max(self.padding_id, self.end_id or 0)) >= self.vocabulary_size:
            raise ValueError(f"Ids must be below vocabulary_size={self.vocabulary_size}. Received: {largest}")
        if self.position_embedding == "sincos" and (self.hidden_dim % 2 or self.hidden_dim < 4):
            raise ValueError(f"position_embedding='sincos' needs an even hidden_dim. Received: {self.hidden_dim}")

    @property
    def blocks(self):
        """The `ViTConfig` of the encoder blocks and of the final LayerNorm."""
        return ViTConfig(
            patch_size=1,
            hidden_dim=self.hidden_dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            mlp_dim=self.mlp_dim,
            mlp=self.mlp,
            layer_norm_epsilon=self.layer_norm_epsilon,
        )

    @property
    def embedding_dim(self):
        """Width of the text's vector."""
        return self.projection_dim or self.hidden_dim
