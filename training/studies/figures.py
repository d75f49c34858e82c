"""Figures of studies: measured results beside the published results of a paper, in separate panels."""

import dataclasses
import itertools
import textwrap

import matplotlib
import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from keras_vit.analysis.plots import FAINT, INK, panels

# Colours that people with any colour vision can tell apart (Okabe and Ito, 2008). Pale colours are darkened for a white
# background.
_COLORS = ("#1d5fa6", "#c4541b", "#0b8a66", "#8a5aa8", "#a07400", "#5f6b7a", "#b0306a", "#3c93c2")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_PANEL = (5.4, 4.4)  # Inches.
_WORD = 1.0  # Width of a category on the x axis, in inches.
_TITLE_SIZE = 10.5
_LEGEND_COLUMNS = 3
# The x axis has a label at every x value only if there are at most 7 values, each with at most 7 characters.
_FEW_TICKS, _SHORT = 7, 7


@dataclasses.dataclass(frozen=True)
class Value:
    """A point of a panel. `low` and `high` are the lowest and the highest value over several seeds."""

    x: float | str
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Panel:
    """A panel of a figure, with one or more series of values.

    Args:
        title: Source and subject of the values.
        x_label: Label of the x axis, with its unit. The axis is logarithmic for numbers, and categorical for strings.
        y_label: Label of the y axis, with its unit.
        series: {name: list of `Value`}. A name has the same colour in all panels of a figure.
        note: Sentence below the panel, such as the source of the values.
        is_log: Whether the y axis is logarithmic.
    """

    title: str
    x_label: str
    y_label: str
    series: dict[str, list[Value]]
    note: str = ""
    is_log: bool = False

    @property
    def is_numeric(self):
        """Whether the x values are numbers."""
        return not any(isinstance(value.x, str) for values in self.series.values() for value in values)


def plot_panels(shown):
    """A figure of panels side by side. Points of several seeds have whiskers from the lowest to the highest value."""
    figure, all_axes = _axes_of(shown)
    names = dict.fromkeys(name for panel in shown for name in panel.series)
    looks = zip(itertools.cycle(_COLORS), itertools.cycle(_MARKERS), strict=False)
    styles = {name: {"color": color, "marker": marker} for name, (color, marker) in zip(names, looks, strict=False)}
    for panel, axes in zip(shown, all_axes, strict=True):
        draw = _draw_curves if panel.is_numeric else _draw_categories
        draw(axes, panel, styles)
        axes.grid(axis="y", color=FAINT, lw=0.6)
        if len(panel.series) > 1:
            _add_legend(axes, panel)
    return figure


