"""Compares the speed of our models with that of other projects: forward passes and training steps.

Command: make bench ARGS="--models S/16 B/16 --work forward train"

Every contender runs in its own process. In each round every contender makes some steps in turn, in a random order, so
that other work on the machine affects all of them alike. Steps before the first round are not counted. The rate of a
contender is the median over the rounds. Its ratio to ours is the median of the ratios round by round. Its share is
relative to the rate at which the same machine multiplies two matrices in the same rounds.

A line of JSON for each contender is added to benchmarks/results/comparison.jsonl, with device, commit and versions.
--document plots the newest lines and writes them into docs/performance/comparison.md. --list shows what would run, and
why the rest would not.
"""

import argparse
import contextlib
import dataclasses
import io
import itertools
import math
import os
import pathlib
import sys
import tempfile
import time

import numpy as np

from benchmarks.contenders import CONTENDERS, REFERENCE_OF_INT8
from benchmarks.contenders.matrix_product import flops_of_product, open_matrix_product
from benchmarks.provenance import provenance
from benchmarks.records import FIGURES, add_options, append, newest, put_between, read
from benchmarks.workers import Job, Measured, OutOfMemoryError

OURS = "ours"
FIGURE, RELATIVE_FIGURE = FIGURES / "performance.png", FIGURES / "relative_speed.png"
_MODELS = ["S/16", "B/16"]
_EVERY_MODEL = ["Ti/16", "S/16", "B/16", "L/16", "R50+B/16", "VTResNet50"]
_OUR_NAME = "keras_vit"
"""Start of the titles of our contenders."""
_PAUSE = 0.1
"""Seconds before a contender's turn: threads of the previous one wait actively for a while."""
_COLUMNS = 3
"""Columns of panels in a figure."""
_PRODUCTS = 20
"""Products of matrices in a round."""
_KEYS = ("device", "work", "model", "size", "precision", "batch_size")
"""Keys that are equal for all contenders of one comparison."""
_RELATIVE = {"model": "S/16", "size": 224, "precision": "float32", "batch_size": 8}
"""The comparisons that the figure of relative speeds shows."""


@dataclasses.dataclass
class Entry:
    """A contender in a comparison: its process, the seconds of its first step and of each round. The
    seconds until it was ready, its peak memory during the steps, in bytes, and its device are set at the end."""

    process: Measured
    first: float
    seconds: list
    ready: float | None = None
    memory: int | None = None
    device: str | None = None


def compare(job, contenders, batch_size, steps, rounds):
    """Measures contenders against each other.

    Args:
        job: `Job`
        contenders: {name: `open_steps`, as in `Measured`}
        batch_size: Number of images in a step.
        steps: Number of steps in a turn.
        rounds: Number of turns of each contender.

    Returns:
        {name: `Entry`}, with the product of matrices under `None`. A contender that fails is reported and left out.
    """
    entries, rng = {}, np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        for name, open_steps in [(None, open_matrix_product), *contenders.items()]:
            process = stack.enter_context(Measured(job, open_steps))
            first = _seconds(name, process, batch_size, 1)
            if first is not None and _seconds(name, process, batch_size, steps) is not None:
                entries[name] = Entry(process, first, [])
        for _ in range(rounds):
            for name in rng.permutation(list(entries)):
                time.sleep(_PAUSE)
                seconds = _seconds(name, entries[name].process, batch_size, steps)
                if seconds is None:
                    del entries[name]
                else:
                    entries[name].seconds.append(seconds)
        for entry in entries.values():
            process = entry.process
            entry.ready, entry.memory, entry.device = process.ready_seconds, process.peak_memory, process.device
    return entries


def _seconds(name, process, batch_size, steps):
    """Seconds of a turn, or `None` after a failure, which is reported. Raises an error if the product itself fails."""
    try:
        return process.seconds(batch_size, 0, _PRODUCTS if name is None else steps)
    except (RuntimeError, OutOfMemoryError) as error:
        if name is None:
            message = "The reference product of two matrices failed, so no contender can be measured."
            raise RuntimeError(message) from error
        print(f"  {name} failed: {error}", file=sys.stderr)
        return None


def rows_of(job, entries, batch_size, steps, macs):
    """The lines of the results, one for each contender.

    Args:
        job: `Job`
        entries: What `compare` returns.
        batch_size: Number of images in a step.
        steps: Number of steps in a turn.
        macs: Multiply-accumulates of an image's forward pass. A training step counts as three forward passes.

    Returns:
        List of dictionaries. Share and ratio are `None` if the devices differ. In int8, the ratio is to our OpenVINO
        file in float32.
    """
    flops = 2 * macs * {"forward": 1, "train": 3}[job.work]
    products, ours = entries[None], entries.get(REFERENCE_OF_INT8 if job.precision == "int8" else OURS)
    rows = []
    for name in [name for name in entries if name is not None]:
        entry = entries[name]
        rates = batch_size * steps / np.array(entry.seconds)
        share = flops * rates * np.array(products.seconds) / (_PRODUCTS * flops_of_product())
        ratio = np.divide(ours.seconds, entry.seconds) if ours and ours.device == entry.device else None
        low, median, high = np.percentile(rates, [25, 50, 75])
        row = {"contender": name, "batch_size": batch_size, "rounds": len(rates), "device": entry.device}
        row |= {"images_per_second": round(median, 2), "low": round(low, 2), "high": round(high, 2)}
        row["share_of_products"] = round(np.median(share), 3) if entry.device == products.device else None
        row["times_ours"] = None if ratio is None else round(np.median(ratio), 3)
        row |= {"ready_seconds": round(entry.ready, 2), "first_step_seconds": round(entry.first, 2)}
        row["peak_memory"] = entry.memory
        rows.append(dataclasses.asdict(job) | row)
    return rows


