"""Measures the images a second of models, and the largest batch that fits into memory.

Command: make bench-speed ARGS="--models B/16 R50+B/16 --sizes 128 224"

As in arXiv 2010.11929, appendix D.5 and Figure 12, the rate for each image size is the peak over batch sizes. Each
batch size has 10 steps of warm-up and 30 timed steps. It is doubled until two in a row bring no gain or the memory is
full. The largest batch is found by doubling and bisection, with a single step each. `forward` is inference, `train` a
step of AdamW. Images are random and already in memory. All layers compute in the given precision.

Keras makes the steps on the backend of KERAS_BACKEND, in a separate process. A process that runs out of memory, by an
error or killed, is restarted. The only limit of a CPU is the memory of the machine, so another one can be given:
`--memory-limit` bytes for all data of the process, including TensorFlow's or JAX's own (some 500 MB).

A line of JSON for each measurement is added to benchmarks/results/speed.jsonl, with device, commit and versions. --plot
plots the newest ones, --document writes them into docs/performance/cost.md. Use a quiet machine.
"""

import argparse
import dataclasses
import pathlib
import sys

from benchmarks.contenders.keras_models import CLASSES, build_ours
from benchmarks.provenance import device, provenance
from benchmarks.records import add_options, append, newest, put_between, read
from benchmarks.workers import Job, Measured, OutOfMemoryError

WARMUP_STEPS, TIMED_STEPS = 10, 30
LONGEST_BATCH = 2**16
KEYS = (*(field.name for field in dataclasses.fields(Job)), "device")
"""Keys that identify a line of the results, besides its time."""
_NO_GAIN = 2  # After this number of batch sizes in a row that are no faster, larger ones are not tried.


def peak(rate, batch_sizes):
    """The highest rate over batch sizes.

    Args:
        rate: Function from a batch size to images a second. It raises `OutOfMemoryError` if the batch does not fit.
        batch_sizes: Batch sizes to try, ascending. The search ends if memory is full, or if two in a row are no faster.

    Returns:
        (images a second, batch size) of the peak, or `None` if no batch fits.
    """
    best, without_gain = None, 0
    for batch_size in batch_sizes:
        try:
            images_per_second = rate(batch_size)
        except OutOfMemoryError:
            break
        without_gain = 0 if best is None or images_per_second > best[0] else without_gain + 1
        best = max(best or (0, 0), (images_per_second, batch_size))
        if without_gain == _NO_GAIN:
            break
    return best


def largest_batch(step, limit=LONGEST_BATCH):
    """The largest batch that fits, by doubling and bisection.

    Args:
        step: Function that makes a step with a batch size. It raises `OutOfMemoryError` if the batch does not fit.
        limit: Largest batch size that is tried.

    Returns:
        The size of the batch, at most `limit`; 0 if not even one image fits.
    """

    def fits(batch_size):
        try:
            step(batch_size)
        except OutOfMemoryError:
            return False
        return True

    low, high = 0, 1  # The largest size known to fit, and the next one to try.
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def open_keras_steps(job, build=build_ours):
    """Builds a model. Returns (function that makes steps from a batch size and a number of steps, device)."""
    import keras
    import numpy as np

    keras.config.set_dtype_policy(job.precision)
    shape = (job.size, job.size, 3)
    model = build(job)
    if job.work == "train":
        model.compile("adamw", "sparse_categorical_crossentropy")
    rng, made = np.random.default_rng(0), {}

    def make_steps(batch_size, steps):
        if batch_size not in made:
            made.clear()
            images = rng.standard_normal((batch_size, *shape), dtype="float32")
            labels = rng.integers(0, CLASSES, batch_size)
            made[batch_size] = tuple(map(keras.ops.convert_to_tensor, (images, labels)))
            del images  # The array would take as much memory as its tensor.
        images, labels = made[batch_size]
        for _ in range(steps):
            # Both wait for their results.
            if job.work == "train":
                model.train_on_batch(images, labels)
            else:
                model.predict_on_batch(images)

    return make_steps, f"{keras.backend.backend()}: {device()}"


def measure(job, max_batch=LONGEST_BATCH, open_steps=open_keras_steps):
    """Measures a job: its peak over batch sizes, and the largest batch.

    Returns:
        A dictionary for a line of the results, with the device but without commit and versions.
    """
    with Measured(job, open_steps) as process:

        def rate(batch_size):
            return TIMED_STEPS * batch_size / process.seconds(batch_size, WARMUP_STEPS, TIMED_STEPS, again=True)

        sizes = [2**power for power in range(max_batch.bit_length()) if 2**power <= max_batch]
        best = peak(rate, sizes)
        largest = largest_batch(lambda batch_size: process.seconds(batch_size, 0, 1, again=True), max_batch)
        return dataclasses.asdict(job) | {
            "images_per_second": best and round(best[0], 3),
            "batch_size": best and best[1],
            "largest_batch": largest,
            "largest_tried": max_batch,
            "device": process.device,
        }


