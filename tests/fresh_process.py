"""A new process that imports keras_vit but no tests, to check what loading a file needs."""

import atexit
import functools
import json
import subprocess
import sys
import tempfile

import numpy as np

# Keras comes from keras_vit. There are no custom_objects, and safe_mode has its default value.
_PROGRAM = """
import gc, json, os, pathlib, re, sys, time
gc.disable()  # It would look through what imports leave again and again.
import keras_vit
import keras, numpy

def unregistered(*names):
    return [name for name in names if keras.saving.get_registered_object(name) is None]

def run(model_path, inputs_path, outputs_path):
    model = keras.saving.load_model(model_path)
    inputs = list(numpy.load(inputs_path).values())
    inputs = inputs if len(inputs) > 1 else inputs[0]
    if keras.backend.backend() == "jax":  # Compiled as a whole, as `tests.test_case.compute` does.
        import jax
        state = [[v.value for v in part] for part in (model.trainable_variables, model.non_trainable_variables)]
        outputs, _ = jax.jit(model.stateless_call)(*state, inputs)
    else:
        outputs = model(inputs, training=False)
    numpy.save(outputs_path, keras.ops.convert_to_numpy(outputs))

def memory(name):
    found = re.search(rf"{name}:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())
    return 1024 * int(found[1])

def refusal(path, arguments):
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before, start = memory("VmRSS"), time.process_time()
    try:
        keras_vit.from_pretrained(path, **arguments)
        error = "it is not refused"
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    return error, time.process_time() - start, memory("VmHWM") - before

for line in sys.stdin:
    command, *arguments = json.loads(line)
    try:
        answer = {"unregistered": unregistered, "run": run, "refusal": refusal}[command](*arguments)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
os._exit(0)  # A regular exit of the interpreter takes a second.
"""


def unregistered(names):
    """Registered names of those classes that Keras does not know in the new process."""
    return _ask("unregistered", *names)


def reload_and_run(model, inputs, folder):
    """Saves a model in `folder`, and returns its outputs for `inputs` (a list), computed in the new process."""
    paths = [str(folder / name) for name in (f"{model.name}.keras", "inputs.npz", "outputs.npy")]
    model.save(paths[0])
    np.savez(paths[1], *inputs)
    _ask("run", *paths)
    return np.load(paths[2])


def costs_of_refusals(files):
    """Costs of refusing weights in the new process.

    Args:
        files: {name: (path, arguments of `from_pretrained`)}

    Returns:
        {name: (error, seconds of processor time, additional bytes of memory)}
    """
    return {name: _ask("refusal", *file) for name, file in files.items()}


def _ask(command, *arguments):
    process = _process()
    process.stdin.write(json.dumps([command, *arguments]) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline() or json.dumps({"error": "the process ended"}))
    assert not isinstance(answer, dict), f"{command} in a fresh process: {answer['error']}"
    return answer


@functools.cache
def _process():
    """Shared by all tests, because starting a process takes seconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tempfile.gettempdir(),  # Outside of the checkout, so that the installed package is used.
    )

    def end():
        process.stdin.close()
        process.wait(timeout=30)
        process.stdout.close()

    atexit.register(end)
    return process