def table(rows):
    """Markdown: the contenders of each work, model and precision, the fastest first.

    Args:
        rows: Lines of the results.

    Returns:
        Text.
    """
    lines = [
        "| work | model | precision | batch | contender | images a second | quartiles | times ours | share of products "
        "| ready, s | compiling, s | memory, GB |",
        "|---|---|---|--:|---|--:|---|--:|--:|--:|--:|--:|",
    ]
    for row in sorted(rows, key=lambda row: (*(row[key] for key in _KEYS), -row["images_per_second"])):
        size = "" if row["size"] == 224 else f" at {row['size']}"
        memory = f"{row['peak_memory'] / 1e9:.1f}" if row["peak_memory"] else ""
        ratio = "" if row["times_ours"] is None else f"{row['times_ours']:.2f}"
        share = "" if row["share_of_products"] is None else f"{row['share_of_products']:.0%}"
        cells = [row["work"], row["model"] + size, row["precision"], str(row["batch_size"])]
        cells += [CONTENDERS[row["contender"]].title, f"{row['images_per_second']:.1f}"]
        cells += [f"{row['low']:.1f} to {row['high']:.1f}", ratio, share]
        # How much longer the first step takes than another step.
        compiling = max(0.0, row["first_step_seconds"] - row["batch_size"] / row["images_per_second"])
        ready = row.get("ready_seconds")  # Older lines have none.
        cells += ["" if ready is None else f"{ready:.1f}", f"{compiling:.1f}", memory]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(rows):
    """A figure of images a second, with a panel for each device, work, model and precision. Our bars are dark."""
    from keras_vit.analysis.plots import FAINT, INK, panels

    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in _KEYS), []).append(row)
    # Groups with our models only are left out, unless there are no others.
    compared = {group: members for group, members in groups.items() if not all(map(_is_ours, members))}
    groups = dict(sorted((compared or groups).items()))
    columns = min(_COLUMNS, len(groups))
    figure, axes = panels((7, 4.2), rows=math.ceil(len(groups) / columns), columns=columns)
    for axis in axes.flat[len(groups) :]:
        axis.remove()
    for axis, (group, members) in zip(axes.flat, groups.items(), strict=False):
        device, work, model, size, precision, batch = group
        members = sorted(members, key=lambda row: row["images_per_second"])
        titles = [CONTENDERS[row["contender"]].title.replace("`", "") for row in members]
        colors = [INK if _is_ours(row) else FAINT for row in members]
        rates = np.array([row["images_per_second"] for row in members])
        spread = [rates - [row["low"] for row in members], [row["high"] for row in members] - rates]
        axis.barh(titles, rates, xerr=spread, color=colors, ecolor="grey")
        axis.set_title(f"{model}, {size} px, {work}, {precision}, batches of {batch}\n{device}")
        axis.set_xlabel("images a second")
    return figure


def relative_rates(rows):
    """Rates of S/16 divided by ours, as in `_RELATIVE`: {work: {title of a contender: {device: ratio}}}."""
    rates = {}
    for row in rows:
        if row["times_ours"] is not None and {key: row[key] for key in _RELATIVE} == _RELATIVE:
            ratios = rates.setdefault(row["work"], {}).setdefault(CONTENDERS[row["contender"]].title, {})
            ratios[row["device"]] = row["times_ours"]
    return rates


def plot_relative(rates):
    """A figure of the result of `relative_rates`: a panel for each work, with a mark for each device."""
    from keras_vit.analysis.plots import ACCENT, FAINT, INK, MUTED, panels

    devices = sorted({device for ratios in rates.values() for by_device in ratios.values() for device in by_device})
    marks = dict(zip(devices, itertools.cycle([("o", INK), ("D", ACCENT), ("s", MUTED), ("^", ACCENT)]), strict=False))
    heights = [len(ratios) + 1 for ratios in rates.values()]
    size = (7, (0.3 * sum(heights) + 1.5) / len(rates))
    figure, axes = panels(size, rows=len(rates), sharex=True, height_ratios=heights)
    for axis, (work, ratios) in zip(axes.flat, rates.items(), strict=True):
        titles = sorted(ratios, key=lambda title: np.median([*ratios[title].values()]))
        axis.grid(axis="y", color=FAINT, linewidth=0.6)
        axis.axvline(1, color=FAINT, linewidth=2, zorder=0)
        for device, (marker, color) in marks.items():
            places = [place for place, title in enumerate(titles) if device in ratios[title]]
            values = [ratios[titles[place]][device] for place in places]
            axis.plot(values, places, marker, color=color, label=device, alpha=0.85)
        axis.set_yticks(range(len(titles)), [title.replace("`", "") for title in titles])
        for label, title in zip(axis.get_yticklabels(), titles, strict=True):
            label.set(color=INK if title.startswith(_OUR_NAME) else MUTED)
            label.set(weight="bold" if title.startswith(_OUR_NAME) else "normal")
        axis.set_title({"forward": "Forward pass", "train": "Training step"}[work])
    axes.flat[-1].set_xlabel("speed relative to keras_vit on TensorFlow")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", frameon=False)
    return figure


