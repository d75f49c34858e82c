"""A fixed amount of work, by whose processor time `.ci/run` judges the processor time of `make test`.

The machines that run the tests differ by a factor of three. The work below is of the same kinds as that of the tests,
in about the same proportions, so the ratio of the two times hardly depends on the machine. `.ci/limit` contains the
largest ratio that is allowed. This file uses nothing of this repository and is never changed: a change would move the
limit.

    python tests/yardstick.py

runs the work in two processes at the same time, as the tests run.
"""

import ast
import json
import multiprocessing
import os
import pathlib
import tempfile
import time


def plain_python():
    """Reads, compiles and prints source code."""
    for module in ("argparse", "ast", "inspect", "typing", "tarfile", "zipfile"):
        source = pathlib.Path(os.__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
        tree = ast.parse(source)
        names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
        json.loads(json.dumps({"names": sorted(names), "source": ast.unparse(tree)}))
        compile(tree, module, "exec")


def block(keras, inputs, width):
    """An encoder block of a Vision Transformer."""
    layers = keras.layers
    values = layers.LayerNormalization(epsilon=1e-6)(inputs)
    values = layers.MultiHeadAttention(3, width // 3)(values, values)
    inputs = layers.Add()([inputs, values])
    values = layers.LayerNormalization(epsilon=1e-6)(inputs)
    values = layers.Dense(2 * width, activation="gelu")(values)
    return layers.Add()([inputs, layers.Dense(width)(values)])


def model(keras, width=12):
    layers = keras.layers
    inputs = keras.Input((12, 18, 3))
    values = layers.Conv2D(width, 6, strides=6)(inputs)
    values = layers.BatchNormalization()(values)
    values = layers.Reshape((6, width))(values)
    for _ in range(2):
        values = block(keras, values, width)
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling1D()(values)))


def eager_operations(keras, images):
    """Builds a model, calls it operation by operation, and gives its variables other values."""
    built = model(keras)
    built(images)
    built(images[:2], training=True)
    for variable in built.weights:
        variable.assign(keras.ops.convert_to_numpy(variable) + 0.5)
    copy = type(built).from_config(json.loads(json.dumps(built.get_config())))
    copy.set_weights(built.get_weights())
    return copy


def files(keras, built):
    """Saves a model, and opens its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.keras")
        built.save(path)
        keras.saving.load_model(path)


def compiled_steps(keras, built, images):
    """Trains for two steps, and predicts."""
    built.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    built.fit(images, images[:, 0, 0, 0] > 0, batch_size=2, verbose=0)
    built.predict(images, verbose=0)


def imports():
    import keras

    return keras


def work(number):
    """The work of one new process. Returns the seconds of processor time of each part."""
    os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    spent = {}

    def timed(times, part, *arguments):
        begun = sum(os.times()[:4])
        for _ in range(times):
            result = part(*arguments)
        spent[part.__name__] = round(sum(os.times()[:4]) - begun, 1)
        return result

    keras = timed(1, imports)
    images = keras.random.normal((4, 12, 18, 3), seed=number)
    timed(3, plain_python)
    built = timed(40, eager_operations, keras, images)
    timed(3, files, keras, built)
    timed(1, compiled_steps, keras, built, keras.ops.convert_to_numpy(images))
    return spent


def main():
    begun = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for spent in pool.map(work, range(2), chunksize=1):
            print(spent)
        pool.close()
        pool.join()
    print(f"{sum(os.times()[:4]):.1f} s of processor time, {time.monotonic() - begun:.1f} s by the clock")


if __name__ == "__main__":
    main()
