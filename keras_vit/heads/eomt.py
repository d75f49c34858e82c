"""The head of EoMT. Shapes: B batch, h w patches, T tokens, D hidden, Q queries, n blocks of the head, s scale."""

import functools
import math
import typing

import keras
from keras import ops

from keras_vit.architectures.base import optional
from keras_vit.checks import check_count, check_positive_integer
from keras_vit.encoder import encoder_block, encoder_norm, rotary_positions
from keras_vit.heads.dense_head import DenseHead, patch_map
from keras_vit.layers.ops.activations import activate
from keras_vit.layers.ops.fixed_seed import FixedSeed
from keras_vit.layers.ops.maps import as_pixels
from keras_vit.layers.ops.resizing import resize_bilinear
from keras_vit.layers.transformer.layer_normalization import LayerNormalization


@keras.saving.register_keras_serializable(package="keras_vit")
class EoMTHead(DenseHead):
    """Queries that pass the last blocks of the encoder together with its tokens, and a mask for each query.

    "Your ViT is Secretly an Image Segmentation Model" (EoMT, arXiv 2503.19108). Learned queries are put in front of the
    tokens before the last n blocks. After these blocks and the final LayerNorm, an MLP maps each query to D channels,
    and transposed convolutions enlarge the map of the patches. The logit of a mask at a pixel is the scalar product of
    the query and the pixel. A linear layer, the layer `predictions` of the model, predicts the class of each query.

    The head contains the last n blocks and the final LayerNorm of the encoder. Its tap is the input of these blocks.

    In training, masks and queries are predicted before each of the n blocks, too. With `annealing_steps`, the attention
    is masked at first: in each block, a query attends only to the patches of the mask that was just predicted for it.
    The probability of masking falls from one to zero, one block after the other (mask annealing). For block j, it falls
    as `(1 - progress)^0.9` during a sixth of the steps, which begins after the share 1/6 + j / (2 (n - 1)) of them. At
    inference, nothing is masked.

    Args:
        num_queries: Number Q of queries, the maximum number of objects.
        num_blocks: Number n of blocks.
        num_upscales: Number of convolutions, each of which doubles the size of the map. `None`: as many as lead to
            pixels of 4 x 4 image pixels.
        annealing_steps: Number of calls in training, in which the attention is masked and unmasked. `None`: the
            attention is never masked. A saved model counts its calls anew.
        blocks: The last n `EncoderBlock`s of an encoder. `None` until `for_encoder` sets them, like the next arguments.
        norm: The final LayerNorm of the encoder.
        positions: `RotaryPositionEmbedding` for the queries and the tokens of the encoder. `None` without rotary
            positions.

    Call arguments:
        patches: (B, h, w, D), the embedded patches of the encoder.
        taps: List with the tokens (B, T, D) that block L - n reads, which are not normalised.
        images: (B, H, W, C), not used.
        training: Whether the predictions of all blocks are returned.

    Returns:
        A pair.

        * Logits of the masks, (B, s h, s w, Q), where s is 2 to the power of `num_upscales`.
        * Normalised queries, (B, Q, D).

        In training, masks are (B, s h, s w, (n + 1) Q) and queries (B, (n + 1) Q, D): first the predictions before the
        n blocks in their order, then the final ones.

    Raises:
        ValueError: If an argument is invalid, or the blocks of the encoder do not accept further tokens.

    Example:

    >>> import keras, keras_vit
    >>> head = keras_vit.heads.EoMTHead(num_queries=5, num_blocks=1)
    >>> head = head.for_encoder(keras_vit.ViTConfig(patch_size=8, hidden_dim=16, num_layers=2, num_heads=2, mlp_dim=32))
    >>> masks, queries = head(keras.ops.ones((2, 3, 4, 16)), [keras.ops.ones((2, 13, 16))], None)
    >>> tuple(masks.shape), tuple(queries.shape)
    ((2, 6, 8, 5), (2, 5, 16))
    """

    def __init__(
        self,
        num_queries: int = 100,
        num_blocks: int = 3,
        num_upscales: int | None = None,
        annealing_steps: int | None = None,
        blocks: typing.Sequence[keras.Layer] | None = None,
        norm: keras.Layer | None = None,
        positions: keras.Layer | None = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(None, use_norm=False, **kwargs)
        self.autocast = False  # Autocast would also round the positions.
        self.num_queries = check_positive_integer("num_queries", num_queries)
        self.num_blocks = check_positive_integer("num_blocks", num_blocks)
        self.num_upscales: typing.Any = None if num_upscales is None else check_count("num_upscales", num_upscales)
        self.annealing_steps = optional(check_positive_integer)("annealing_steps", annealing_steps)
        self.blocks, self.positions = list(blocks or ()), positions
        self.norm: typing.Any = norm
        self.seed_generator = keras.random.SeedGenerator()

    def for_encoder(self, config):
        reasons = {
            "token_merging": config.token_merging,
            "axial": config.axial,
            "position_embedding='relative'": config.position_embedding == "relative",
            "position_placement": config.position_placement != "stem",
        }
        if unsuitable := [name for name, is_used in reasons.items() if is_used]:
            raise ValueError(
                f"An EoMTHead puts queries in front of the tokens of the last blocks, which is not possible with "
                f"{' and '.join(unsuitable)}. Use a LinearHead or a DPTHead."
            )
        first = config.num_layers - self.num_blocks
        if first < 1:
            raise ValueError(
                f"num_blocks must be from 1 to {config.num_layers - 1} for an encoder with {config.num_layers} blocks. "
                f"Received: num_blocks={self.num_blocks}"
            )
        num_upscales = max(round(math.log2(max(config.total_stride))) - 2, 0)
        head = self.with_arguments(
            num_upscales=num_upscales if self.num_upscales is None else self.num_upscales,
            # The blocks have their names in the encoder, so that their weights are found.
            blocks=[encoder_block(config, i) for i in range(first, config.num_layers)],
            norm=encoder_norm(config),
            positions=config.rotary and rotary_positions(config, self.num_queries + config.num_prefix_tokens),
        )
        head.taps = (first - 1,)
        return head

    @property
    def arguments(self):
        names = ("num_queries", "num_blocks", "num_upscales", *["annealing_steps"] * (self.annealing_steps is not None))
        return {name: getattr(self, name) for name in names}

    def build(self, patches_shape, taps_shape=None, images_shape=None):
        batch, *_, width = patches_shape
        self.query = self.add_weight(
            (self.num_queries, width), keras.initializers.RandomNormal(stddev=1.0), name="query"
        )
        self._num_calls = self.add_weight((), "zeros", trainable=False, aggregation="mean", name="num_calls")
        for block in (*self.blocks, self.norm):
            block.build((batch, None, width))
        dense = functools.partial(self.build_part, keras.layers.Dense, input_shape=(None, None, width), units=width)
        self.mask_mlp = [dense(name=f"mask_mlp_{i}") for i in range(3)]
        shape, options = (None, None, None, width), {"data_format": "channels_last"}
        self.upscales = []
        for i in range(self.num_upscales):
            parts = (
                (keras.layers.Conv2DTranspose, "transposed", (width, 2), {"strides": 2}),
                (keras.layers.DepthwiseConv2D, "depthwise", (3,), {"padding": "same", "use_bias": False}),
            )
            convs = [
                self.build_part(create, f"upscale_{name}_{i}", shape, *arguments, **changes, **options)
                for create, name, arguments, changes in parts
            ]
            norm = self.build_part(LayerNormalization, f"upscale_norm_{i}", shape, 1e-6)
            self.upscales.append([*convs, norm])

    @property
    def weights(self):
        """Does not contain the number of calls, which only matters in training and is not saved."""
        return [weight for weight in super().weights if weight is not self._num_calls]

    def save_own_variables(self, store):
        store["query"] = self.query

    def load_own_variables(self, store):
        self.query.assign(store["query"])

    def call(self, patches, taps, images=None, training=None):
        tokens, positions = self._with_queries(patches, taps)
        predictions, probabilities, steps = [], None, self.annealing_steps
        if training and steps is not None:
            probabilities = self._mask_probabilities(steps)
        for i, block in enumerate(self.blocks):
            attention_mask = None
            if training:
                predictions.append(self._predict(tokens, patches, training))
                if probabilities is not None:
                    attention_mask = self._attention_mask(predictions[-1][0], tokens, patches, probabilities[i])
            tokens = block(tokens, positions, attention_mask, training=training)
        masks, queries = zip(*predictions, self._predict(tokens, patches, training), strict=True)
        return (ops.concatenate(masks, axis=-1), ops.concatenate(queries, axis=1)) if training else (*masks, *queries)

    def attention_weights(self, patches, taps, images=None):
        """The weights with which each query attends to each patch in the n blocks, the mean of all heads.

        Args:
            patches, taps, images: As in `call`.

        Returns:
            (B, n, Q, h, w). The weights of a query and a block sum to at most one, because it also attends to the other
            queries and to the class token.
        """
        tokens, positions = self._with_queries(patches, taps)
        height, width = ops.shape(patches)[1:3]
        maps = []
        for block in self.blocks:
            weights = ops.mean(block.attention_weights(tokens, positions), axis=1)
            maps.append(weights[:, : self.num_queries, -height * width :])
            tokens = block(tokens, positions, training=False)
        return ops.reshape(ops.stack(maps, axis=1), (-1, len(maps), self.num_queries, height, width))

    def _with_queries(self, patches, taps):
        """The queries and the tokens, (B, Q + T, D), and their rotary positions."""
        [tokens] = taps
        query = ops.repeat(ops.cast(self.query, self.compute_dtype)[None], ops.shape(tokens)[0], axis=0)
        tokens = ops.concatenate([query, ops.cast(tokens, self.compute_dtype)], axis=1)
        return tokens, None if self.positions is None else self.positions(patches)

    def _predict(self, tokens, patches, training):
        """Logits of the masks, (B, s h, s w, Q), and normalised queries, (B, Q, D)."""
        tokens = self.norm(tokens)
        pixels, queries = patch_map(tokens, patches), tokens[:, : self.num_queries]
        for transposed, depthwise, norm in self.upscales:
            pixels = norm(depthwise(activate("gelu_exact", transposed(pixels), training)))
        filters = queries
        for i, dense in enumerate(self.mask_mlp):
            filters = dense(activate("gelu_exact", filters, training) if i else filters)
        masks = ops.matmul(as_pixels(pixels), ops.swapaxes(filters, 1, 2))
        return ops.reshape(masks, (-1, *ops.shape(pixels)[1:3], self.num_queries)), queries

    def _mask_probabilities(self, num_steps):
        """Probability that each block is masked, (n,). Counts the calls."""
        starts = ops.linspace(1 / 6, 4 / 6, self.num_blocks, dtype="float32")
        progress = (self._num_calls / num_steps - starts) * 6
        self._num_calls.assign(self._num_calls + 1)
        return (1 - ops.clip(progress, 0, 1)) ** 0.9

    def _attention_mask(self, masks, tokens, patches, probability):
        """Which tokens each token attends to, booleans (B, T, T): a query only to the patches of its mask."""
        small = resize_bilinear(ops.stop_gradient(masks), ops.shape(patches)[1:3])
        seen = ops.swapaxes(as_pixels(small), 1, 2) > 0  # (B, Q, h w)
        lifted = keras.random.uniform(ops.shape(seen)[:2], seed=FixedSeed(self.seed_generator)) > probability
        seen = ops.cast(ops.logical_or(seen, lifted[..., None]), "float32")
        num_tokens, (_, num_queries, num_patches) = ops.shape(tokens)[1], ops.shape(seen)
        margins = ((0, 0), (0, num_tokens - num_queries), (num_tokens - num_patches, 0))
        return ops.pad(seen, margins, constant_values=1.0) > 0

    def compute_output_shape(self, patches_shape, taps_shape=None, images_shape=None):
        batch, *sides, width = patches_shape
        masks = (batch, *(side and side << self.num_upscales for side in sides), self.num_queries)
        return masks, (batch, self.num_queries, width)

    def macs(self, patches_shape, tokens_shape):
        """Multiply-accumulates for one image of a batch of shape (B, h, w, D), with tokens (B, T, D)."""
        num_patches, width = math.prod(patches_shape[1:3]), patches_shape[-1]
        tokens_shape = (None, tokens_shape[1] + self.num_queries, width)
        total = sum(block.macs(tokens_shape) for block in self.blocks)
        total += self.num_queries * 3 * width**2
        for i in range(self.num_upscales):
            total += num_patches * 4**i * (4 * width**2 + 4 * 9 * width)
        return total + num_patches * 4**self.num_upscales * self.num_queries * width
