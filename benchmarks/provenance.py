"""The device, the commit and the versions of a measurement."""

import datetime
import importlib.metadata
import platform

from training.runs.provenance import git_state, processor

_PACKAGES = [
    "keras",
    "tensorflow",
    "jax",
    "flax",
    "numpy",
    "keras-hub",
    "keras-cv",
    "zeromodels",
    "torch",
    "timm",
    "transformers",
    "ai-edge-litert",
    "nncf",
    "onnxruntime",
    "openvino",
]


def provenance():
    """The time, the commit and the versions of a measurement."""
    return {
        "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "git": git_state(),
        "python": platform.python_version(),
        "versions": _versions(),
    }


def in_words():
    """The device, and the versions of Keras and its backend, in one line."""
    import keras

    return f"{device()}; {versions_in_words(('keras', keras.backend.backend()))}"


def versions_in_words(names):
    """The names and versions of those packages that are installed, in one line."""
    versions = _versions()
    return ", ".join(f"{name} {versions[name]}" for name in names if name in versions)


def _versions():
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def device():
    """The accelerator, or the processor and its number of cores."""
    import keras

    if keras.backend.backend() == "tensorflow":
        return device_of_tensorflow()
    if keras.backend.backend() == "jax":
        import jax

        [first, *_] = jax.devices()
        return processor() if first.platform == "cpu" else first.device_kind
    return processor()


def device_of_tensorflow():
    """The accelerator of TensorFlow, or the processor and its number of cores."""
    import tensorflow as tf

    accelerators = tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU")
    if not accelerators:
        return processor()
    return tf.config.experimental.get_device_details(accelerators[0]).get("device_name", accelerators[0].name)
