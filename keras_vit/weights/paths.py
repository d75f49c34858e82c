"""Canonical paths of weights: the name of a layer and the path inside the layer, as in `predictions/kernel`."""

import re

HEAD = ("predictions/", "distillation_predictions/")
"""Beginnings of the paths of a classifier"""
DENSE_HEAD = ("head", "detection_tokens")
"""Beginnings of the names of layers that belong to a head for pixels or objects, besides the classifier"""
TRUNK = ("stem_", "stage_")
"""Beginnings of the paths of a ResNet's stem and stages"""
POSITIONS = re.compile(r"position_embedding(_\d+)?/embedding")
"""Pattern of the paths of the position table, or of those of all blocks"""
UNIT = r"stage_(\d+)_unit_(\d+)/"
"""Pattern of the beginning of the paths of a ResNet's unit, with the indices of its stage and unit"""
WITH_WEIGHTS = re.compile(
    r"stem_.*|patch_embedding|class_token|distillation_token|register_tokens|detection_tokens|position_embedding(?:_\d+)?"
    r"|pre_norm"
    r"|encoder_block_\d+|encoder_norm|pooling|pooled_norm|pre_logits|projection|predictions|distillation_predictions"
    r"|stage_\d+_(?:global_)?unit_\d+|final_norm|(?:tokenizer|token_relation|token_projector)_\d+"
    r"|(?:lateral|pyramid|token_embedding|head)_.*|token_transformer|head|sky_predictions"
)
"""Pattern of the names of our layers that have weights"""
_WITHOUT_WEIGHTS = re.compile(
    # Added by an argument.
    r"distillation_pooling|dropout|mean_logits|patch_dropout|probabilities|rotary_positions|unit_length"
)


def is_layer_name(name):
    """Whether `name` can be the name of a layer with weights, or of one that an argument adds, in our models."""
    return bool(WITH_WEIGHTS.fullmatch(name) or _WITHOUT_WEIGHTS.fullmatch(name))


def layer_of(path):
    """Name of the layer that contains a weight."""
    return path.partition("/")[0]
