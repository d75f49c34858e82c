"""Measures how fast one ViT answers on CPUs: our SavedModel, KerasHub's, ONNX Runtime and OpenVINO.

Command: make bench-latency

The work: one ViT, B/16 unless told otherwise, with random weights and 1,000 classes, the same weights in all runtimes;
images of 224 x 224 pixels come as a NumPy array, probabilities go as one. All compute in float32 with the same number
of threads, but for the row that says so. KerasHub's export is what its users get: it neither normalises pixels nor
names classes, so it is given normalised ones. The row of encoded images is another job: JPEG files are decoded, too.

Each runtime has a process of its own. A cold load is in a fresh one, from the start of loading to the first answer to
one image, with the file in the system's cache; imports are counted by themselves. Then all processes get the same
requests in turns, in a new order each round, so that what else the machine does meets all alike; the first request of
each batch size is not counted. Each answer is compared with the Keras model's; one that differs is an error.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import math
import multiprocessing
import os
import pathlib
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from benchmarks.runtimes import onnx_session, openvino_model
from benchmarks.workers import peak_memory

OURS = "ours"
TOLERANCE = 1e-4
"""Of probabilities, in float32."""
MIN_ROUNDS = 3
_PAUSE = 0.05
"""Seconds between requests: threads of ONNX Runtime and OpenVINO wait actively for a while after one."""
_SIZE = 224
_CLASSES = 1000


@dataclasses.dataclass(frozen=True)
class Row:
    """A runtime that is measured.

    Args:
        title: Its name in the tables.
        file: What it loads, a name of `_WRITERS`.
        takes: Its images, a key of the inputs that `prepare` writes: `"pixels"`, `"normalised"` or `"files"`.
        packages: {name of a package to import: the extra that brings it}; the one that runs it is the first.
        open: Function (path of the file, number of threads) to the function from images to probabilities.
        tolerance: Largest difference of a probability from the Keras model's.
    """

    title: str
    file: str
    takes: str
    packages: dict
    open: Callable
    tolerance: float = TOLERANCE


def _open_saved_model(path, threads, signature="serving_default"):
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    model = tf.saved_model.load(path)
    serve = model.signatures[signature]
    [spec] = serve.structured_input_signature[1].values()
    # KerasHub's one output is named by the exporter.
    output = "probabilities" if "probabilities" in serve.structured_outputs else next(iter(serve.structured_outputs))

    def answer(images):
        return serve(**{spec.name: tf.constant(images, spec.dtype)})[output].numpy()

    answer.model = model  # Its variables live as long as it does.
    return answer


def _open_onnx(path, threads):
    session = onnx_session(path, threads)
    return lambda images: session.run(["probabilities"], {"images": images})[0]


def _open_openvino(path, threads, **properties):
    compiled = openvino_model(path, threads, **properties)
    return lambda images: compiled(images)["probabilities"]


_of_pixels = functools.partial(_open_saved_model, signature="predict_pixels_float")
_in_float32 = functools.partial(_open_openvino, INFERENCE_PRECISION_HINT="f32")
_TENSORFLOW = {"tensorflow": "tensorflow"}
_KERAS_HUB = _TENSORFLOW | {"keras_hub": "peers"}
_ONNX = dict.fromkeys(("onnxruntime", "onnx", "tf2onnx"), "runtimes")
_OPENVINO = dict.fromkeys(("openvino", "scipy"), "runtimes")
ROWS = {
    OURS: Row("our SavedModel", "saved_model/1", "pixels", _TENSORFLOW, _of_pixels),
    "ours-xla": Row("ours, `jit_compile=True`", "saved_model_xla/1", "pixels", _TENSORFLOW, _of_pixels),
    "ours-jpeg": Row("ours, from JPEG files", "saved_model/1", "files", _TENSORFLOW, _open_saved_model),
    "keras-hub": Row("KerasHub's SavedModel", "keras_hub", "normalised", _KERAS_HUB, _open_saved_model),
    "onnx": Row("ONNX Runtime", "model.onnx", "pixels", _ONNX, _open_onnx),
    "openvino": Row("OpenVINO", "model.xml", "pixels", _OPENVINO, _in_float32),
    # bfloat16 has 8 bits: probabilities in the middle of their range move by some hundredths.
    "openvino-bf16": Row(
        "OpenVINO's default, bfloat16 if the CPU can", "model.xml", "pixels", _OPENVINO, _open_openvino, 0.1
    ),
}


def missing(names):
    """{row: the extra that brings what it needs}, of rows that cannot run here."""
    absent = {
        name: [extra for package, extra in ROWS[name].packages.items() if importlib.util.find_spec(package) is None]
        for name in names
    }
    return {name: extras[0] for name, extras in absent.items() if extras}


def build(variant, size=_SIZE, classes=_CLASSES):
    """A classifier whose answers depend on the image: a fresh one's head is zero."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    # KerasHub has the exact GELU only.
    model = keras_vit.ViT(variant, input_shape=(size, size, 3), classes=classes, mlp="gelu_exact")
    head = model.layers[-1].kernel
    # Logits with a standard deviation of 3, as what is read is normalised.
    head.assign(np.random.default_rng(0).normal(0, 3 / math.sqrt(head.shape[0]), head.shape))
    return model


