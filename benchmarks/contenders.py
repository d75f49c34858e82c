"""Who is compared: ours and other projects' Vision Transformers, each run as its users run it.

A contender is opened in a process of its own, which imports what it needs and nothing else. All have random weights.
"""

import dataclasses
import functools
import importlib.util
import multiprocessing
import os
import pathlib
import tempfile
from collections.abc import Callable

from benchmarks.runtimes import onnx_session, openvino_model

CLASSES = 1000
_MATRIX = (8 * 197, 768, 3072)
"""Rows, inner and columns of the product that the machine's rate is measured with: of the MLP of B/16, 8 images."""
_ALL, _FLOAT32, _BOTH = ("forward", "train"), ("float32",), ("float32", "bfloat16")
_TIMM = {"Ti": "tiny", "S": "small", "B": "base", "L": "large"}


@dataclasses.dataclass(frozen=True)
class Contender:
    """Something that makes steps.

    Args:
        title: Its name in tables.
        open_steps: Function from a `Job` to (function from a batch size and a number of steps that makes them, what
            they run on), for `Measured`.
        packages: Names of packages that must be there.
        works: Of `"forward"` and `"train"`, what it does.
        precisions: What it computes in.
        has: Function that says whether it has a model, by its name.
    """

    title: str
    open_steps: Callable
    packages: tuple
    works: tuple
    precisions: tuple
    has: Callable

    def missing(self, job):
        """Why it does not take part in a job, in words, or `None` if it does."""
        absent = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if absent:
            return f"{' and '.join(absent)} not installed"
        if job.work not in self.works:
            return f"does not {job.work}"
        if job.precision not in self.precisions:
            return f"not in {job.precision}"
        return None if self.has(job.model) else f"has no {job.model}"


def _any(model):
    return True


def _is_plain(model):
    return model in [f"{size}/{patch}" for size in _TIMM for patch in (16, 32)]


def _is_in_timm(model):
    return _is_plain(model) or model == "R50+B/16"


def build_ours(job, **config_changes):
    """Our model of a job, in Keras's present precision; of a ViT, fields of its config can be changed."""
    import keras_vit

    shape = (job.size, job.size, 3)
    if job.model in keras_vit.VARIANTS:
        is_plain = keras_vit.VARIANTS[job.model].stem is None
        changes = {"crop_to_patches": True} if is_plain else {}  # 224 pixels are no multiple of 14 that 64 is.
        return keras_vit.ViT(job.model, input_shape=shape, classes=CLASSES, **changes, **config_changes)
    return getattr(keras_vit, job.model)(input_shape=shape, classes=CLASSES)


def build_keras_hub(job):
    """The same ViT of KerasHub."""
    import keras_hub

    import keras_vit

    config = keras_vit.VARIANTS[job.model]
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(job.size, job.size, 3),
        patch_size=config.patch_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hidden_dim=config.hidden_dim,
        mlp_dim=config.mlp_dim,
    )
    return keras_hub.models.ViTImageClassifier(backbone=backbone, num_classes=CLASSES, activation="softmax")


def open_keras(job, build, backend, jit_compile="auto"):
    """`model.predict` or `model.fit` on arrays."""
    os.environ["KERAS_BACKEND"] = backend
    import keras
    import numpy as np

    from benchmarks.provenance import device

    keras.config.set_dtype_policy({"bfloat16": "mixed_bfloat16"}.get(job.precision, job.precision))
    model = build(job)
    if job.work == "train" or jit_compile != "auto":
        model.compile("adamw", "sparse_categorical_crossentropy", jit_compile=jit_compile)
    rng = np.random.default_rng(0)

    @functools.lru_cache(maxsize=1)
    def batch(size):
        return rng.standard_normal((size, job.size, job.size, 3), dtype="float32"), rng.integers(0, CLASSES, size)

    def make_steps(batch_size, steps):
        if not steps:
            return
        images, labels = (np.concatenate([part] * steps) for part in batch(batch_size))
        if job.work == "train":
            model.fit(images, labels, batch_size=batch_size, verbose=0, shuffle=False)
        else:
            model.predict(images, batch_size=batch_size, verbose=0)

    return make_steps, device()


