"""The code of timm and KerasHub on the pages `docs/coming_from` has names that exist in these projects."""

import keras_hub
import pytest
import timm
import transformers

from tests.coming_from_test import blocks, names_of_weights
from tests.documented_code import check_names


@pytest.mark.parametrize(
    ("page", "label", "modules"),
    [("timm", "timm", {"timm": timm}), ("keras_hub", "KerasHub", {"keras_hub": keras_hub})],
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
