"""Measures how time and memory of our model on TensorFlow depend on image size, depth, batch and cores.

Command: make bench-size ARGS="--axes resolution --document"

One property of a model is changed at a time: the side of the images, and with it the number T of tokens; the number of
blocks; the batch; the number of cores, which stand in for devices. Each measurement runs in its own process and makes
forward passes (`predict_on_batch`) or steps of AdamW (`train_on_batch`). Time is the median over turns, after a step
that is not counted. Memory is the peak of the process minus its memory after building the model, before any step.

The table also has the multiply-accumulates (MACs) of an image's forward pass, counted by `keras_vit.profile`, in two
parts: the attention's two products, 2 T^2 D in each block, and the rest, which grows as T.

A line of JSON for each measurement is added to benchmarks/results/size.jsonl, with device, commit and versions.
--document plots the newest lines and writes them into docs/performance/cost.md. Use a quiet machine. It takes about six
minutes.
"""

import argparse
import dataclasses
import functools
import os
import statistics
import sys

import numpy as np

from benchmarks.contenders.keras_models import build_ours
from benchmarks.provenance import provenance
from benchmarks.records import FIGURES, add_options, append, newest, put_between, read
from benchmarks.speed import open_keras_steps
from benchmarks.workers import Job, Measured

FIGURE = FIGURES / "cost_against_size.png"
_TURNS, _LONG = 3, 8.0
"""Number of turns, and the seconds of a step after which one turn is enough."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A measurement: side of the images in pixels, blocks, images in a step, and cores (`None`: all)."""

    size: int = 224
    num_layers: int = 12
    batch_size: int = 4
    cores: int | None = None


KEYS = ("model", "work", "device", *(field.name for field in dataclasses.fields(Point)))
"""Keys that identify a line of the results, besides its time."""
AXES = {
    "resolution": [Point(size, batch_size=1) for size in (224, 384, 512, 768, 1024)],
    "depth": [Point(num_layers=number) for number in (6, 12, 24)],
    "batch": [Point(batch_size=number) for number in (1, 2, 4, 8, 16)],
    "cores": [Point(cores=1), Point()],
}


def open_steps(job, point):
    """As `open_keras_steps`, with the number of blocks and cores of a point."""
    if point.cores is not None:  # Must be set before TensorFlow counts the cores.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: point.cores])
    return open_keras_steps(job, functools.partial(build_ours, num_layers=point.num_layers))


def measure(model, work, point, open_steps=open_steps):
    """Measures a point.

    Args:
        model: A variant of ViT.
        work: `"forward"` or `"train"`.
        point: `Point`
        open_steps: Function from a `Job` and a `Point`, for `Measured`.

    Returns:
        A dictionary for a line of the results: seconds and bytes of an image, the job, the point and the device.
    """
    job = Job(model, point.size, work)
    with Measured(job, functools.partial(open_steps, point=point)) as process:
        process.seconds(point.batch_size, 0, 0)  # Creates the images.
        before = process.peak_memory
        seconds = [process.seconds(point.batch_size, 1, 1)]
        while len(seconds) < _TURNS and seconds[-1] < _LONG:
            seconds.append(process.seconds(point.batch_size, 0, 1))
        memory = None if before is None else round((process.peak_memory - before) / point.batch_size)
        measured = {"seconds": round(statistics.median(seconds) / point.batch_size, 5), "memory": memory}
        return dataclasses.asdict(job) | dataclasses.asdict(point) | measured | {"device": process.device}


@functools.cache
def count(model, size, num_layers):
    """The numbers of tokens and heads, and the MACs of an image that grow as T (the number of tokens) and as T^2."""
    import keras

    import keras_vit

    with keras.StatelessScope(initialize_variables=False):
        built = build_ours(Job(model, size), num_layers=num_layers)
        cost = keras_vit.profile(built)
    config = keras_vit.VARIANTS[model]
    [_, tokens, width] = next(layer.output_shape for layer in cost.layers if layer.name == "encoder_block_0")
    square = num_layers * 2 * tokens**2 * width
    return {"tokens": tokens, "heads": config.num_heads, "linear_macs": cost.macs - square, "square_macs": square}


def _machine(row):
    """The device of a row, without the number of cores."""
    return row["device"].rsplit(",", 1)[0]


def _point(row):
    return Point(**{field.name: row[field.name] for field in dataclasses.fields(Point)})