def table(rows):
    """Markdown: a line for each line of the results."""
    lines = [
        "| work | model | pixels | precision | memory | images a second | at batch size | largest batch | device |",
        "|---|---|--:|---|---|--:|--:|--:|---|",
    ]
    for row in rows:
        is_limit = row["largest_batch"] < row["largest_tried"]
        cells = [row["work"], row["model"], row["size"], row["precision"], _in_words(row, "memory_limit")]
        cells += [row["images_per_second"], row["batch_size"], row["largest_batch"]]
        cells = ["" if cell is None else str(cell) for cell in cells]
        lines.append(f"| {' | '.join(cells)}{'' if is_limit else ' or more'} | {row['device']} |")
    return "\n".join(lines) + "\n"


def plot(rows):
    """Images a second, and the largest batch, over the size of the images, as in Figure 12 of arXiv 2010.11929.

    Each curve is for one model, work, precision, memory limit and device. Its name contains those of the last three
    that differ among the rows. A batch that was the largest tried is left out, because memory did not limit it.
    """
    from training.studies.figures import Panel, Value, plot_panels

    differing = [name for name in ("precision", "memory_limit", "device") if len({row[name] for row in rows}) > 1]

    def series(rows, field):
        curves = {}
        for row in rows:
            if row[field]:
                name = ", ".join([row["model"], row["work"], *(_in_words(row, name) for name in differing)])
                curves.setdefault(name, []).append(Value(row["size"], row[field]))
        return curves

    devices = "" if "device" in differing else rows[0]["device"]
    labels = "side of the images (pixels)", "images a second, peak over batch sizes"
    panels = [Panel("Speed", *labels, series(rows, "images_per_second"), devices, is_log=True)]
    is_limited = rows[0]["memory_limit"] and "memory_limit" not in differing
    note = f"Memory of the process: {_in_words(rows[0], 'memory_limit')}" if is_limited else ""
    fitting = series([row for row in rows if row["largest_batch"] < row["largest_tried"]], "largest_batch")
    if fitting:
        panels.append(Panel("Memory", labels[0], "largest batch that fits", fitting, note, is_log=True))
    return plot_panels(panels)


def _in_words(row, name):
    if name != "memory_limit":
        return row[name]
    return f"{row[name] / 1e9:.1f} GB" if row[name] else "memory not limited"


def main(arguments=None):
    """Measures, prints and saves the results. Returns the exit status of the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="+", default=["Ti/16", "S/16"], help="variants, or functions such as BiTResNet50x1")
    add("--sizes", nargs="+", type=int, default=[64, 128, 224], help="sides of the images in pixels")
    add("--work", nargs="+", default=["forward"], choices=("forward", "train"))
    add("--precision", default="float32", help="float32, mixed_bfloat16 or mixed_float16")
    add("--max-batch", type=int, default=64, help="largest batch that is tried")
    add("--memory-limit", type=float, metavar="BYTES", help="memory limit of the process, if the device has none")
    add_options(parser, "bench-speed", "speed")
    add("--plot", type=pathlib.Path, metavar="FILE", help="plot the newest results, after measuring")
    add("--only-plot", action="store_true", help="do not measure")
    options = parser.parse_args(arguments)
    limit = options.memory_limit and int(options.memory_limit)
    jobs = [
        Job(model, size, work, options.precision, limit)
        for model in options.models
        for work in options.work
        for size in options.sizes
    ]
    if options.only_plot and not (options.plot and options.results.is_file()):
        parser.error(f"--only-plot needs an existing file {options.results}, and --plot FILE.")
    for job in [] if options.only_plot else jobs:
        state = provenance()  # Measuring takes long, and the code may change meanwhile, so this is read first.
        row = measure(job, options.max_batch) | state
        append([row], options.results)
        print(
            f"{job.model} {job.work} {job.size} px: {row['images_per_second']} images a second with batches of "
            f"{row['batch_size']}; largest batch {row['largest_batch']} of at most {options.max_batch}",
            flush=True,
        )
    rows = newest(read(options.results), KEYS)
    if options.plot:
        plot(rows).savefig(options.plot, dpi=150)
    if options.document:
        versions = sorted({f"{name} {row['versions'][name]}" for row in rows for name in ("keras", "tensorflow")})
        put_between("bench-speed", f"{', '.join(versions)}:\n\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
