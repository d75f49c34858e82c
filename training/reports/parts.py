"""The parts that the reports of all tasks have: origin, numbers, learning curves and pictures."""

import collections
import datetime
import os
import pathlib
import statistics
import sys
from html import escape

import keras
import numpy as np

import keras_vit
from training.errors import without_queries
from training.recipe.assignments import as_text, leaves, read_run_info
from training.recipe.config import to_dict
from training.reports import pages
from training.reports.figures import (
    SMALL_IMAGE,
    data_uri,
    encode_picture,
    plot_curve,
)

_DPI = 150


def origin(run, recipe, task, result):
    """The template values that identify a run and describe how to repeat it."""
    info = read_run_info(run.recipe)
    started = datetime.datetime.fromisoformat(info["started"])
    directory = recipe.data.directory and pathlib.PurePath(recipe.data.directory).name
    name = f"{recipe.name}: {directory}" if directory else recipe.name
    dataset = f"the {recipe.data.dataset} {directory}" if directory else recipe.data.dataset
    return {
        "kind": "Report of a training run",
        "heading": name,
        "title": f"{name}: {result}",
        "note": f"{task}, trained on {dataset}; started on {started:%d %B %Y at %H:%M}",
        "origin": pages.part(
            "origin",
            recipe=_rows(leaves(to_dict(recipe))),
            command=escape(without_queries(info["command"])),
            provenance=_rows(_provenance(info)),
        ),
    }


def cost_numbers(model, state):
    """(label, value, note) of each cost of a model and its training."""
    cost = keras_vit.profile(model)
    return [
        ("Training time", datetime.timedelta(seconds=round(state.seconds)), "hours:minutes:seconds"),
        ("Throughput", f"{statistics.median(state.throughput):,.0f}", _throughput_note(state.throughput)),
        ("Parameters", f"{cost.parameters / 1e6:,.2f} M", f"{cost.parameters:,}"),
        ("Multiply-accumulates", f"{cost.macs / 1e6:,.2f} M", f"{cost.macs:,} for one image"),
    ]


def number_list(numbers):
    """The HTML of a list of (label, value, note)."""
    return "".join(
        f"<div><dt>{label}</dt><dd>{value}</dd><dd class=note>{note}</dd></div>\n" for label, value, note in numbers
    )


def table(rows):
    """The HTML of the rows of a table: tuples of strings, the first with the column names."""
    header, *rows = ([*map(escape, row)] for row in rows)
    body = "\n".join(f"<tr><th scope=row>{'<td>'.join(row)}" for row in rows)
    return f"<thead><tr><th scope=col>{'<th scope=col>'.join(header)}</thead>\n<tbody>\n{body}\n</tbody>"


def _throughput_note(throughput):
    if len(throughput) == 1:
        return "images per second in training, including compilation"
    spread = f"{min(throughput):,.0f} to {max(throughput):,.0f}"
    return f"images per second in training: the median of {len(throughput)} intervals, {spread}"


def curves(run, recipe, state, quality, unit_of_loss="nats", least_loss=0.0):
    """Writes the learning curves, and returns their section of the page as HTML.

    Args:
        run: `training.runs.folder.Run` that the figures are written to.
        recipe: `training.recipe.config.Recipe`
        state: `training.runs.checkpoints.RunState`
        quality: (name in the history, label, factor of its values) of the metric that is shown beside the loss.
        unit_of_loss: Unit of the loss, or what it measures.
        least_loss: Lowest possible loss, drawn as a line. 0: no line.
    """
    history = {name: [row[name] for row in state.history] for name in state.history[0]}
    unit = "epoch" if recipe.fit.report_every == "1 epoch" else "step"
    panels = {
        "loss": ("loss", f"loss ({unit_of_loss})", 1),
        quality[0]: quality,
        "learning_rate": ("learning_rate", "learning rate", 1),
    }
    images = []
    for name, (key, label, scale) in panels.items():
        columns = {"training": key, "validation": f"val_{key}"}
        drawn = {curve: scale * np.array(history[key], float) for curve, key in columns.items() if key in history}
        least = least_loss if name == "loss" and least_loss else None
        ends = ", ".join(f"{curve} {values[-1]:.4g}" for curve, values in drawn.items())
        image = plot_curve(history[unit], drawn, unit, label, least)
        images.append(figure(run, name, image, f"{label} by {unit}; at the end: {ends}"))
    image = plot_curve(history[unit], {"training": state.throughput}, unit, "images per second")
    images.append(figure(run, "throughput", image, f"images per second in training, by {unit}"))
    note = f"With label smoothing, the loss cannot be lower than {least_loss:.3f} nats." if least_loss else ""
    return pages.part("curves", curves="\n".join(images), note=note)


def figure(run, name, drawn, alt):
    """Writes a matplotlib Figure to a run's folder, and returns its `<img>` element."""
    path = run.figures / f"{name}.png"
    drawn.savefig(path, dpi=_DPI)
    # At this width in CSS pixels (96 per inch), the figure has its original size. If it is narrower than 60 % of this
    # width, its text is too small to read.
    width = 96 * drawn.get_figwidth()
    attributes = f'width={width:.0f} style="min-width:{0.6 * width:.0f}px"'
    return _img_element(alt, attributes, path.read_bytes(), "image/png")


def picture(image, alt):
    """The `<img>` element of an image (H, W, channels) with pixels from 0 to 255."""
    return _img_element(alt, "class=small" if max(image.shape[:2]) < SMALL_IMAGE else "", *encode_picture(image))


def _img_element(alt, attributes, content, media_type):
    return f'<img {attributes} src="{data_uri(content, media_type)}" alt="{escape(alt)}">'


def _provenance(info):
    """Yields (name, text) pairs that describe the code, the package versions and the machine of a run."""
    git = info["git"] or {"commit": "unknown: not run from a git repository", "changed_files": []}
    yield "git commit", git["commit"]
    if git["changed_files"]:
        yield "files changed since the commit", ", ".join(line.split(maxsplit=1)[-1] for line in git["changed_files"])
    yield from info["versions"].items()
    backend = keras.backend.backend()
    yield "Keras backend", f"{backend} {sys.modules[backend].__version__}"
    yield "machine", info["machine"]
    yield "CPU cores", str(os.cpu_count())
    accelerators = collections.Counter(_accelerators(backend))
    yield "accelerators", ", ".join(f"{count} x {name}" for name, count in accelerators.items()) or "none"


def _accelerators(backend):
    if backend == "jax":
        import jax

        return [device.device_kind for device in jax.devices() if device.platform != "cpu"]
    import tensorflow as tf

    devices = [device for device in tf.config.list_physical_devices() if device.device_type != "CPU"]
    details = map(tf.config.experimental.get_device_details, devices)
    return [detail.get("device_name", device.device_type) for device, detail in zip(devices, details, strict=True)]


def _rows(pairs):
    return "\n".join(f"<tr><th scope=row>{escape(name)}<td>{escape(as_text(value))}" for name, value in pairs)
