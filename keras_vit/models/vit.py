"""The factory `ViT`, and one function for each published variant."""

import collections.abc
import functools
import os
import typing

import keras

from keras_vit.architectures.vision_transformer import VARIANTS, ViTConfig, ViTConfigArguments, get_variant
from keras_vit.checks import check_positive_integer
from keras_vit.encoder import encode
from keras_vit.heads.classifier import classify, classify_distilled, pool, represent
from keras_vit.models.building import SharedArguments, functional_model, image_inputs, prepare, with_weights
from keras_vit.models.factories import keras_application
from keras_vit.models.functional_vit import FunctionalViT
from keras_vit.weights.catalogue import FAMILIES
from keras_vit.weights.loading import check_kind


def ViT(
    variant: str | ViTConfig = "B/16",
    include_top: bool = True,
    weights: str | os.PathLike | None = None,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    classes: int = 1000,
    classifier_activation: str | collections.abc.Callable | None = "softmax",
    include_preprocessing: bool = False,
    name: str | None = None,
    **config_changes: typing.Unpack[ViTConfigArguments],
) -> keras.Model:
    """Builds a Vision Transformer as a functional `keras.Model`.

    "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale" (arXiv 2010.11929). Numerics are those
    of the authors' code: a LayerNorm epsilon of 1e-6, tanh GELU, and a classifier that starts at zero. The layers are
    named `preprocessing`, `patch_embedding`, `class_token`, `position_embedding`, `encoder_block_0` and so on,
    `encoder_norm`, `pooling`, `pre_logits`, `predictions`.

    Args:
        variant: A key of `keras_vit.VARIANTS`, such as `"B/16"`, or a `keras_vit.ViTConfig`.
        include_top: Whether to end with the classifier. `False`: the model returns the pooled vector (B, D), or with
            `pooling=None` the normalised tokens (B, T, D).
        weights: `None`: newly initialised weights. The path of a `.weights.h5` file: weights that `model.save_weights`
            wrote for a model of the same shape. For published weights, pass a name from `keras_vit.list_weights`, the
            part of such a name after the `@`, `"imagenet"`, or a path or address as in `keras_vit.load_weights`.
            Published weights define the numerics (GELU, epsilon, pooling, order of norms), except for fields in
            `config_changes`. A warning is logged if such a field differs from the config of the weights.
        input_shape: `(height, width, channels)`, by default `(224, 224, 3)` or the image size of the published weights.
            Channels are last, whatever Keras's global setting is. `None` for height and width makes a model for images
            of any size, with a position table for 224 pixels.
        input_tensor: Keras tensor to use as the model's input.
        classes: Number of classes.
        classifier_activation: Activation of the classifier: `"softmax"`, `None` for logits, or any activation of Keras.
        include_preprocessing: `True`: the model expects pixels in [0, 255] and normalises them. `False`: the model
            expects the outputs of `keras_vit.preprocess_input`.
        name: The model's name.
        **config_changes: Fields of `ViTConfig` to change in the variant.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, classes), float32.

    Raises:
        TypeError: If a name in `config_changes` is not a field of `ViTConfig`.
        ValueError: If a value is invalid or not available, or if weights do not fit. The message lists accepted values.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", classes=10, input_shape=(64, 96, 3), num_layers=2, pooling="avg")
    >>> model.output_shape
    (None, 10)
    """
    config = variant if isinstance(variant, ViTConfig) else get_variant(variant)
    requested = config.replace(**config_changes)
    shared = SharedArguments(
        include_top, weights, input_tensor, input_shape, None, classes, classifier_activation, include_preprocessing
    )

    def match(checkpoint):
        check_kind(checkpoint, ViTConfig)
        check_preprocessing(checkpoint)
        matched = requested if variant is config else _config_of_weights(config, checkpoint, config_changes)
        return functools.partial(build, matched, grid_size=checkpoint.grid_size), "keep"

    build = functools.partial(build_model, name=name or _model_name(variant, requested))
    return with_weights(build, requested, shared, match, None if variant is config else variant)


def build_model(config, shared, name=None, grid_size=None):
    """Builds a newly initialised model for `SharedArguments`. `grid_size` is as in `encode`."""
    if shared.include_top:
        if config.pooling is None:
            raise ValueError(
                "include_top=True needs a pooling, such as pooling='token'. To get all tokens, pass include_top=False."
            )
        check_positive_integer("classes", shared.classes)
    inputs = image_inputs(shared)
    images = prepare(inputs, config, shared.include_preprocessing)
    tokens, sizes = encode(images, config, grid_size)
    x = pool(tokens, config, sizes)
    if shared.include_top:
        head = int(shared.classes), shared.classifier_activation, config
        x = classify_distilled(x, tokens, *head) if config.distillation_token else classify(represent(x, config), *head)
    return functional_model(inputs, x, name or "vit", FunctionalViT)