def prepare(model, folder, names, batch_sizes):
    """Writes the files that rows load, the images in all forms, and the Keras model's answers.

    Args:
        model: Of `build`.
        folder: To write to, a `pathlib.Path`.
        names: Keys of `ROWS`.
        batch_sizes: Numbers of images in a request.
    """
    import keras_vit
    from keras_vit.decoding import image_decoder
    from keras_vit.export.parity import read_images

    for file in {ROWS[name].file for name in names}:
        _WRITERS[file](model, folder / file, batch_sizes)
    photographs = read_images(None)
    files = [photographs[index % len(photographs)] for index in range(max(batch_sizes))]
    decode = image_decoder(model)
    pixels = np.stack([decode(file) for file in files]).astype("float32")
    normalised = keras_vit.preprocess_input(pixels, model)
    inputs = {"files": files, "pixels": pixels, "normalised": normalised}
    inputs["probabilities"] = model.predict(normalised, batch_size=4, verbose=0)
    for name, rows in inputs.items():
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(rows))


def _write_saved_model(model, path, batch_sizes, jit_compile=False):
    import keras_vit

    keras_vit.export_saved_model(model, path.parent, batch_sizes=batch_sizes, jit_compile=jit_compile)


def _write_keras_hub(model, path, batch_sizes):
    import keras_hub

    import keras_vit

    with tempfile.TemporaryDirectory() as folder:
        preset = os.path.join(folder, "preset")
        keras_vit.save_weights(model, preset, "keras_hub")
        classifier = keras_hub.models.ImageClassifier.from_preset(preset, activation="softmax")
    classifier.export(str(path), format="tf_saved_model", verbose=False)


def _write_runtime(model, path, batch_sizes, format):
    import keras_vit

    keras_vit.export_model(model, path, format)


_WRITERS = {
    "saved_model/1": _write_saved_model,
    "saved_model_xla/1": functools.partial(_write_saved_model, jit_compile=True),
    "keras_hub": _write_keras_hub,
    "model.onnx": functools.partial(_write_runtime, format="onnx"),
    "model.xml": functools.partial(_write_runtime, format="openvino"),
}
"""{name of a file or folder: function of a model, the path and the batch sizes that writes it}"""


@dataclasses.dataclass(frozen=True)
class Start:
    """How a process came to its first answer.

    Args:
        imports: Seconds to import the runtime's package.
        load: Seconds from there to the first answer to one image.
        memory: The most that the process has had in memory by then, in MB.
    """

    imports: float
    load: float
    memory: float


class Process:
    """A process of its own that runs one row, and whose answers are compared with the Keras model's.

    Args:
        row: A `Row`.
        folder: What `prepare` wrote.
        threads: Number of threads to compute with.
    """

    def __init__(self, row, folder, threads):
        self.row = row
        self._expected = read_inputs(folder, "probabilities")
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_answer_requests, args=(theirs, row, folder, threads), daemon=True)
        self._process.start()
        theirs.close()
        self.start = self._checked(1)

    def ask(self, batch_size):
        """Seconds that a request of so many images takes."""
        self._pipe.send(batch_size)
        return self._checked(batch_size)

    def _checked(self, batch_size):
        try:
            measured, answer = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self.row.title}: the process died; its error is above.") from None
        difference = np.abs(answer - self._expected[:batch_size]).max()
        if not difference <= self.row.tolerance:
            raise ValueError(
                f"{self.row.title} answers otherwise than the Keras model: a probability differs by {difference:.1e} "
                f"at batch size {batch_size}, {self.row.tolerance:.0e} is allowed."
            )
        return measured

    def close(self):
        """Ends the process."""
        self._process.terminate()
        self._process.join()
        self._pipe.close()


