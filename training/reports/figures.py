"""Draws the figures and pictures of a report."""

import base64
import io

import matplotlib
import numpy as np
import PIL.Image
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure

from keras_vit.analysis.plots import ACCENT, FAINT, INK, MUTED, panels, style

FEW_CLASSES = 20  # Up to this number of classes, confusion matrices show counts, and the table of classes is expanded.
SMALL_IMAGE = 64  # Pixels. Smaller images are enlarged without smoothing, because smoothing would blur them.
_COLORS = {"training": "#98a2b0", "validation": ACCENT}
_BLUES = LinearSegmentedColormap.from_list("blues", ["#f1f4f8", "#a9c8e6", "#1d5fa6", "#0b2f57"])
_HEAT = matplotlib.colormaps["inferno"]
_OPACITY = 0.65  # Opacity of the colours over an image.
_UNKNOWN = "#98a2b0"
ERROR_SCALE = ScalarMappable(Normalize(-50, 50), matplotlib.colormaps["RdBu_r"].with_extremes(bad=_UNKNOWN))
"""Colours of relative errors in per cent: blue is too low, red is too high."""


def plot_curve(positions, curves, unit, label, least=None):
    """Plots curves over the course of a run.

    Args:
        positions: Epoch or step of each value.
        curves: `{"training": values, "validation": values}`, or only one of the two.
        unit: Unit of the positions.
        label: Label of the values.
        least: Lowest possible value, drawn as a line. `None`: no line.
    """
    figure, [[axes]] = panels()
    marker = "o" if len(positions) <= 10 else None
    for name, values in curves.items():
        axes.plot(positions, np.asarray(values, float), color=_COLORS[name], lw=2, marker=marker, label=name)
    if least is not None:
        axes.axhline(least, color=MUTED, lw=1, ls=(0, (4, 3)), label="least possible", zorder=1)
    if len(axes.lines) > 1:
        figure.legend(loc="outside upper left", ncols=3, frameon=False, labelcolor=INK)
    axes.set_xlabel(unit)
    axes.set_ylabel(label)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1, nbins=6)
    axes.yaxis.get_major_locator().set_params(nbins=5)
    axes.grid(axis="y", color=FAINT, lw=0.6)
    return figure


_MANY_POINTS = 300  # More points are drawn small and pale, because they overlap.


def plot_scatter(true, predicted, label):
    """Predicted values against true ones, with the line on which they are equal."""
    figure, [[axes]] = panels()
    ends = [min(true.min(), predicted.min()), max(true.max(), predicted.max())]
    axes.plot(ends, ends, color=MUTED, lw=1, ls=(0, (4, 3)), zorder=1)
    size, alpha = (9, 0.35) if len(true) > _MANY_POINTS else (30, 0.8)
    axes.scatter(true, predicted, s=size, color=ACCENT, alpha=alpha, linewidths=0)
    axes.set_xlabel(f"true {label}")
    axes.set_ylabel(f"predicted {label}")
    axes.grid(color=FAINT, lw=0.6)
    return figure


def plot_precision(curves):
    """Precision by recall. `curves` are {name of the score: precision (101,) at recalls from 0 to 1}, at most three."""
    figure, [[axes]] = panels()
    for (label, precision), color in zip(curves.items(), (ACCENT, "#d55e00", MUTED), strict=False):
        axes.plot(np.linspace(0, 100, len(precision)), 100 * precision, color=color, lw=2, label=label)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, labelcolor=INK)
    axes.set(xlim=(0, 100), ylim=(0, 101), xlabel="recall (% of the objects)", ylabel="precision (%)")
    axes.grid(color=FAINT, lw=0.6)
    return figure


def depth_scale(low, high, is_inverse=False):
    """The colours of depths from `low` to `high`: near is light. Equal ratios have equal differences of colour."""
    heat = _HEAT if is_inverse else _HEAT.reversed()
    return ScalarMappable(LogNorm(low, high), heat.with_extremes(bad=_UNKNOWN))


def plot_color_bars(scales):
    """Colour bars of `scales`, {label: ScalarMappable}, one beside the other."""
    figure, axes = panels((4.2, 0.8), columns=len(scales))
    for ax, (label, scale) in zip(axes.flat, scales.items(), strict=True):
        ticks = _log_ticks(scale.norm.vmin, scale.norm.vmax) if isinstance(scale.norm, LogNorm) else None
        bar = figure.colorbar(scale, cax=ax, orientation="horizontal", ticks=ticks, format="%.3g")
        bar.minorticks_off()
        bar.set_label(label, color=INK)
        bar.outline.set_visible(False)
        bar.ax.tick_params(which="both", length=0, colors=MUTED)
    return figure


def _log_ticks(low, high):
    """Numbers with one digit, or evenly spaced ones if the range contains fewer than three of them."""
    round_numbers = [digit * 10.0**power for power in range(-9, 10) for digit in (1, 2, 5)]
    inside = [number for number in round_numbers if low <= number <= high]
    return inside if len(inside) > 2 else np.geomspace(low, high, 4)


