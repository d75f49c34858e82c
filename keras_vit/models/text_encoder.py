"""Text encoders: a Transformer from token ids to one vector for each text. Shapes: B batch, T tokens, D hidden."""

import keras

from keras_vit import layers
from keras_vit.architectures.text import TextConfig
from keras_vit.encoder import encoder_block, encoder_norm
from keras_vit.models.building import functional_model


def build_text_encoder(config, name=None):
    """Builds a newly initialised text encoder.

    Args:
        config: `keras_vit.TextConfig`
        name: Name of the model.

    Returns:
        A functional `keras.Model`. Input `token_ids`: integers (B, T), where T is `context_length` if padding is
        attended to, and otherwise at most `context_length`. Output: (B, `embedding_dim`), float32, which is not
        normalised.
    """
    length = config.context_length if config.attention == "all" else None
    token_ids = keras.Input((length,), dtype="int32", name="token_ids")
    tokens = layers.TokenEmbedding(config.vocabulary_size, config.hidden_dim, name="token_embedding")(token_ids)
    positions = layers.TextPositions(config.position_embedding, config.context_length, name="position_embedding")
    tokens, options = positions(tokens), {}
    if config.attention != "all":
        mask = layers.TextAttentionMask(config.attention, config.padding_id, name="attention_mask")
        options = {"attention_mask": mask(token_ids)}
    for i in range(config.num_layers):
        tokens = encoder_block(config.blocks, i)(tokens, **options)
    tokens = encoder_norm(config.blocks)(tokens)
    text = layers.TextPooling(config.pooling, config.end_id, config.padding_id, name="pooling")(tokens, token_ids)
    if config.projection_dim is not None:
        projection = keras.layers.Dense(
            config.projection_dim, use_bias=config.projection_bias, dtype="float32", name="projection"
        )
        text = projection(text)
    return functional_model(token_ids, text, name or config.kind)


def text_config(model):
    """The `keras_vit.TextConfig` of a text encoder."""
    found = {layer.name: layer for layer in model.layers}
    blocks = [layer for name, layer in found.items() if name.startswith("encoder_block_")]
    pooling, projection = found["pooling"], found.get("projection")
    return TextConfig(
        vocabulary_size=found["token_embedding"].vocabulary_size,
        context_length=found["position_embedding"].context_length,
        hidden_dim=found["token_embedding"].hidden_dim,
        num_layers=len(blocks),
        num_heads=blocks[0].attention.num_heads,
        mlp_dim=blocks[0].mlp_block.mlp_dim,
        mlp=blocks[0].mlp_block.activation,
        layer_norm_epsilon=blocks[0].layer_norm_epsilon,
        attention=found["attention_mask"].kind if "attention_mask" in found else "all",
        position_embedding=found["position_embedding"].positions,
        pooling=pooling.pooling,
        end_id=pooling.end_id,
        padding_id=pooling.padding_id,
        projection_dim=projection and projection.units,
        projection_bias=bool(projection and projection.use_bias),
    )
