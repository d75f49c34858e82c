"""Fine-tuning starts with weights that were trained at half of the image size."""

import keras
import numpy as np
import pytest
from keras import ops
from sklearn.datasets import load_digits

import keras_vit

SIZE, NUM_TRAIN = 16, 1400
CONFIG = keras_vit.ViTConfig(patch_size=4, hidden_dim=24, num_layers=1, num_heads=3, mlp_dim=48)


def _digits(size):
    digits = load_digits()
    pixels = ops.image.resize(digits.images[..., None] * (255 / 16), (size, size), data_format="channels_last")
    return np.asarray(ops.convert_to_numpy(pixels), "float32"), digits.target


@pytest.mark.slow
def test_fine_tuning_at_twice_the_size_starts_above_chance(tmp_path):
    """Chance is a tenth. ViT (arXiv 2010.11929, section 3.2) resamples the position embeddings for larger images."""
    model = keras_vit.ViT(CONFIG, input_shape=(SIZE, SIZE, 1), classes=10, include_preprocessing=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
    images, labels = _digits(SIZE)
    model.fit(images[:NUM_TRAIN], labels[:NUM_TRAIN], batch_size=64, epochs=20, shuffle=False, verbose=0)
    keras_vit.save_weights(model, tmp_path / "digits", "timm")
    larger = keras_vit.ViT(
        CONFIG, weights=tmp_path / "digits", input_shape=(2 * SIZE, 2 * SIZE, 1), classes=10, include_preprocessing=True
    )
    assert "position_embedding/embedding" in keras_vit.describe(larger).adaptations
    images, labels = _digits(2 * SIZE)
    predictions = ops.convert_to_numpy(larger(images[NUM_TRAIN:])).argmax(axis=1)
    assert (predictions == labels[NUM_TRAIN:]).mean() > 0.3
