"""Runs functions on the TensorFlow backend, in a new process if Keras runs on another backend."""

import importlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import keras

from keras_vit.atomic_files import working_folder


def with_tensorflow(function, model, **arguments):
    """Calls `function(model, **arguments)` on the TensorFlow backend.

    If Keras runs on another backend, a new process gets the model as a `.keras` file and calls the function on the CPU.

    Args:
        function: A function at the top level of a module of this package.
        model: A `keras.Model`.
        **arguments: Further arguments. They must be values that JSON can store.

    Raises:
        ImportError: If TensorFlow is not installed.
        RuntimeError: If the new process fails. The message contains the error of that process.
    """
    if keras.backend.backend() == "tensorflow":
        function(model, **arguments)
        return
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError(
            "TensorFlow is needed to export a model, whatever the backend of Keras, but it is not installed. "
            "Install it with pip, or install keras_vit with its extra 'tensorflow'."
        )
    with working_folder(tempfile.gettempdir(), "keras_vit") as folder:
        file = folder / "model.keras"
        model.save(file)
        call = {"function": [function.__module__, function.__name__], "model": str(file), "arguments": arguments}
        (folder / "call.json").write_text(json.dumps(call))
        # The garbage collector would search the imported objects again and again.
        code = f"import gc; gc.disable(); from {__name__} import main; gc.freeze(); gc.enable(); main()"
        command = [sys.executable, "-c", code, f"{folder}/call.json"]
        paths = [str(pathlib.Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        # The new process uses the CPU, because this process may occupy all memory of the accelerator.
        changes = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": os.pathsep.join(paths)}
        result = subprocess.run(command, env=os.environ | changes, capture_output=True, text=True)
    if result.returncode:
        *_, error = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
        if result.returncode < 0:
            error = f"signal {-result.returncode} ended it (memory may be too small for two copies of the model)."
        raise RuntimeError(
            f"TensorFlow writes the model in a new process with KERAS_BACKEND=tensorflow, and that failed: {error} If "
            f"your own layers are missing in that process, save the model with model.save('model.keras'). Then "
            f"start a process with KERAS_BACKEND=tensorflow, import your layers, load the model and export it."
        )


def main():
    """Calls the function in the new process. The process gets the path of the `call.json` of `with_tensorflow`."""
    call = json.loads(pathlib.Path(sys.argv[1]).read_text())
    module, name = call["function"]
    model = keras.saving.load_model(call["model"], compile=False)
    try:
        getattr(importlib.import_module(module), name)(model, **call["arguments"])
    except (OSError, ValueError) as error:
        sys.exit(" ".join(str(error).split()))