def _add_legend(axes, panel):
    """Puts the legend between the title and the axes, where it covers no value."""
    rows = -(-len(panel.series) // _LEGEND_COLUMNS)
    handles = [container[0] for container in axes.containers]  # Only the points, without their whiskers.
    axes.legend(
        *(handles, panel.series),
        loc="lower left",
        bbox_to_anchor=(-0.02, 1),
        ncols=_LEGEND_COLUMNS,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
    axes.set_title(axes.get_title("left"), size=_TITLE_SIZE, loc="left", pad=12 + 16 * rows)


def _draw_curves(axes, panel, styles):
    for name, values in panel.series.items():
        values = sorted(values, key=lambda value: value.x)
        _draw(axes, name, [value.x for value in values], values, styles[name], line="-")
    numbers = sorted({value.x for values in panel.series.values() for value in values})
    axes.set_xscale("log")
    are_short = all(len(_as_number(number, None)) <= _SHORT for number in numbers)
    are_apart = all(after > 1.4 * before for before, after in itertools.pairwise(numbers))
    if len(numbers) <= _FEW_TICKS and are_short and are_apart:
        axes.xaxis.set_major_locator(FixedLocator(numbers))
    else:  # If the axis spans less than two decades, ticks are at 1, 2 and 5 times each power of ten.
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if numbers[-1] < 100 * numbers[0] else (1,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_as_number))


def _as_number(value, _):
    return f"{value:,.10g}" if 1e-4 <= value < 1e6 else f"{value:.0e}".replace("e-0", "e-")


def _draw_categories(axes, panel, styles):
    names = _categories(panel)
    beside = {x: [name for name, values in panel.series.items() if any(v.x == x for v in values)] for x in names}
    for name, values in panel.series.items():
        shifts = [0.6 * ((beside[value.x].index(name) + 0.5) / len(beside[value.x]) - 0.5) for value in values]
        positions = [names.index(value.x) + shift for value, shift in zip(values, shifts, strict=True)]
        _draw(axes, name, positions, values, styles[name], line="")
    axes.set_xticks(range(len(names)), ["\n".join(textwrap.wrap(name, 14)) for name in names])
    axes.set_xlim(-0.6, len(names) - 0.4)


def _categories(panel):
    """The categories on the x axis of a panel. Empty if the x values are numbers."""
    if panel.is_numeric:
        return []
    return list(dict.fromkeys(value.x for values in panel.series.values() for value in values))


def plot_bars(title, groups, series, y_label):
    """A figure of grouped bars.

    Args:
        title: Title of the figure.
        groups: Names of the groups.
        series: {name: (values, is_printed)}. The values are numbers or `None`, one for each group. `is_printed` tells
            whether the values were published in a paper. The bars of published values are hatched.
        y_label: Label of the y axis, with its unit.
    """
    figure, [[axes]] = panels((max(7.0, 0.55 * len(groups) * (len(series) + 1)), 4.2))
    width = 0.84 / len(series)
    num_own = sum(not is_printed for _, is_printed in series.values())
    grays = matplotlib.colormaps["Greys"](np.linspace(0.62, 0.3, len(series) - num_own))
    for number, (name, (values, is_printed)) in enumerate(series.items()):
        positions = np.arange(len(groups)) + (number + 0.5) * width - 0.42
        heights = [np.nan if value is None else value for value in values]
        options: dict = {"color": _COLORS[number % len(_COLORS)]}
        if is_printed:
            options = {"color": grays[number - num_own], "hatch": "///", "edgecolor": "white", "lw": 0}
        bars = axes.bar(positions, heights, 0.92 * width, label=name, **options)
        texts = ["" if value is None else f"{value:.1f}" for value in values]
        axes.bar_label(bars, texts, padding=2, color=INK, size=7.5)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(y_label)
    axes.set_title(title, size=11, loc="left")
    axes.set_ylim(0, 100)
    axes.grid(axis="y", color=FAINT, lw=0.6)
    figure.legend(loc="outside lower center", ncols=min(len(series), 4), frameon=False, labelcolor=INK)
    return figure


def _axes_of(shown):
    width = max(_PANEL[0], *(_WORD * len(_categories(panel)) for panel in shown))
    figure, [all_axes] = panels((width, _PANEL[1]), columns=len(shown))
    for panel, axes in zip(shown, all_axes, strict=True):
        title = "\n".join(textwrap.wrap(panel.title, 54, break_on_hyphens=False))
        axes.set_title(title, size=_TITLE_SIZE, loc="left")
        note = "\n".join(textwrap.wrap(panel.note, 66))
        axes.set_xlabel(panel.x_label + (f"\n{note}" if note else ""))
        axes.set_ylabel(panel.y_label)
        if panel.is_log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(_as_number))
            axes.yaxis.set_minor_formatter(NullFormatter())
    return figure, all_axes


def _draw(axes, name, positions, values, style, line):
    means = np.array([value.y for value in values], float)
    low = [value.y if value.low is None else value.low for value in values]
    high = [value.y if value.high is None else value.high for value in values]
    whiskers = [means - low, high - means]
    axes.errorbar(positions, means, whiskers, ls=line, lw=1.6, ms=6, elinewidth=1.2, label=name, **style)
    for number, (position, value) in enumerate(zip(positions, values, strict=True)):
        # To avoid overlaps, labels of every second series are above the points. If two points are close, one label is
        # above and one below.
        is_above = _COLORS.index(style["color"]) % 2
        if number and position < 1.4 * positions[number - 1]:
            is_above = False
        elif number + 1 < len(positions) and positions[number + 1] < 1.4 * position:
            is_above = True
        options = {"ha": "right" if is_above else "left", "size": 8, "color": style["color"]}
        offset = (-5, 4) if is_above else (5, -9)
        axes.annotate(value.label, (position, value.y), offset, textcoords="offset points", **options)
