"""The signatures that a model can have in a SavedModel, and what they return. Shapes: B batch, H W image."""

import keras

from keras_vit.analysis.attention import BLOCKS, has_rollout, rollout
from keras_vit.analysis.features import patch_tokens, representation
from keras_vit.analysis.inputs import merges_tokens
from keras_vit.checks import check_choice
from keras_vit.export.answers import ANSWERS, answer_of
from keras_vit.graph import leaves
from keras_vit.outputs import output_of
from keras_vit.preprocessing import preprocessing_layer, vision_model
from keras_vit.text.image_text_model import ImageTextModel


def available_signatures(model):
    """Names of the signatures that a model can have, in the order of `SIGNATURES`."""
    names, answer = [*PREDICTING], answer_of(model)
    if answer.in_original:
        # After a crop, the model does not see all pixels.
        return names + [*answer.in_original] * (preprocessing_layer(model).crop is None)
    if output_of(model).kind != "embedding":  # Otherwise `serving_default` returns it.
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


PREDICTING = ("serving_default", "predict_pixels", "predict_pixels_float")
"""Signatures that return what the model returns."""
ORIGINAL = ("predict_original", "instances", "panoptic")
"""Signatures that return what the outputs of the model mean for the pixels of the original images."""
_FEATURES = {
    "embed": (("embedding",), representation),
    "tokens": (("tokens",), patch_tokens),
    "explain": (("rollout",), rollout),
}
SIGNATURES = (*PREDICTING, *ORIGINAL, *_FEATURES)


def output_of_signature(model, signature):
    """(names of a signature's main outputs, function that computes them from a model and prepared images)"""
    if signature in _FEATURES:
        return _FEATURES[signature]
    answer = answer_of(model)
    return answer.names, answer.compute


def check_output(model):
    """Checks that the meaning of a model's inputs and outputs is known, so that it can be exported."""
    if isinstance(model, ImageTextModel):
        raise ValueError(
            f"{model.name!r} has two encoders. Write both with keras_vit.export_image_text_model, or export "
            f"model.classifier(names) or model.image_encoder."
        )
    output, preprocessing, shape = output_of(model), preprocessing_layer(model), model.output_shape
    if isinstance(shape, list):  # The model has several outputs.
        shape = keras.tree.map_structure(lambda tensor: tensor.shape, model.output)
    answer = ANSWERS.get(output.kind)
    if answer is None or not answer.accepts(output, shape):
        raise ValueError(
            f"Only models that return {' or '.join(ANSWERS)} can be exported. A classifier must "
            f"return probabilities, or logits of at least two classes, of shape (B, classes). A segmentation model "
            f"must return probabilities or logits of at least two classes for each pixel, (B, H, W, classes), or "
            f"{{'masks': logits (B, h, w, queries), 'objects': logits (B, queries, classes + 1)}}. Depth has the shape "
            f"(B, H, W, 1), normals (B, H, W, 3), an embedding (B, D). For "
            f"other numbers, call keras_vit.set_output. Received: a model that returns {output.kind} of shape "
            f"{shape} from layer {model.layers[-1].name!r}, with the activation {output.activation}."
        )
    first = next(layer for layer in leaves(model) if not isinstance(layer, keras.layers.InputLayer))
    if not preprocessing.normalize and first is not preprocessing:
        raise ValueError(
            f"{model.name!r} changes pixels before its preprocessing layer, so it is unknown how images must be "
            f"normalised. Build the inner model with include_preprocessing=True, so that it normalises them itself."
        )
