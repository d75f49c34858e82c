"""The contenders: our Vision Transformers and those of other projects, each run as its users run it.

A contender is opened in its own process, which imports only the packages it needs. All have random weights.
"""

import dataclasses
import functools
import importlib.util
from collections.abc import Callable

from benchmarks.contenders.files import open_runtime, open_saved_model, write_ours, write_saved_model, write_timm
from benchmarks.contenders.flax_models import open_flax
from benchmarks.contenders.keras_models import DINOV3, build_keras_hub, build_ours, build_zeromodels, open_keras
from benchmarks.contenders.torch_models import TIMM_SIZES, build_timm, build_transformers, open_torch
from benchmarks.workers import elsewhere

_ALL, _FLOAT32, _BOTH = ("forward", "train"), ("float32",), ("float32", "bfloat16")
REFERENCE_OF_INT8 = "openvino@float32"
"""The contender that the rates of a comparison in int8 are divided by."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """A model in a framework or runtime, which makes steps.

    Args:
        title: Its name in tables.
        open_steps: Function from a `Job` to (function that makes steps from a batch size and a number of steps,
            device), as in `Measured`. A contender that reads a file also gets its `path`.
        packages: Names of the packages that it needs.
        works: Supported ones of `"forward"` and `"train"`.
        precisions: Supported precisions.
        has: Function from the name of a model to whether it is supported.
        files: {precision: name of the file that it reads}, or `None`.
        write: Function from a `Job` and a path that writes the file.
        precision: Precision in which it takes part in comparisons in int8, if it is not int8. Such contenders show how
            much faster int8 is.
    """

    title: str
    open_steps: Callable
    packages: tuple
    works: tuple
    precisions: tuple
    has: Callable
    files: dict | None = None
    write: Callable | None = None
    precision: str | None = None

    def missing(self, job):
        """The reason why the contender cannot run a job, in words, or `None` if it can."""
        absent = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if absent:
            return f"{' and '.join(absent)} not installed"
        if job.work not in self.works:
            return f"does not {job.work}"
        if job.precision not in self.precisions:
            return f"not in {job.precision}" if self.precision is None else "only in comparisons in int8"
        return None if self.has(job.model) else f"has no {job.model}"

    def prepare(self, job, folder):
        """Writes its file into a folder, in a separate process, unless another contender has written it.

        Returns:
            `open_steps`, as a function of the job only.

        Raises:
            RuntimeError: If the file cannot be written.
        """
        if self.files is None:
            return self.open_steps
        precision = self.precision or job.precision
        file = self.files[precision]
        written = folder / file
        if not written.exists():
            unfinished = folder / "unfinished" / file
            unfinished.mkdir(parents=True, exist_ok=True)
            elsewhere(self.write, dataclasses.replace(job, precision=precision), unfinished / file)
            unfinished.rename(written)
        return functools.partial(_open_file, self.open_steps, precision, written / file)

    def beside_int8(self, precision):
        """The contender in another precision, for comparisons in int8."""
        title = f"{self.title}, in {precision.replace('+', ' and ')}"
        return dataclasses.replace(self, title=title, precisions=("int8",), precision=precision)


def _open_file(open_steps, precision, path, job):
    return open_steps(dataclasses.replace(job, precision=precision), path)


def _any(model):
    return True


def _is_plain(model):
    return model in [f"{size}/{patch}" for size in TIMM_SIZES for patch in (16, 32)]


def _is_dinov3(model):
    return model.startswith(DINOV3) and _is_plain(model.removeprefix(DINOV3))


def _is_plain_or_dinov3(model):
    return _is_plain(model) or _is_dinov3(model)


def _is_published(model):
    return _is_plain_or_dinov3(model) or model == "R50+B/16"


def _is_google(model):
    return _is_plain(model) or model == "R50+B/16"


def _keras(title, build, backend, package=None, **arguments):
    steps = functools.partial(open_keras, build=build, backend=backend, **arguments)
    packages, has = ((backend,), _any) if package is None else ((backend, package), _is_plain_or_dinov3)
    return Contender(title, steps, packages, _ALL, _BOTH, has)


def _keras_peer(name, title, build, package):
    """The contenders of another project with Keras models."""
    options = {"build": build, "package": package}
    return {
        name: _keras(f"{title}, TensorFlow", backend="tensorflow", **options),
        f"{name}-xla": _keras(
            f"{title}, TensorFlow, `jit_compile=True`", backend="tensorflow", jit_compile=True, **options
        ),
        f"{name}-jax": _keras(f"{title}, JAX", backend="jax", **options),
    }


def _torch(title, build, package, **arguments):
    steps = functools.partial(open_torch, build=build, **arguments)
    return Contender(title, steps, ("torch", package), _ALL, _BOTH, _is_published if package == "timm" else _is_plain)


def _runtime(title, runtime, files, is_timm=False):
    packages = {"onnx": ("onnxruntime",), "openvino": ("openvino",), "litert": ("ai_edge_litert",)}[runtime]
    steps = functools.partial(open_runtime, runtime=runtime, channels_first=is_timm)
    has, write = (_is_published, write_timm) if is_timm else (_any, write_ours)
    packages += ("timm",) if is_timm else ()
    return Contender(title, steps, packages, ("forward",), tuple(files), has, files, write)


def _files(floats, int8):
    """Names of OpenVINO's files. The precision of the computations that are not in 8 bits is chosen at loading."""
    return {"float32": floats, "bfloat16": floats, "int8": int8, "int8+bfloat16": int8}


