"""The command measures differences of logits."""

import numpy as np
import pytest

import keras_vit
from benchmarks import numerics
from benchmarks.numerics import differences, main, prepared, table
from tests.test_case import randomize


@pytest.fixture
def file(tmp_path):
    model = randomize(keras_vit.ViT("Ti/16", input_shape=(224, 224, 3), num_layers=1, classes=5))
    keras_vit.save_weights(model, tmp_path / "vit.npz", "google")
    return tmp_path / "vit.npz"


@pytest.mark.slow
def test_table_of_differences(file, tmp_path):
    [path] = numerics.PHOTOGRAPHS.glob("cat.jpg")
    rows = differences(file, [path])
    assert len(rows) == len(numerics.SETTINGS) + len(numerics.PREPARATIONS)
    assert all(value > 0 and same in (0, 1) for _, _, value, same in rows)
    # A larger change of the epsilon has a larger effect.
    assert rows[1][2] < rows[2][2]
    assert table([("a", "b", 0.0205, 3)], 4).endswith("| a | b | 0.02 | 3 of 4 |")
    with pytest.raises(SystemExit, match=r"contains no files that end in \.jpg"):
        main(["--images", str(tmp_path)])


def test_prepared_images():
    [path] = numerics.PHOTOGRAPHS.glob("cat.jpg")
    plain, cropped = prepared([path], 32), prepared([path], 32, crop=40)
    assert plain.shape == cropped.shape == (1, 32, 32, 3)
    assert -1 <= plain.min() < -0.5 < 0.5 < plain.max() <= 1
    assert np.abs(plain - cropped).mean() > 0.05
