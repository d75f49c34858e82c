"""Changes and mixes images with KerasCV and the random generator of a deterministic TensorFlow, with Keras on JAX.

    python -m tests.training.keras_cv_program

Run by `distribution_test.py`, which checks the results. They are printed as JSON.
"""

import json

import keras
import numpy as np
import tensorflow as tf

from tests.training.data.augment.building_test import model_of, pipeline
from training.data.augment import build_augmentation
from training.recipe.config import Augment


def main():
    keras.utils.set_random_seed(3)
    tf.config.experimental.enable_op_determinism()
    changes = {"crop": "random", "crop_from": 40, "flip": True, "randaugment_ops": 1, "erasing": 0.5, "mixup": 0.8}
    augmentation = build_augmentation(model_of(), Augment(library="keras_cv", **changes))
    images, labels = pipeline(augmentation)[:5], np.eye(3, dtype="float32")[[0, 1, 2, 1, 0]]
    mixed = tf.data.Dataset.range(1).map(lambda i: augmentation.mix(images, labels, tf.stack([i, 3]), 3)[0])
    [mixed] = mixed.as_numpy_iterator()
    found = {
        "backend": keras.backend.backend(),
        "changed": len({image.tobytes() for image in images}),
        "mixed": (mixed != images).any(axis=(1, 2, 3)).tolist(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
