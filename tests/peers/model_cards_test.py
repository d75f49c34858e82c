"""The code in model cards loads saved weights in timm, transformers and KerasHub."""

import re

import pytest

import keras_vit
from tests.weights.converter_case import make
from tests.weights.saving_test import FOLDERS

CLASSES = {
    "timm": ("VisionTransformer", "VisionTransformer"),
    "huggingface": ("ViTForImageClassification", "ViTModel"),
    "keras_hub": ("ViTImageClassifier", "ViTBackbone"),
}


@pytest.mark.parametrize("include_top", [True, False])
@pytest.mark.parametrize("format", FOLDERS)
def test_code_of_a_card(format, include_top, tmp_path, monkeypatch):
    changes = {"num_layers": 1, "patch_size": 4, "include_top": include_top}
    keras_vit.save_weights(make(FOLDERS[format], (8, 8, 3), **changes), tmp_path, format, card=True)
    code, _ = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    assert type(names["model"]).__name__ == CLASSES[format][not include_top]