CONTENDERS = {
    "ours": _keras("keras_vit, TensorFlow", build_ours, "tensorflow"),
    "ours-xla": _keras("keras_vit, TensorFlow, `jit_compile=True`", build_ours, "tensorflow", jit_compile=True),
    "ours-unrotated": Contender(
        "keras_vit, TensorFlow, without rotary positions",
        functools.partial(open_keras, build=functools.partial(build_ours, rotary=None), backend="tensorflow"),
        ("tensorflow",),
        _ALL,
        _BOTH,
        _is_dinov3,
    ),
    "ours-jax": _keras("keras_vit, JAX", build_ours, "jax"),
    **_keras_peer("keras-hub", "KerasHub", build_keras_hub, "keras_hub"),
    **_keras_peer("zeromodels", "ZeroModels", build_zeromodels, "zeromodels"),
    "timm": _torch("timm", build_timm, "timm"),
    "timm-compiled": _torch("timm, `torch.compile`", build_timm, "timm", compiled=True),
    "transformers": _torch("transformers, SDPA", build_transformers, "transformers"),
    "flax": Contender(
        "Google's code, Flax on JAX", open_flax, ("jax", "flax", "optax", "vit_jax"), _ALL, _FLOAT32, _is_google
    ),
    "saved-model": Contender(
        "keras_vit's SavedModel",
        open_saved_model,
        ("tensorflow",),
        ("forward",),
        (*_BOTH, "int8"),
        _any,
        files={precision: f"saved_model_{precision}" for precision in (*_BOTH, "int8")},
        write=write_saved_model,
    ),
    "onnx": _runtime("keras_vit's ONNX file, ONNX Runtime", "onnx", {"float32": "ours.onnx", "int8": "ours_int8.onnx"}),
    "onnx-timm": _runtime("timm's ONNX file, ONNX Runtime", "onnx", {"float32": "timm.onnx"}, is_timm=True),
    "openvino": _runtime("keras_vit's OpenVINO file, OpenVINO", "openvino", _files("ours.xml", "ours_int8.xml")),
    "openvino-timm": _runtime(
        "timm's ONNX file, OpenVINO", "openvino", _files("timm.onnx", "timm_int8.xml"), is_timm=True
    ),
    "litert": _runtime(
        "keras_vit's LiteRT file, LiteRT", "litert", {"float32": "ours.tflite", "int8": "ours_int8.tflite"}
    ),
}
CONTENDERS |= {
    f"{name}@{precision}": contender.beside_int8(precision)
    for name, contender in CONTENDERS.items()
    for precision in contender.files or ()
    if "int8" in contender.precisions and precision != "int8"
}
