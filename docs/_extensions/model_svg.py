"""Draws the panels of `model-diagram` as SVG. Colours are classes of docs/_static/diagrams.css, for light and dark."""

import dataclasses
import html

WIDTH = 340
TIMES = "\u00d7"
_HEIGHT, _GAP = 46, 12  # Of the rows of a whole model.
_INNER_HEIGHT, _INNER_GAP = 32, 12
_TITLE = 30
_RAIL = 28  # Space at the left of an inner panel for residual connections.
_SIDE = 48  # Space at the left of a side input for the line that leads past it.


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a panel: a layer, or several layers of the same kind.

    Args:
        name: Name of the layer, or of the group of layers.
        title: What the layer is.
        detail: Second line, such as the names of the layers.
        shape: Output shape without the batch.
        num_prefix: Number of tokens in front of the patch tokens.
        is_highlighted: Whether the row is special for the family.
        is_side_input: Whether the row is an additional input of the next row. The next row then also gets the output of
            the previous row.
    """

    name: str
    title: str
    detail: str
    shape: tuple[int, ...]
    num_prefix: int = 0
    is_highlighted: bool = False
    is_side_input: bool = False


def model_panel(name, rows):
    """A whole model, from the image to the output. Each row has a pictogram of its output."""
    parts, y = [_heading(name)], _TITLE
    for row in rows:
        x = _SIDE if row.is_side_input else 0
        if row.is_side_input:
            parts.append(_connector(_SIDE / 2, y - _GAP, _HEIGHT + 2 * _GAP))
        elif y > _TITLE:
            parts.append(_connector(WIDTH / 2, y - _GAP, _GAP))
        parts += [_box(x, y, _HEIGHT, row), _pictogram(row, x + 25, y + _HEIGHT / 2)]
        parts += [
            _text(x + 54, y + 20, row.title, "name"),
            _text(x + 54, y + 36, row.detail, "detail"),
            _text(WIDTH - 10, y + 28, show_shape(row.shape), "shape"),
        ]
        y += _HEIGHT + _GAP
    return _svg(y - _GAP + 2, parts, f"Diagram of {name}: {_described(rows)}")


def inner_panel(model, layer, rows, residuals):
    """The inside of a layer. `residuals` are pairs of indices: the first and the last row of a residual branch."""
    parts, y = [_heading(model, f" inside {layer}")], _TITLE + _INNER_GAP
    starts, x = {}, (WIDTH + _RAIL) / 2
    parts.append(_connector(x, y - _INNER_GAP, _INNER_GAP))
    for i, row in enumerate(rows):
        starts |= {last: y for first, last in residuals if first == i}
        parts += [_box(_RAIL, y, _INNER_HEIGHT, row), _text(_RAIL + 12, y + 21, row.title, "name")]
        parts.append(_text(WIDTH - 10, y + 21, show_shape(row.shape), "shape"))
        y += _INNER_HEIGHT
        if i in starts:
            parts += [_connector(x, y, 9), _sum(x, starts[i] - _INNER_GAP / 2, y + 18)]
            y += 27
        parts.append(_connector(x, y, _INNER_GAP))
        y += _INNER_GAP
    sums = " Each residual branch is added to its input." if residuals else ""
    return _svg(y, parts, f"Diagram of {layer} in {model}: {_described(rows)}{sums}")


def show_shape(shape):
    """A shape as text, such as 14 x 14 x 768."""
    return f" {TIMES} ".join(map(str, shape))


def _described(rows):
    return "; ".join(f"{row.title} ({show_shape(row.shape)})" for row in rows) + "."


def _svg(height, parts, description):
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img" aria-label="{html.escape(description)}">'
        f"{''.join(parts)}</svg>"
    )


def _text(x, y, text, kind):
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{html.escape(text)}</text>'


def _heading(name, rest=""):
    # Long headings are compressed. The widths of the characters are estimates.
    is_long = 8.3 * len(name) + 6.2 * len(rest) > WIDTH
    squeezed = f' textLength="{WIDTH - 2}" lengthAdjust="spacingAndGlyphs"' if is_long else ""
    rest = f'<tspan class="detail">{html.escape(rest)}</tspan>'
    return f'<text class="heading" x="1" y="15"{squeezed}>{html.escape(name)}{rest}</text>'


def _box(x, y, height, row):
    kind = "box special" if row.is_highlighted else "box"
    return f'<rect class="{kind}" x="{x + 1}" y="{y:g}" width="{WIDTH - x - 2}" height="{height}" rx="7"/>'


def _connector(x, y, length):
    return f'<path class="line" d="M{x:g} {y:g}v{length}"/>'


def _sum(x, top, y):
    """The sum of a residual branch and its input, and the line that leads the input past the branch."""
    return (
        f'<path class="line" d="M{x:g} {top:g}H{_RAIL / 2:g}V{y:g}H{x - 9:g}"/>'
        f'<circle class="line" cx="{x:g}" cy="{y:g}" r="9"/>'
        f'<path class="line" d="M{x - 5:g} {y:g}h10M{x:g} {y - 5:g}v10"/>'
    )


def _pictogram(row, x, y):
    """A picture of an output: a map is a grid, tokens are squares, a vector is a bar, angles are an arrow."""
    if row.name == "images":
        return (
            f'<rect class="cell" x="{x - 15}" y="{y - 15}" width="30" height="30" rx="3"/>'
            f'<circle class="fill" cx="{x + 6}" cy="{y - 6}" r="3.5"/>'
            f'<path class="fill" d="M{x - 15} {y + 12}l10 -14 8 10 5 -6 7 10v0a3 3 0 0 1 -3 3h-24a3 3 0 0 1 -3 -3z"/>'
        )
    if row.is_side_input:
        arc = f"M{x + 11:g} {y - 6:g}A12.5 12.5 0 1 0 {x + 12.5:g} {y + 1:g}"
        return f'<path class="line" d="{arc}"/><path class="line" d="M{x + 11.5:g} {y - 13:g}v7.5h-7.5"/>'
    if len(row.shape) == 3:
        return _grid(row.shape, x, y)
    if len(row.shape) == 2:
        return _tokens(row, x, y)
    return f'<rect class="fill" x="{x - 4}" y="{y - 15}" width="8" height="30" rx="2"/>'


def _grid(shape, x, y):
    # Grids with more than 14 cells are drawn with 14.
    rows, columns = (min(side, 14) for side in shape[:2])
    cell = 30 / max(rows, columns)
    width, height = columns * cell, rows * cell
    left, top = x - width / 2, y - height / 2
    lines = [f"M{left + i * cell:.2f} {top:.2f}v{height:.2f}" for i in range(1, columns)]
    lines += [f"M{left:.2f} {top + i * cell:.2f}h{width:.2f}" for i in range(1, rows)]
    frame = f'<rect class="cell" x="{left:.2f}" y="{top:.2f}" width="{width:.2f}" height="{height:.2f}"/>'
    return frame + f'<path class="mesh" d="{"".join(lines)}"/>'


def _tokens(row, x, y):
    """Up to six squares for each kind of token. Tokens in front of the patch tokens are filled."""
    num_prefix = min(row.num_prefix, 6)
    parts = []
    for i in range(12):
        column, line = i % 4, i // 4
        kind = "prefix" if i < num_prefix else "token"
        if i < min(row.shape[0], 11):
            place = f'x="{x - 16 + 8.5 * column:.1f}" y="{y - 13 + 9 * line:.1f}"'
            parts.append(f'<rect class="{kind}" {place} width="6.5" height="6.5" rx="1.5"/>')
    if row.shape[0] > 11:
        parts.append(f'<path class="dots" d="M{x + 10.5:.1f} {y + 8.5:.1f}h6"/>')
    return "".join(parts)
