"""SavedModels of models with rotary positions, for images of any size. The other files here test the other exports."""

import numpy as np
import pytest

from tests.export.exports import rotary, save_pixel_signature
from tests.test_case import assert_close


@pytest.mark.slow
@pytest.mark.parametrize(("jit_compile", "sizes"), [(False, [(12, 15), (20, 9)]), (True, [(20, 9)])])
def test_images_of_any_size(jit_compile, sizes, tmp_path):
    import tensorflow as tf

    model = rotary(input_shape=(None, None, 3))
    save_pixel_signature(model, tmp_path, jit_compile, image_size=(12, 15), batch_sizes=(2,))
    serve = tf.saved_model.load(str(tmp_path)).signatures["predict_pixels_float"]
    for size in sizes:
        images = np.random.default_rng(7).uniform(0, 255, (2, *size, 3)).astype("float32")
        expected = model.predict(images / 127.5 - 1, verbose=0)
        assert np.ptp(expected, axis=0).max() > 0.01
        assert_close(serve(images=tf.constant(images))["probabilities"], expected)
