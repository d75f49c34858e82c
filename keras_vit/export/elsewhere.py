"""What only TensorFlow can write, for models of other backends: in a process whose Keras runs on TensorFlow."""

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
    """Calls `function(model, **arguments)` where Keras runs on TensorFlow.

    That is here, or in a process of its own which gets the model as a `.keras` file and computes on the CPU.

    Args:
        function: A function of a module of this package.
        model: A `keras.Model`.
        **arguments: What JSON can hold.

    Raises:
        ImportError: If TensorFlow is not installed.
        RuntimeError: If the process fails; the message is its error.
    """
    if keras.backend.backend() == "tensorflow":
        function(model, **arguments)
        return
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError(
            "TensorFlow writes SavedModels and files for other runtimes, whatever Keras runs on, and is not installed. "
            "Install it with: pip install 'keras-vit-applications[tensorflow]'"
        )
    with working_folder(tempfile.gettempdir(), "keras_vit") as folder:
        file = folder / "model.keras"
        model.save(file)
        call = {"function": [function.__module__, function.__name__], "model": str(file), "arguments": arguments}
        (folder / "call.json").write_text(json.dumps(call))
        command = [sys.executable, "-c", f"from {__name__} import main; main()", f"{folder}/call.json"]
        result = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    if result.returncode:
        *_, error = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
        if result.returncode < 0:
            error = f"it was ended by signal {-result.returncode} (is there memory for the model twice?)."
        raise RuntimeError(
            f"The model was given to a process with KERAS_BACKEND=tensorflow, which TensorFlow needs to write it, and "
            f"that failed: {error} If layers of your own are missing there: save the model with "
            f"model.save('model.keras'), and load and export it in a process with KERAS_BACKEND=tensorflow that "
            f"imports them."
        )


def _environment():
    paths = [str(pathlib.Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    # This process may hold the accelerator's memory; what is written does not depend on the device.
    changes = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": os.pathsep.join(paths)}
    return os.environ | changes


def main():
    """The process: its one argument is the path of what `with_tensorflow` wrote."""
    call = json.loads(pathlib.Path(sys.argv[1]).read_text())
    module, name = call["function"]
    model = keras.saving.load_model(call["model"], compile=False)
    try:
        getattr(importlib.import_module(module), name)(model, **call["arguments"])
    except (OSError, ValueError) as error:
        sys.exit(" ".join(str(error).split()))
