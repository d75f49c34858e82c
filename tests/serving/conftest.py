"""A SavedModel, and the program that serves it."""

import pytest

import keras_vit
from tests.serving.program import COMPILER, build
from tests.test_case import randomize

CONFIG = keras_vit.ViTConfig(patch_size=(2, 2), hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20)
LABELS = ["ant", "bee", "cat", "dog", "elk"]
TOP_K = 3


@pytest.fixture(scope="session")
def program(request):
    """Path of the program, compiled once for all processes and runs."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    return build(request.config.cache.mkdir("serving"))


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """A model with 8 x 12 patches, and the folder that it is exported to."""
    model = keras_vit.ViT(CONFIG, input_shape=(16, 24, 3), classes=len(LABELS), include_preprocessing=True)
    randomize(model, scale=0.5)
    path = tmp_path_factory.mktemp("models") / "pets"
    return model, keras_vit.export_saved_model(model, path, labels=LABELS, top_k=TOP_K)