def check_preprocessing(checkpoint):
    """Raises a ValueError if the weights' pixel normalisation is unknown, because outputs could then be wrong."""
    if checkpoint.preprocessing is None:
        raise ValueError(
            f"{checkpoint.source} does not define how pixels are normalised. Put its config.json "
            f"(preprocessor_config.json for transformers) beside it, or call keras_vit.from_pretrained(..., "
            f"family=...) with one of {', '.join(FAMILIES)}."
        )


def _config_of_weights(config, checkpoint, changes):
    """Returns the weights' config with the variant's patch size and the changes.

    Raises a ValueError if a size that is not in `changes` differs between the weights and the variant.
    """
    published_config = checkpoint.config
    sizes = [field for field in ("hidden_dim", "num_layers", "num_heads", "mlp_dim") if field not in changes]
    different = [field for field in sizes if getattr(published_config, field) != getattr(config, field)]
    if (published_config.stem and published_config.stem.stage_depths) != (config.stem and config.stem.stage_depths):
        different.append("stem")
    if different:
        differences = ", ".join(
            f"{field}={getattr(published_config, field)}, not {getattr(config, field)}" for field in different
        )
        raise ValueError(
            f"{checkpoint.source} contains weights for a model of another size: {differences}. Choose the variant of "
            f"the weights, or build the model with keras_vit.from_pretrained."
        )
    return published_config.replace(**{"patch_size": config.patch_size, **changes})


def _model_name(variant, config):
    kind = "axial_vit" if config.axial else "vit"
    if isinstance(variant, ViTConfig):
        return kind
    return f"{kind}_{variant.replace('/', '').replace('-', '_').replace('+', '_')}"


def published(function_name, variant, module=__name__, **changes):
    """Returns the function of `module` that builds a published variant with some changes."""
    default_pooling = VARIANTS[variant].replace(**changes).pooling
    described = "".join(f", {name}={value!r}" for name, value in changes.items())
    kind = "Axial-ViT" if changes.get("axial") else "ViT"
    about = f"Builds {kind}-{variant}, with the arguments of `keras.applications`."
    if not changes:
        about += "\n\n    If published weights are loaded, they define the default of `pooling`."

    def build_vit(pooling, **options):
        return ViT(variant, **options, **changes | ({} if pooling == default_pooling else {"pooling": pooling}))

    same_as = f'keras_vit.ViT("{variant}"{described}, ...)'
    return keras_application(build_vit, function_name, about, same_as, ViTConfig, default_pooling, module=module)


ViTTi16 = published("ViTTi16", "Ti/16")
ViTS16 = published("ViTS16", "S/16")
ViTS8 = published("ViTS8", "S/8")
ViTS14 = published("ViTS14", "S/14")
ViTS32 = published("ViTS32", "S/32")
ViTM16 = published("ViTM16", "M/16")
ViTB8 = published("ViTB8", "B/8")
ViTB14 = published("ViTB14", "B/14")
ViTB16 = published("ViTB16", "B/16")
ViTB32 = published("ViTB32", "B/32")
ViTL14 = published("ViTL14", "L/14")
ViTL16 = published("ViTL16", "L/16")
ViTL32 = published("ViTL32", "L/32")
ViTSo400m14 = published("ViTSo400m14", "So400m/14")
ViTSo400m16 = published("ViTSo400m16", "So400m/16")
ViTH14 = published("ViTH14", "H/14")
ViTH16 = published("ViTH16", "H/16")
ViTg14 = published("ViTg14", "g/14")
ViTgOpt16 = published("ViTgOpt16", "g-opt/16")
ViTG14 = published("ViTG14", "G/14")

__all__ = [
    "ViT",
    "ViTB8",
    "ViTB14",
    "ViTB16",
    "ViTB32",
    "ViTG14",
    "ViTH14",
    "ViTH16",
    "ViTL14",
    "ViTL16",
    "ViTL32",
    "ViTM16",
    "ViTS8",
    "ViTS14",
    "ViTS16",
    "ViTS32",
    "ViTSo400m14",
    "ViTSo400m16",
    "ViTTi16",
    "ViTg14",
    "ViTgOpt16",
]