def open_saved_model(job):
    """A request with pixels to our SavedModel, as TensorFlow Serving answers it."""
    import tensorflow as tf

    from benchmarks.provenance import device

    with tempfile.TemporaryDirectory() as folder:
        _elsewhere(_write_saved_model, job, folder)
        served = tf.saved_model.load(f"{folder}/1")
    answer = served.signatures["predict_pixels_float"]

    @functools.lru_cache(maxsize=1)
    def batch(size):
        return tf.random.uniform((size, job.size, job.size, 3), maxval=255.0)

    def make_steps(batch_size, steps):
        for _ in range(steps):
            answer(images=batch(batch_size))["probabilities"].numpy()

    make_steps.model = served  # Its variables live as long as it does.
    return make_steps, device()


def _elsewhere(function, *arguments):
    """Calls a function in a process of its own, whose memory is not the contender's."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{function.__name__} ended with {process.exitcode}; its error is above.")


def _write_saved_model(job, folder):
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras_vit

    model = _randomized(build_ours(job))
    keras_vit.export_saved_model(model, folder, precision=job.precision, tolerance=1e-4, min_agreement=0)


def _randomized(model):
    # Where weights are zero, as fresh biases are, compilers leave out what they do.
    import numpy as np

    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(weight + rng.normal(0, 0.02, weight.shape))
    return model


def build_timm(job):
    """The same ViT of timm."""
    import timm

    size, patch = job.model.split("/")
    name = "vit_base_r50_s16" if size == "R50+B" else f"vit_{_TIMM[size]}_patch{patch}"
    return timm.create_model(f"{name}_224", img_size=job.size, num_classes=CLASSES)


def build_transformers(job):
    """The same ViT of transformers."""
    import transformers

    import keras_vit

    ours = keras_vit.VARIANTS[job.model]
    config = transformers.ViTConfig(
        hidden_size=ours.hidden_dim,
        num_hidden_layers=ours.num_layers,
        num_attention_heads=ours.num_heads,
        intermediate_size=ours.mlp_dim,
        image_size=job.size,
        patch_size=ours.patch_size,
        num_labels=CLASSES,
        attn_implementation="sdpa",
    )
    model = transformers.ViTForImageClassification(config)
    model.forward = functools.partial(_logits, model.forward)
    return model


def _logits(forward, images):
    return forward(pixel_values=images).logits


def open_torch(job, build, compiled=False):
    """A forward pass, or one with loss, gradients and AdamW."""
    os.environ["KERAS_BACKEND"] = "torch"  # TensorFlow and torch in one process can end it.
    import torch

    from benchmarks.provenance import processor

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    on_gpu = torch.cuda.is_available()
    where = "cuda" if on_gpu else "cpu"
    torch.set_float32_matmul_precision("high")  # On a GPU TensorFlow and JAX multiply float32 so by themselves.
    model = build(job).to(where)
    model = model.train() if job.work == "train" else model.eval()
    optimizer = torch.optim.AdamW(model.parameters())
    run = torch.compile(model, mode="max-autotune" if on_gpu else "default") if compiled else model
    in_bfloat16 = torch.autocast(where, torch.bfloat16, enabled=job.precision == "bfloat16")
    labels = torch.arange(2**12, device=where) % CLASSES

    @functools.lru_cache(maxsize=1)
    def batch(size):
        return torch.randn(size, 3, job.size, job.size, device=where)

    def step(images):
        if job.work == "forward":
            with torch.inference_mode(), in_bfloat16:
                return run(images)
        optimizer.zero_grad()
        with in_bfloat16:
            loss = torch.nn.functional.cross_entropy(run(images), labels[: len(images)])
        loss.backward()
        optimizer.step()
        return loss

    def make_steps(batch_size, steps):
        for _ in range(steps):
            step(batch(batch_size)).detach().float().sum().item()  # Waits for it.

    return make_steps, torch.cuda.get_device_name() if on_gpu else processor()


def open_runtime(job, runtime, of_timm):
    """A runtime's request, with our file for it or with timm's."""
    import numpy as np

    from benchmarks.provenance import processor

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / ("model.xml" if runtime == "openvino" and not of_timm else "model.onnx")
        _elsewhere(_write_timm if of_timm else _write_ours, job, path)
        answer = _RUNTIMES[runtime](str(path), job.precision)
    shape = (3, job.size, job.size) if of_timm else (job.size, job.size, 3)

    @functools.lru_cache(maxsize=1)
    def batch(size):
        return np.random.default_rng(0).standard_normal((size, *shape), dtype="float32")

    def make_steps(batch_size, steps):
        for _ in range(steps):
            answer(batch(batch_size))

    return make_steps, processor()


def _write_ours(job, path):
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras_vit

    model = _randomized(build_ours(job))
    keras_vit.export_model(model, path, "onnx" if path.suffix == ".onnx" else "openvino", tolerance=1e-4)


def _write_timm(job, path):
    import torch

    images = torch.zeros(2, 3, job.size, job.size)
    dynamic = {"images": {0: "batch"}, "logits": {0: "batch"}}
    names = {"input_names": ["images"], "output_names": ["logits"]}
    model = build_timm(job).eval()
    with torch.no_grad():  # As for ours, which _randomized says.
        for weight in model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    # The older exporter: the newer one needs a package more, and folds what belongs to a fixed batch.
    torch.onnx.export(model, images, str(path), dynamo=False, dynamic_axes=dynamic, **names)


def _open_onnx(path, precision):
    session = onnx_session(path, len(os.sched_getaffinity(0)))
    return lambda images: session.run(None, {"images": images})


def _open_openvino(path, precision):
    hint = {"float32": "f32", "bfloat16": "bf16"}[precision]
    return openvino_model(path, len(os.sched_getaffinity(0)), INFERENCE_PRECISION_HINT=hint)


_RUNTIMES = {"onnx": _open_onnx, "openvino": _open_openvino}


def open_matrix_product(job):
    """The product of two matrices, on the same device: what the others are a share of. In float32 for 8 bits."""
    import torch

    from benchmarks.provenance import processor

    on_gpu = torch.cuda.is_available()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_float32_matmul_precision("high")
    rows, inner, columns = _MATRIX
    like = {
        "device": "cuda" if on_gpu else "cpu",
        "dtype": torch.bfloat16 if job.precision == "bfloat16" else torch.float32,
    }
    one, other = torch.randn(rows, inner, **like), torch.randn(inner, columns, **like)

    def make_steps(batch_size, steps):
        for _ in range(steps):
            product = one @ other
        if steps:
            product[0, 0].item()  # Waits for all of them.

    return make_steps, torch.cuda.get_device_name() if on_gpu else processor()


def flops_of_product():
    """Floating point operations of one step of `open_matrix_product`."""
    rows, inner, columns = _MATRIX
    return 2 * rows * inner * columns


def _keras(title, build, backend, **arguments):
    packages = (backend, "keras_hub") if build is build_keras_hub else (backend,)
    steps = functools.partial(open_keras, build=build, backend=backend, **arguments)
    return Contender(title, steps, packages, _ALL, _BOTH, _is_plain if "keras_hub" in packages else _any)


def _torch(title, build, package, **arguments):
    steps = functools.partial(open_torch, build=build, **arguments)
    return Contender(title, steps, ("torch", package), _ALL, _BOTH, _is_in_timm if package == "timm" else _is_plain)


def _runtime(title, runtime, of_timm, precisions):
    packages = {"onnx": ("onnxruntime",), "openvino": ("openvino",)}[runtime] + (("timm",) if of_timm else ())
    steps = functools.partial(open_runtime, runtime=runtime, of_timm=of_timm)
    return Contender(title, steps, packages, ("forward",), precisions, _is_in_timm if of_timm else _any)


CONTENDERS = {
    "ours": _keras("keras_vit, TensorFlow", build_ours, "tensorflow"),
    "ours-xla": _keras("keras_vit, TensorFlow, `jit_compile=True`", build_ours, "tensorflow", jit_compile=True),
    "ours-jax": _keras("keras_vit, JAX", build_ours, "jax"),
    "keras-hub": _keras("KerasHub, TensorFlow", build_keras_hub, "tensorflow"),
    "keras-hub-xla": _keras(
        "KerasHub, TensorFlow, `jit_compile=True`", build_keras_hub, "tensorflow", jit_compile=True
    ),
    "keras-hub-jax": _keras("KerasHub, JAX", build_keras_hub, "jax"),
    "timm": _torch("timm", build_timm, "timm"),
    "timm-compiled": _torch("timm, `torch.compile`", build_timm, "timm", compiled=True),
    "transformers": _torch("transformers, SDPA", build_transformers, "transformers"),
    "saved-model": Contender(
        "keras_vit's SavedModel", open_saved_model, ("tensorflow",), ("forward",), (*_BOTH, "int8"), _any
    ),
    "onnx": _runtime("keras_vit's ONNX file, ONNX Runtime", "onnx", False, _FLOAT32),
    "onnx-timm": _runtime("timm's ONNX file, ONNX Runtime", "onnx", True, _FLOAT32),
    "openvino": _runtime("keras_vit's OpenVINO file, OpenVINO", "openvino", False, _BOTH),
    "openvino-timm": _runtime("timm's ONNX file, OpenVINO", "openvino", True, _BOTH),
}
