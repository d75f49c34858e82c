"""Computes the results that `on_jax_test.py` checks, with Keras on JAX.

It is a separate program, because JAX can only split a CPU into devices at the start. It prints one JSON object.
"""

import contextlib
import dataclasses
import io
import json
import sys

DEVICES = 4


def command():
    """(Exit status, output) of the command `plan`. It runs first, because it chooses the backend itself."""
    from training.__main__ import main

    printed = io.StringIO()
    arguments = [f"devices={DEVICES}", "--images=1600", "--classes=10", "model.config.num_layers=1"]
    with contextlib.redirect_stdout(printed):
        status = main(["plan", "digits", *arguments])
    return status, printed.getvalue()


def plans(requests):
    """{name: plan or error} for {name: (number of devices, changes of the digits recipe)}."""
    from training import recipes
    from training.errors import InputError
    from training.planning.plan import plan, with_devices
    from training.recipe.assignments import override

    results = {}
    for name, (devices, assignments) in requests.items():
        try:
            recipe = with_devices(override(recipes.load("digits"), assignments), devices)
            found = plan(recipe, images=1797, classes=10)
            facts = {"text": str(found), "total_flops": found.total_flops, "expected_flops": found.expected_flops}
            fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
            results[name] = facts | fields | {"recipe": None, "memory": dataclasses.asdict(found.memory)}
        except InputError as error:
            results[name] = {"error": str(error)}
    return results


def keras_cv():
    """Whether KerasCV changes and mixes images with the random generator of a deterministic TensorFlow."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tests.training.data.augment.building_test import model_of, pipeline
    from training.data.augment import build_augmentation
    from training.recipe.config import Augment

    keras.utils.set_random_seed(3)
    tf.config.experimental.enable_op_determinism()
    changes = {"crop": "random", "crop_from": 40, "flip": True, "randaugment_ops": 1, "erasing": 0.5, "mixup": 0.8}
    augmentation = build_augmentation(model_of(), Augment(library="keras_cv", **changes))
    images, labels = pipeline(augmentation)[:5], np.eye(3, dtype="float32")[[0, 1, 2, 1, 0]]
    mixed = tf.data.Dataset.range(1).map(lambda i: augmentation.mix(images, labels, tf.stack([i, 3]), 3)[0])
    [mixed] = mixed.as_numpy_iterator()
    is_mixed = (mixed != images).any(axis=(1, 2, 3))
    return {
        "backend": keras.backend.backend(),
        "changed": len({image.tobytes() for image in images}),
        "mixed": is_mixed.tolist(),
    }


if __name__ == "__main__":
    found = {"command": command(), "plans": plans(json.loads(sys.argv[1])), "keras_cv": keras_cv()}
    print(json.dumps(found))
