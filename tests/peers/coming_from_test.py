"""The code of other projects on the pages `docs/coming_from` has names that exist in these projects."""

import keras_hub
import numpy as np
import pytest
import timm
import transformers
from zeromodels.models import vit

import keras_vit
from tests.coming_from_test import blocks, expanded, names_of_weights, patterns_of_weights
from tests.documented_code import check_names
from tests.peers.torch_models import random_images
from tests.test_case import assert_close, canonical_weights, compute, randomize


@pytest.mark.parametrize(
    ("page", "label", "modules"),
    [
        ("timm", "timm", {"timm": timm}),
        ("keras_hub", "KerasHub", {"keras_hub": keras_hub}),
        ("zeromodels", "ZeroModels", vars(vit)),
    ],
)
def test_names_and_arguments(page, label, modules):
    check_names("".join(blocks(page, label)), modules)


def test_names_of_weights_of_keras_hub():
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(32, 32, 3), patch_size=16, num_layers=1, num_heads=3, hidden_dim=24, mlp_dim=36
    )
    model = keras_hub.models.ViTImageClassifier(backbone, num_classes=5)
    assert names_of_weights("keras_hub")[0] == {weight.path for weight in model.weights}


def test_transformers_has_no_models_for_tensorflow():
    assert int(transformers.__version__.split(".")[0]) >= 5
    assert not hasattr(transformers, "TFViTForImageClassification")


def test_weights_of_zeromodels():
    """With weights copied by the names on the page, ZeroModels' ViT, which `make bench` measures, has our outputs."""
    config = keras_vit.ViTConfig(patch_size=8, hidden_dim=24, num_layers=2, num_heads=3, mlp_dim=36, mlp="gelu_exact")
    ours = randomize(keras_vit.ViT(config, input_shape=(32, 48, 3), classes=7, classifier_activation=None))
    sizes = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 1.5, "num_classes": 7}
    theirs = vit.ViTImageClassify(image_size=(32, 48), **sizes)
    values, sources = canonical_weights(ours), {}
    for their_pattern, pattern in patterns_of_weights("zeromodels"):
        for block in range(2):
            names = expanded(pattern, block)
            for their_name in expanded(their_pattern, block):
                part = their_name.rpartition("/")[-1]
                sources[_without_number(their_name)] = [name for name in names if name.endswith(part)] or names
    for weight in theirs.weights:
        arrays = [values.pop(name).reshape(*weight.shape[:-1], -1) for name in sources[_without_number(weight.path)]]
        weight.assign(np.concatenate(arrays, axis=-1))
    assert not values
    images = random_images(32, 48)
    assert_close(compute(ours, [images]), compute(theirs, [images]))


def _without_number(path):
    """The last two parts of a path. The part before them is numbered by Keras."""
    return "/".join(path.split("/")[-2:])