def _is_ours(row):
    return CONTENDERS[row["contender"]].title.startswith(_OUR_NAME)


def write_document(rows, figure=FIGURE, relative_figure=RELATIVE_FIGURE):
    """Writes a table for each device between the marks in its page, and saves the figures."""
    parts = []
    for device in sorted({row["device"] for row in rows}):
        device_rows = [row for row in rows if row["device"] == device]
        versions = sorted({f"{name} {version}" for row in device_rows for name, version in row["versions"].items()})
        parts.append(f"### {device}\n\n{', '.join(versions)}:\n\n{table(device_rows)}")
    put_between("bench", "\n".join(parts))
    _save(plot(rows), figure)
    compared = relative_rates(rows)
    if compared:
        _save(plot_relative(compared), relative_figure)


def _save(figure, path):
    """Saves a figure with a palette of 64 colours. The file is a third as large as with all colours."""
    from PIL import Image

    with io.BytesIO() as file:
        figure.savefig(file, dpi=120, bbox_inches="tight")
        Image.open(file).convert("RGB").quantize(64).save(path, optimize=True)


def _macs(job):
    """Multiply-accumulates of a forward pass."""
    import keras

    import keras_vit
    from benchmarks.contenders.keras_models import build_ours

    with keras.StatelessScope(initialize_variables=False):
        return keras_vit.profile(build_ours(job)).macs


def _parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="*", default=_MODELS, help="variants, or functions of keras_vit such as VTResNet50")
    add("--size", type=int, default=224, help="side of the images in pixels")
    add("--work", nargs="+", default=["forward"], choices=("forward", "train"))
    add("--precision", nargs="+", default=["float32"], choices=("float32", "bfloat16", "int8"))
    add(
        "--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS, metavar="NAME", help=str([*CONTENDERS])
    )
    add("--batch", type=int, default=8, help="number of images in a step")
    add("--steps", type=int, default=6, help="number of steps in a turn")
    add("--rounds", type=int, default=9, help="number of turns of each contender")
    add("--everything", action="store_true", help="measure all models, works and precisions, which takes hours")
    add("--list", action="store_true", help="list the measurements without running them")
    add_options(parser, "bench", "comparison")
    options = parser.parse_args(arguments)
    if options.document and not (options.models or options.results.is_file()):
        parser.error(f"--document reads {options.results}, which does not exist yet. Measure first.")
    return options


def main(arguments=None):
    """Measures, prints and saves the results. Returns the exit status of the process."""
    options = _parse(arguments)
    # On a GPU all contenders share the device, so none may reserve all its memory at the start.
    os.environ |= {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for job in _jobs(options):
        _run(job, options)
    if options.document and not options.list:
        write_document(newest(read(options.results), _KEYS))
    return 0


def _jobs(options):
    if not options.everything:
        products = itertools.product(options.models, [options.size], options.work, options.precision)
        return [Job(*product) for product in products]
    sizes = [(model, 224) for model in _EVERY_MODEL] + [("B/16", 384)]
    kinds = [*itertools.product(("forward", "train"), ("float32", "bfloat16")), ("forward", "int8")]
    return [Job(*size, *kind) for size, kind in itertools.product(sizes, kinds)]


def _run(job, options):
    reasons = {name: CONTENDERS[name].missing(job) for name in options.contenders}
    present = [name for name, reason in reasons.items() if reason is None]
    print(f"{job.work} of {job.model} at {job.size} pixels in {job.precision}: {', '.join(present)}")
    for name, reason in reasons.items():
        if reason is not None:
            print(f"  without {name}: {reason}")
    if options.list or not present:
        return
    macs = _macs(job)
    state = provenance()  # Measuring takes long, and the code may change meanwhile, so this is read first.
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(job, present, pathlib.Path(folder))
        entries = compare(job, prepared, options.batch, options.steps, options.rounds)
    rows = rows_of(job, entries, options.batch, options.steps, macs)
    append([row | state for row in rows], options.results)
    print(table(rows), flush=True)


def prepare(job, names, folder):
    """{name: `open_steps`} of the contenders with files that can be written. The others are reported."""
    prepared = {}
    for name in names:
        try:
            prepared[name] = CONTENDERS[name].prepare(job, folder)
        except RuntimeError as error:
            print(f"  {name} failed: {error}", file=sys.stderr)
    return prepared


if __name__ == "__main__":
    sys.exit(main())