def table(rows):
    """Markdown: a row for each point of each axis, with both works.

    Args:
        rows: Lines of the results, for one model.

    Returns:
        Text.
    """
    lines = [
        "| changed | pixels | tokens | blocks | batch | cores | GMACs, linear | GMACs, quadratic | forward, s an image "
        "| forward, MB an image | step, s an image | step, MB an image |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    rows_by_point = {(_point(row), row["work"]): row for row in rows}
    for axis, points in AXES.items():
        for point in points:
            both = [rows_by_point.get((point, work)) for work in ("forward", "train")]
            either = next(filter(None, both), None)
            if either is None:
                continue
            cells = [axis, point.size, either["tokens"], point.num_layers, point.batch_size, point.cores or "all"]
            cells += [f"{either['linear_macs'] / 1e9:.1f}", f"{either['square_macs'] / 1e9:.1f}"]
            for row in both:
                cells += [f"{row['seconds']:.3f}", _megabytes(row)] if row else ["", ""]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _megabytes(row):
    return "" if row["memory"] is None else f"{row['memory'] / 1e6:.0f}"


def plot(rows):
    """A matplotlib figure of the time and memory of an image over its number of tokens.

    Left: the areas are the two parts of the MACs, at the overall rate of the forward passes. Right: the broken line is
    the memory of the attention weights of all blocks, if training kept them.
    """
    from keras_vit.analysis.plots import ACCENT, FAINT, INK, MUTED, panels

    chosen = [row for row in rows if _point(row) in AXES["resolution"]]
    works = {work: sorted((r for r in chosen if r["work"] == work), key=_tokens) for work in ("forward", "train")}
    figure, [[times, memories]] = panels((5, 3.6), columns=2)
    forward = works["forward"]
    tokens, linear, square = (
        np.array([row[key] for row in forward]) for key in ("tokens", "linear_macs", "square_macs")
    )
    rate = sum(row["seconds"] for row in forward) / sum(linear + square)
    times.fill_between(tokens, 0, rate * linear, color=FAINT, label="MACs that grow as T")
    times.fill_between(tokens, rate * linear, rate * (linear + square), color=MUTED, alpha=0.5, label="as T$^2$")
    weights = [4 * row["heads"] * row["tokens"] ** 2 * row["num_layers"] / 1e6 for row in forward]
    memories.plot(tokens, weights, "--", color=MUTED, label="all weights of the attention")
    for (work, members), color in zip(works.items(), (ACCENT, INK), strict=True):
        name = {"forward": "forward pass", "train": "training step"}[work]
        times.plot(
            [row["tokens"] for row in members], [row["seconds"] for row in members], "o-", color=color, label=name
        )
        kept = [row for row in members if row["memory"] is not None]
        memories.plot(
            [row["tokens"] for row in kept], [row["memory"] / 1e6 for row in kept], "o-", color=color, label=name
        )
    times.set_ylabel("seconds an image")
    memories.set_ylabel("MB an image")
    for axis in (times, memories):
        axis.set_xlabel("tokens T of an image")
        axis.legend(frameon=False, fontsize=8)
    return figure


def _tokens(row):
    return row["tokens"]


def write_document(rows, figure=FIGURE):
    """Writes the table between the marks in its page, and saves the figure."""
    devices = sorted({row["device"] for row in rows if row["cores"] is None})
    versions = sorted({f"{name} {row['versions'][name]}" for row in rows for name in ("keras", "tensorflow")})
    text = f"{rows[0]['model']}, float32; {'; '.join(devices)}; {', '.join(versions)}:\n\n{table(rows)}"
    put_between("bench-size", text)
    plot(rows).savefig(figure, dpi=120, bbox_inches="tight")


def main(arguments=None):
    """Measures, prints and saves the results. Returns the exit status of the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", default="S/16", help="a variant of ViT")
    add("--axes", nargs="*", default=list(AXES), choices=AXES, metavar="AXIS", help=f"axes to measure, of {[*AXES]}")
    add("--work", nargs="+", default=["forward", "train"], choices=("forward", "train"))
    add_options(parser, "bench-size", "size")
    options = parser.parse_args(arguments)
    if options.document and not (options.axes or options.results.is_file()):
        parser.error(f"--document reads {options.results}, which does not exist yet. Measure first.")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    for point in dict.fromkeys(point for axis in options.axes for point in AXES[axis]):  # Some axes share points.
        for work in options.work:
            state = provenance()  # Read first: the code may change meanwhile.
            row = measure(options.model, work, point)
            row |= count(options.model, point.size, point.num_layers) | state
            append([row], options.results)
            print(f"{work} {point}: {row['seconds']:.3f} s, {_megabytes(row)} MB an image", flush=True)
    if options.results.is_file():
        rows = [row for row in newest(read(options.results), KEYS) if row["model"] == options.model]
        rows = [row for row in rows if _machine(row) == _machine(rows[-1])]
        print(table(rows))
        if options.document and not any(_point(row) in AXES["resolution"] for row in rows):
            parser.error(f"--document needs results of the axis 'resolution', but there are none for {options.model}.")
        if options.document:
            write_document(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