def plot_calibration(calibration):
    """A reliability diagram (arXiv 1706.04599, figure 1): the accuracy of the predictions by their confidence."""
    figure, [[axes]] = panels()
    num_bins = len(calibration.counts)
    filled = np.flatnonzero(calibration.counts)
    centres, accuracy = 100 * (filled + 0.5) / num_bins, 100 * calibration.accuracy[filled]
    axes.bar(centres, accuracy, width=90 / num_bins, color=_COLORS["validation"], label="accuracy by bin")
    axes.plot([0, 100], [0, 100], color=MUTED, lw=1, ls=(0, (4, 3)), label="perfect calibration")
    figure.legend(loc="outside upper left", ncols=2, frameon=False, labelcolor=INK)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.set_xlabel("probability of the predicted class (%)")
    axes.set_ylabel("accuracy (%)")
    axes.grid(axis="y", color=FAINT, lw=0.6)
    return figure


def plot_confidence(calibration):
    """A histogram of the confidence of the predictions."""
    bounds = np.linspace(0, 100, len(calibration.counts) + 1)
    figure = plot_histogram(bounds, calibration.counts, "probability of the predicted class (%)", "images")
    figure.axes[0].yaxis.get_major_locator().set_params(integer=True)
    return figure


def plot_histogram(bounds, heights, label, unit):
    """A histogram of bins between `bounds`, (n + 1,), with `heights`, (n,).

    `label` describes the bounds, and `unit` the heights.
    """
    figure, [[axes]] = panels()
    axes.bar((bounds[:-1] + bounds[1:]) / 2, heights, width=0.9 * np.diff(bounds), color=MUTED)
    axes.set(xlim=(bounds[0], bounds[-1]), xlabel=label, ylabel=unit)
    axes.grid(axis="y", color=FAINT, lw=0.6)
    return figure


def plot_confusion_matrix(counts, class_names):
    """A confusion matrix. Rows are true classes. A cell's colour shows its count divided by the sum of its row."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(max(0.44 * len(counts), 3.2), 8.0)
    figure = Figure(figsize=(side + 0.9, side + 1.6), layout="constrained")
    axes = figure.add_subplot()
    # The square root makes confusions of a few per cent visible.
    matrix = axes.imshow(shares, cmap=_BLUES, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    bar = figure.colorbar(matrix, ax=axes, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1], location="bottom", aspect=40)
    bar.ax.set_xticklabels(["0", "1", "5", "20", "50", "100"])
    bar.set_label("% of the true class (square-root scale)", color=MUTED)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, colors=MUTED)
    style(axes)
    _name_classes(axes, class_names, side)
    if len(counts) <= FEW_CLASSES:
        axes.set_xticks(np.arange(len(counts) - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(len(counts) - 1) + 0.5, minor=True)
        axes.grid(which="minor", color="white", lw=1.5)
        for row, column in np.argwhere(counts):
            color = "white" if shares[row, column] > 0.3 else INK
            axes.text(column, row, f"{counts[row, column]}", ha="center", va="center", color=color, size=10)
    return figure


def overlay_attention(image, attention):
    """Overlays an image, converted to gray, with the colours of an attention map. Light colours are high values.

    Args:
        image: (H, W, channels), pixels from 0 to 255.
        attention: (h, w), from 0 to 1. It is resized bilinearly to the image.

    Returns:
        uint8 (H, W, 3)
    """
    height, width = image.shape[:2]
    enlarged = PIL.Image.fromarray(attention.astype("float32")).resize((width, height), PIL.Image.Resampling.BILINEAR)
    colors = 255 * _HEAT(np.asarray(enlarged))[..., :3]
    gray = np.asarray(image, float).mean(axis=-1, keepdims=True)
    return np.rint(_OPACITY * colors + (1 - _OPACITY) * gray).astype("uint8")


def encode_picture(image):
    """Encodes a picture for a page: small pictures as PNG, others as JPEG. Returns the bytes and their media type.

    Args:
        image: (H, W, channels), pixels from 0 to 255, 1 or 3 channels.
    """
    pixels = np.clip(np.rint(image), 0, 255).astype("uint8")
    picture = PIL.Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    kind, options = ("png", {}) if max(picture.size) < SMALL_IMAGE else ("jpeg", {"quality": 90})
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue(), f"image/{kind}"


def data_uri(content, media_type="image/png"):
    """The data URI of a picture, which embeds it in a page."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _name_classes(axes, class_names, side):
    step = -(-len(class_names) // 100)  # One side of the matrix has room for 100 names.
    positions = range(0, len(class_names), step)
    names = [name if len(name) <= 18 else f"{name[:17]}…" for name in map(class_names.__getitem__, positions)]
    size = min(10.0, 72 * side / len(positions) * 0.8)
    upright = len(names) <= FEW_CLASSES and max(map(len, names)) <= 5
    axes.set_xticks(positions, names, size=size, rotation=0 if upright else 90, parse_math=False)
    axes.set_yticks(positions, names, size=size, parse_math=False)
    note = f" (1 in {step} is named)" if step > 1 else ""
    axes.set_xlabel(f"predicted class{note}")
    axes.set_ylabel(f"true class{note}")
