"""Models on other backends are exported by a process with TensorFlow."""

import importlib.util
import json
import operator
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export import elsewhere
from keras_vit.export.elsewhere import with_tensorflow
from tests.models.tiny import tiny_model
from tests.test_case import TENSORFLOW, assert_close, randomize

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
    pytest.mark.each_backend,
]
elsewhere_only = pytest.mark.skipif(TENSORFLOW, reason="Keras runs on TensorFlow here")
here_only = pytest.mark.skipif(not TENSORFLOW, reason="Keras runs on another backend here")


@pytest.fixture(scope="module")
def model():
    changes = {"rotary": keras_vit.RotaryConfig("mixed"), "qkv_bias": "no_key", "num_register_tokens": 2}
    changes |= {"mlp_inner_norm": True, "attention_inner_norm": True, "block_norm": "post", "num_layers": 1}
    return randomize(tiny_model(classifier_activation="softmax", **changes), scale=0.5)


@elsewhere_only
def test_without_tensorflow_nothing_is_written(model, tmp_path, monkeypatch):
    monkeypatch.setattr(elsewhere.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"TensorFlow is needed to export .* is not installed. Install it with pip"):
        keras_vit.export_saved_model(model, tmp_path / "pets", labels=list("abcde"))
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@here_only
def test_with_tensorflow_it_is_a_call(model):
    seen = []
    with_tensorflow(lambda *arguments, **options: seen.append((arguments, options)), model, folder="x")
    assert seen == [((model,), {"folder": "x"})]


@elsewhere_only
def test_a_saved_model_answers_as_the_model_predicts(model, tmp_path):
    """On the photographs, the export passes its own comparison; parity_test.py tests that comparison."""
    labels = [f"class {index} " + "x" * 40_000 for index in range(5)]  # Longer than a command line can be.
    folder = keras_vit.export_saved_model(model, tmp_path, labels=labels, signatures=["serving_default"])
    assert (folder / "saved_model.pb").is_file()
    assert (folder / "assets" / "labels.txt").read_text().splitlines() == labels
    facts = json.loads((folder / "keras_vit.json").read_text())
    assert facts["versions"]["keras_backend"] == keras.backend.backend()
    assert facts["parity"]["images"] == 4
    assert set(facts["parity"]["max_difference"]) == {"serving_default"}
    assert 0 < max(facts["parity"]["max_difference"].values()) <= 1e-5


# On JAX: trains a model with patch dropout for two steps, exports it, and saves its predictions.
_TRAINS_AND_EXPORTS = """
import sys
import keras, numpy as np
import keras_vit
from tests.models.tiny import tiny_model
from tests.test_case import randomize
folder, outputs = sys.argv[1:]
assert keras.backend.backend() == "jax"
model = randomize(tiny_model(classifier_activation="softmax", num_layers=1, patch_dropout_rate=0.5), scale=0.5)
before = model.get_weights()
images = np.random.default_rng(0).integers(0, 256, (8, 8, 9, 3)).astype("uint8")
normalized = keras_vit.preprocess_input(images, model)
model.compile("sgd", "sparse_categorical_crossentropy")
model.fit(normalized, np.arange(8) % 5, batch_size=4, verbose=0)
assert any(np.any(one != other) for one, other in zip(before, model.get_weights()))
keras_vit.export_saved_model(model, folder, signatures=["serving_default", "predict_pixels"])
np.savez(outputs, images=images, probabilities=model.predict(normalized, verbose=0))
"""


@pytest.mark.slow
@here_only
@pytest.mark.combination(
    "a model with patch dropout, trained on JAX and exported as SavedModel", "TensorFlow gives the answers of JAX"
)
def test_a_model_that_was_trained_on_jax(tmp_path):
    import tensorflow as tf

    outputs = tmp_path / "outputs.npz"
    command = [sys.executable, "-c", _TRAINS_AND_EXPORTS, tmp_path / "exported", outputs]
    root = str(pathlib.Path(__file__).parents[2])
    subprocess.run(command, cwd=root, env=os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": root}, check=True)
    found = np.load(outputs)
    predict = tf.saved_model.load(str(tmp_path / "exported" / "1")).signatures["predict_pixels"]
    assert np.ptp(found["probabilities"], axis=0).max() > 0.01
    assert_close(predict(images=tf.constant(found["images"]))["probabilities"], found["probabilities"])


@pytest.fixture
def process(monkeypatch):
    """Function (code) that makes `with_tensorflow` start a process with this code instead of one that imports
    TensorFlow; and the environment that the process gets."""
    run, seen = subprocess.run, {}

    def start(code):
        def run_code(command, env, **options):
            assert command[0] == sys.executable
            seen.update(env)
            return run([command[0], "-c", code, command[-1]], env=env, **options)

        monkeypatch.setattr(elsewhere.subprocess, "run", run_code)
        return seen

    return start


@elsewhere_only
def test_what_the_process_is_given(model, process, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    code = """
import json, pathlib, sys
call = json.loads(pathlib.Path(sys.argv[1]).read_text())
assert pathlib.Path(call["model"]).suffix == ".keras" and pathlib.Path(call["model"]).stat().st_size > 1000
assert (call["function"], call["arguments"]) == (["_operator", "add"], {"folder": "x"})
"""
    environment = process(code)
    with_tensorflow(operator.add, model, folder="x")
    assert (environment["KERAS_BACKEND"], environment["CUDA_VISIBLE_DEVICES"]) == ("tensorflow", "-1")
    checkout = os.path.dirname(os.path.dirname(keras_vit.__file__))
    assert environment["PYTHONPATH"].split(os.pathsep) == [checkout, "mine"]


@elsewhere_only
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit('warning\\nimages must be files.')", "that failed: images must be files. If your own"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "that failed: signal 9 ended it "),
        ("import sys; sys.exit(3)", "that failed: exit status 3 If your own layers are missing"),
    ],
)
def test_what_fails_there_is_told_here(code, message, model, process, tmp_path):
    process(code)
    with pytest.raises(RuntimeError, match=f"KERAS_BACKEND=tensorflow.* {message}"):
        keras_vit.export_saved_model(model, tmp_path / "exported")
    assert os.listdir(tmp_path / "exported") == []


def add_class(model, name, path):
    """A substitute for a function of the package."""
    if name is None:
        raise ValueError("no\n  name")
    with open(path, "w") as file:
        file.write(f"{model.output_shape[-1]} {name} {model.compiled}")


@here_only
def test_the_process(model, tmp_path, monkeypatch):
    """The process reads the function and its arguments from a file."""
    path = str(tmp_path / "model.keras")
    model.save(path)
    found = tmp_path / "found"
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "call.json")])
    monkeypatch.setitem(sys.modules, "functions", sys.modules[__name__])
    for name in ("ant", None):
        call = {"function": ["functions", "add_class"], "model": path, "arguments": {"name": name, "path": str(found)}}
        (tmp_path / "call.json").write_text(json.dumps(call))
        if name:
            elsewhere.main()
        else:
            with pytest.raises(SystemExit, match=r"^no name$"):
                elsewhere.main()
    assert found.read_text() == "5 ant False"
