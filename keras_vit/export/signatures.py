"""The signatures that a model can have in a SavedModel, and what they return. Shapes: B batch, H W image."""

import keras
from keras import ops

from keras_vit.analysis.attention import BLOCKS, has_rollout, rollout
from keras_vit.analysis.features import patch_tokens, representation
from keras_vit.analysis.inputs import merges_tokens
from keras_vit.checks import check_choice
from keras_vit.graph import leaves
from keras_vit.outputs import ACTIVATIONS, output_of
from keras_vit.preprocessing import preprocessing_layer, vision_model


def available_signatures(model):
    """Names of the signatures that a model can have, in the order of `SIGNATURES`."""
    names = [*PREDICTING]
    if returns_masks(model):
        return names
    names.append("embed")
    has_blocks = any(isinstance(layer, BLOCKS) for layer in vision_model(model).layers)
    if has_blocks and not merges_tokens(model):
        names += ["tokens", "explain"] if has_rollout(model) else ["tokens"]
    return names


def check_signatures(model, names):
    """Returns the chosen signatures in the order of `SIGNATURES`. `None` chooses all that the model can have."""
    available = available_signatures(model)
    if names is None:
        return available
    if not isinstance(names, (list, tuple)):
        raise TypeError(f"signatures must be a list of names, or None for all. Received: {names!r}")
    for name in names:
        check_choice("signatures", name, SIGNATURES)
    missing = [name for name in names if name not in available]
    if missing:
        raise ValueError(
            f"{model.name!r} cannot have the signature {missing[0]!r}. Choose from: {', '.join(available)}. "
            f"Received: signatures={names!r}"
        )
    if "serving_default" not in names:
        raise ValueError(
            f"signatures must contain 'serving_default': it answers requests without a signature name, and the "
            f"comparison with the model needs it. Received: {names!r}"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"signatures must contain each name only once. Received: {names!r}")
    return [name for name in available if name in names]


def probabilities(model, images):
    """Returns the probabilities for prepared images, (B, classes) or (B, H, W, classes), also of logits."""
    outputs, output = ops.cast(model(images, training=False), "float32"), output_of(model)
    return keras.activations.get(ACTIVATIONS[output.kind])(outputs) if output.has_logits else outputs


def values(model, images):
    """Returns the values for prepared images, (B, values)."""
    return ops.cast(model(images, training=False), "float32")


PREDICTING = ("serving_default", "predict_pixels", "predict_pixels_float")
"""Signatures that return what the model returns."""
_FEATURES = {
    "embed": ("embedding", representation),
    "tokens": ("tokens", patch_tokens),
    "explain": ("rollout", rollout),
}
SIGNATURES = (*PREDICTING, *_FEATURES)


def output_of_signature(model, signature):
    """(name of a signature's main output, function that computes it from a model and prepared images)"""
    predicted = ("values", values) if output_of(model).kind == "values" else ("probabilities", probabilities)
    return predicted if signature in PREDICTING else _FEATURES[signature]


def returns_masks(model):
    """Whether a SavedModel of a model returns a mask, because the model's output is a map of classes."""
    return output_of(model).kind == "class_map"


def check_output(model):
    """Checks that the meaning of a model's inputs and outputs is known, so that it can be exported."""
    output, preprocessing = output_of(model), preprocessing_layer(model)
    has_scores = ACTIVATIONS[output.kind] is not None and output.activation in ("softmax", "sigmoid", None)
    is_known = has_scores or output.kind == "values"
    has_known_shape = len(model.output_shape) == (4 if output.kind == "class_map" else 2)
    needs_two = output.kind == "class_map" or (output.kind == "classes" and output.has_logits)
    if not is_known or not has_known_shape or (needs_two and model.output_shape[-1] < 2):
        raise ValueError(
            f"Only models that return classes, labels, values or maps of classes can be exported. A classifier must "
            f"return probabilities, or logits of at least two classes, of shape (B, classes). A segmentation model "
            f"must return probabilities or logits of at least two classes for each pixel, (B, H, W, classes). For "
            f"other numbers, call keras_vit.set_output. Received: a model that returns {output.kind} of shape "
            f"{model.output_shape} from layer {model.layers[-1].name!r}, with the activation {output.activation}."
        )
    first = next(layer for layer in leaves(model) if not isinstance(layer, keras.layers.InputLayer))
    if not preprocessing.normalize and first is not preprocessing:
        raise ValueError(
            f"{model.name!r} changes pixels before its preprocessing layer, so it is unknown how images must be "
            f"normalised. Build the inner model with include_preprocessing=True, so that it normalises them itself."
        )