def _answer_requests(pipe, row, folder, threads):
    """What a `Process` does: sends its start with the first answer, then answers batch sizes with seconds."""
    images = read_inputs(folder, row.takes)
    started = time.perf_counter()
    importlib.import_module(next(iter(row.packages)))
    imported = time.perf_counter()
    answer = row.open(str(folder / row.file), threads)
    first = answer(images[:1])
    pipe.send((Start(imported - started, time.perf_counter() - imported, peak_memory() / 1e6), first))
    while True:
        batch = images[: pipe.recv()]
        started = time.perf_counter()
        answered = answer(batch)
        pipe.send((time.perf_counter() - started, answered))


def read_inputs(folder, name):
    """What `prepare` has written: `"files"`, `"pixels"`, `"normalised"` or `"probabilities"`."""
    return pickle.loads((folder / f"{name}.pickle").read_bytes())


def cold_loads(names, folder, threads, rounds):
    """{row: [`Start` of each round]}, each in a fresh process."""
    starts = {name: [] for name in names}
    for name in [*names] * rounds:
        with contextlib.closing(Process(ROWS[name], folder, threads)) as process:
            starts[name].append(process.start)
    return starts


def latencies(names, folder, threads, batch_sizes, rounds):
    """{batch size: {row: [seconds of each round]}}: in each round each process gets one request."""
    found, rng = {}, np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        processes = {}
        for name in names:
            processes[name] = stack.enter_context(contextlib.closing(Process(ROWS[name], folder, threads)))
        for batch_size in batch_sizes:
            for process in processes.values():
                process.ask(batch_size)
            found[batch_size] = {name: [] for name in names}
            for _ in range(max(MIN_ROUNDS, rounds // batch_size)):
                # In another order each time: nobody always comes after the same one.
                for name in rng.permutation(names):
                    time.sleep(_PAUSE)
                    found[batch_size][name].append(processes[name].ask(batch_size))
    return found


def percentile(values, percent):
    """The lowest of some values that at least `percent` of them do not exceed: one of them, nothing in between."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def cold_table(starts):
    """Markdown: medians, and how many times as long as ours."""
    lines = [
        "| cold load | seconds | times ours | peak memory, MB | times ours | import, seconds |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    fields = ("load", "memory", "imports")
    values = [{name: [getattr(start, field) for start in starts[name]] for name in starts} for field in fields]
    loads, memory, _ = values
    for name in starts:
        seconds, megabytes, imported = (statistics.median(found[name]) for found in values)
        cells = [f"{seconds:.2f}", _times_ours(loads, name), f"{megabytes:,.0f}", _times_ours(memory, name)]
        lines.append(f"| {ROWS[name].title} | {' | '.join(cells)} | {imported:.2f} |")
    return "\n".join(lines)


def latency_table(results):
    """Markdown: percentiles, and how many times as long as ours: p50 round by round, p99 as they are."""
    lines = [
        "| latency | batch | requests | p50, ms | times ours | p99, ms | times ours |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for batch_size, seconds in results.items():
        for name, values in seconds.items():
            p50, p99 = (percentile(values, percent) for percent in (50, 99))
            cells = [str(batch_size), str(len(values)), f"{1000 * p50:,.1f}", _times_ours(seconds, name)]
            cells += [f"{1000 * p99:,.1f}", f"{p99 / percentile(seconds[OURS], 99):.2f}"]
            lines.append(f"| {ROWS[name].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _times_ours(values, name):
    """Median, lowest and highest ratio of one row to ours, round by round."""
    if name == OURS:
        return "1"
    ratios = [one / two for one, two in zip(values[name], values[OURS], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def main(arguments=None):
    """Prints the tables; returns the process's exit status."""
    options = _parse(arguments)
    absent = missing({OURS, *options.rows})
    for name, extra in absent.items():
        print(f"{ROWS[name].title} is missing. Install it with: pip install '.[{extra}]'")
    if OURS in absent:
        return 1
    names = [name for name in ROWS if name == OURS or (name in options.rows and name not in absent)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        prepare(build(options.variant), folder, names, options.batches)
        print(f"ViT-{options.variant}, {options.threads} threads. Times ours: median, lowest and highest round.\n")
        print(cold_table(cold_loads(names, folder, options.threads, options.cold_rounds)), flush=True)
        results = latencies(names, folder, options.threads, options.batches, options.rounds)
    print(f"\n{latency_table(results)}\n\nOf fewer than 100 requests, p99 is the slowest.")
    return 0


def _parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="B/16", help="of keras_vit.ViT")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="what to compare ours with")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32], help="numbers of images in a request")
    parser.add_argument(
        "--rounds", type=int, default=40, help=f"divided by the number of images; at least {MIN_ROUNDS}"
    )
    parser.add_argument("--cold-rounds", type=int, default=3, help="fresh processes of each")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each runtime")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
