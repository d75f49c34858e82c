"""Writes the HTML page of `training.inspection.explain`: one file with pictures and the attention of every head.

Shapes: N pictures, a grid of h x w patches, L layers, K heads, Q query tokens, T tokens.
"""

import base64
import contextlib
import dataclasses
import json
import pathlib
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.ticker import MaxNLocator

import keras_vit
from training.files import write_text
from training.reports import pages
from training.reports.figures import SMALL_IMAGE, data_uri, encode_picture

_DPI = 150
MOST_PICTURES = 12
MOST_BYTES = 4 * 2**20
"""Maximum size of the attention weights on a page. In the page, they are base64 text, which is a third longer."""


@dataclasses.dataclass
class Findings:
    """The results of analysing a model. The files with the results are in `folder`.

    `figures` is {name of a PNG file: (description, width in CSS pixels)}. `left_out` is {name of a figure: reason}.
    `distances` and `entropies` are {name of a model: (L, K)}. They are averaged over `num_averaged` images: the user's
    pictures, or training images. `num_tokens` is {name of a model: T}. `rollouts` is (N, h, w), or `None`.
    """

    folder: pathlib.Path
    figures: dict = dataclasses.field(default_factory=dict)
    left_out: dict = dataclasses.field(default_factory=dict)
    distances: dict = dataclasses.field(default_factory=dict)
    entropies: dict = dataclasses.field(default_factory=dict)
    num_tokens: dict = dataclasses.field(default_factory=dict)
    num_averaged: int = 0
    averaged_are_pictures: bool = True
    rollouts: np.ndarray | None = None

    def save(self, name, figure, description):
        """Writes a figure as a PNG file."""
        figure.savefig(self.folder / f"{name}.png", dpi=_DPI)
        self.figures[name] = description, 96 * figure.get_figwidth()

    @contextlib.contextmanager
    def trying(self, name):
        """If the body of the `with` statement raises a ValueError, leaves out the figure `name` and prints why."""
        try:
            yield
        except ValueError as error:
            self.left_out[name] = str(error)
            print(f"{name} is left out: {error}")


def write_page(path, subject, pictures, findings):
    """Writes the page.

    Args:
        path: Path of the file.
        subject: `training.inspection.explain.Subject`
        pictures: `training.inspection.explain.Pictures`
        findings: `Findings` about the model and the pictures.

    Returns:
        `path`
    """
    attention = None if "attention" in findings.left_out else _attention(subject, pictures, findings)
    names = pictures.names[: len(attention["pictures"])] if attention else pictures.names[:MOST_PICTURES]
    data = _data(pictures, findings, attention, names)
    averaged_images = "of the given pictures" if findings.averaged_are_pictures else "evenly spaced training images"
    page = pages.page(
        "explain",
        kind="Inside a model",
        heading=subject.name,
        title=f"Inside {subject.name}",
        script=pages.read("explain.js"),
        # If "<" were not replaced, a name with "</script>" would end the element.
        data=json.dumps(data).replace("<", "\\u003c"),
        thumbnails="\n".join(_thumbnail(name, pictures.covered[i], i) for i, name in enumerate(names)),
        notes="".join(f"<p class=note>{escape(note)}</p>\n" for note in _notes(pictures, findings, attention, names)),
        without_attention="" if attention else "hidden",
        without_rollout="hidden" if findings.rollouts is None else "",
        charts=_charts(subject, findings),
        averaged=f"Averaged over {findings.num_averaged} {averaged_images}.",
        figures="\n".join(_figure(findings, name) for name in _CAPTIONS),
    )
    write_text(path, page)
    return path


def _data(pictures, findings, attention, names):
    """The data that the script of the page reads."""
    colors = np.rint(255 * matplotlib.colormaps["inferno"](np.arange(256))[:, :3]).astype("uint8")
    shown = [{"name": name} for name in names]
    for i, picture in enumerate(shown):
        if findings.rollouts is not None:
            picture["rollout"] = _encoded(np.rint(255 * findings.rollouts[i]).astype("uint8"))
        if attention:
            picture |= attention["pictures"][i]
    grid = None if findings.rollouts is None else findings.rollouts.shape[1:]
    general = {name: attention[name] for name in ("layers", "heads", "queries")} if attention else {}
    return {"grid": grid, "colors": _encoded(colors), "pictures": shown, **general}


def _attention(subject, pictures, findings):
    """The main model's attention, encoded by `_quantized`. `None` if its distances or the rollouts are missing."""
    if subject.name not in findings.distances or findings.rollouts is None:
        return None
    grid = findings.rollouts.shape[1:]
    num_layers, num_heads = findings.distances[subject.name].shape
    num_prefix = findings.num_tokens[subject.name] - grid[0] * grid[1]
    bytes_per_query = num_layers * num_heads * grid[0] * grid[1]
    num_pictures = int(np.clip(MOST_BYTES // bytes_per_query, 1, min(len(pictures.names), MOST_PICTURES)))
    patches = query_patches(grid, MOST_BYTES // (bytes_per_query * num_pictures) - num_prefix)
    config: Any = keras_vit.describe(subject.model).config
    prefix_names = ["class token"] * config.has_class_token + ["distillation token"] * config.distillation_token
    prefix_names += [f"register token {number + 1}" for number in range(config.num_register_tokens)]
    tokens = [*range(num_prefix), *(num_prefix + patch for patch in patches)]
    return {
        "layers": num_layers,
        "heads": num_heads,
        "queries": [{"name": name} for name in prefix_names] + [{"patch": patch} for patch in patches],
        "pictures": [_quantized(subject, pixels, tokens, num_prefix) for pixels in pictures.pixels[:num_pictures]],
    }


def query_patches(grid, most):
    """Indices of all patches or, if there are more than `most`, of a regular grid of 1 to `most` patches."""
    step = next(step for step in range(1, max(grid) + 1) if -(-grid[0] // step) * -(-grid[1] // step) <= max(most, 1))
    rows, columns = (range(min((step - 1) // 2, size - 1), size, step) for size in grid)
    return [row * grid[1] + column for row in rows for column in columns]


def _quantized(subject, pixels, tokens, num_prefix):
    """The attention weights of each query in a picture.

    `attention` (L, K, Q, h w) contains the weights on the patches as bytes, scaled so that the largest weight of each
    query is 255. `largest` (L, K, Q) is this weight before scaling. `elsewhere` (L, K, Q) is the total weight on prefix
    tokens.
    """
    [weights] = keras_vit.attention_maps(subject.model, subject.prepared(pixels[None]), tokens)
    patches = weights[..., num_prefix:]
    largest = patches.max(axis=-1)
    scaled = np.rint(255 * patches / np.where(largest > 0, largest, 1)[..., None]).astype("uint8")
    elsewhere = weights[..., :num_prefix].sum(axis=-1)
    return {
        "attention": _encoded(scaled),
        "largest": _encoded(largest.astype("<f4")),
        "elsewhere": _encoded(elsewhere.astype("<f4")),
    }


def _encoded(array):
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _thumbnail(name, pixels, index):
    small = " class=small" if max(pixels.shape[:2]) < SMALL_IMAGE else ""
    return (
        f'<button type=button data-picture={index} aria-pressed=false><img{small} alt="{escape(name)}" '
        f'title="{escape(name)}" src="{data_uri(*encode_picture(pixels))}"></button>'
    )


def _notes(pictures, findings, attention, names):
    """Yields sentences about what the page leaves out."""
    if len(names) < len(pictures.names):
        yield f"Only the first {len(names)} of {len(pictures.names)} pictures are shown, to keep this page small."
    num_patches = 0 if findings.rollouts is None else findings.rollouts[0].size
    selectable = sum("patch" in query for query in attention["queries"]) if attention else num_patches
    if selectable < num_patches:
        yield f"Only {selectable} of {num_patches} patches can be selected, which keeps this page small."
    reasons = (findings.left_out.get(name) for name in ("attention", "attention_distance", "rollout"))
    if not attention and (reason := next(filter(None, reasons), None)):
        yield reason


_CHART = (420, 230, 46, 38)  # Width, height, left and bottom margin, in units of the drawing.


def _charts(subject, findings):
    if subject.name not in findings.distances:
        return ""
    entropy = findings.entropies[subject.name]
    widest = np.log(findings.num_tokens[subject.name])
    return _chart(findings.distances[subject.name], "mean attention distance (pixels)", 0) + _chart(
        entropy, f"attention entropy (nats; {widest:.2f} if uniform)", widest
    )


def _chart(values, label, least_top):
    """An SVG chart with a dot for each head. The script finds a dot by its layer and head."""
    width, height, left, bottom = _CHART
    top = 1.08 * max(np.nanmax(values, initial=0), least_top, 1e-9)
    ticks = [tick for tick in MaxNLocator(4).tick_values(0, top) if tick <= top]
    x = np.linspace(left, width, len(values) + 1)[:-1] + (width - left) / (2 * len(values))
    y = height - bottom - (height - bottom - 22) * values / top
    lines = [
        f'<line x1={left} x2={width} y1="{level:.1f}" y2="{level:.1f}"/>'
        f'<text class=number x={left - 6} y="{level + 4:.1f}">{tick:.3g}</text>'
        for tick in ticks
        for level in [height - bottom - (height - bottom - 22) * tick / top]
    ]
    step = -(-len(values) // 12)
    numbers = [
        f'<text class=depth x="{x[i]:.1f}" y={height - bottom + 18}>{i + 1}</text>' for i in range(0, len(values), step)
    ]
    dots = [
        f'<circle r=4 cx="{x[layer]:.1f}" cy="{y[layer, head]:.1f}" data-layer={layer} data-head={head} '
        f'data-value="{values[layer, head]:.4g}"/>'
        for layer, head in np.argwhere(~np.isnan(values))
    ]
    return (
        f'<svg viewBox="0 0 {width} {height}" role=img aria-label="{escape(label)}, a dot for each head, by layer">'
        f"<text class=title x=0 y=12>{escape(label)}</text>{''.join(lines)}{''.join(numbers)}"
        f'<text class=depth x="{(left + width) / 2}" y={height - 2}>layer</text>{"".join(dots)}</svg>\n'
    )


_CAPTIONS = {
    "tokens": (
        "Origin of the visual tokens",
        "Each picture is shown beside one map for each token of the last module. The map shows where in the picture "
        "the token comes from, directly or through other tokens (Visual Transformers, arXiv 2006.03677, figure 6).",
    ),
    "texts": (
        "Where each text is",
        "The cosine similarity of each patch and each text, from the smallest one (dark) to the largest one of the "
        "picture. A text that is not in the picture has a largest similarity, too.",
    ),
    "queries": (
        "Attention of queries",
        "The objects with the highest scores in each picture, and the attention of each object's query to the patches "
        "in the last blocks, the mean of all heads. Each map is divided by its largest value.",
    ),
    "attention_distance": (
        "Attention distance, compared",
        "The mean distance in pixels between a patch and the patches that it attends to, without the class token (ViT, "
        "arXiv 2010.11929, figures 7 and 11). Low dots in early layers are local heads, similar to small convolutions.",
    ),
    "filters": (
        "Filters of the first layer",
        "The principal components of the filters that are applied to the pixels. The strongest component is first. "
        "Each component is scaled to its own range (ViT, figure 7, left).",
    ),
    "position_similarity": (
        "Similarity of position embeddings",
        "Each tile shows the similarity of one patch's position embedding to the embeddings of all patches (ViT, "
        "figure 7, centre, and figure 10). Learned embeddings are similar for neighbours and along rows and columns.",
    ),
    "neighbours": (
        "Most similar training images",
        "Each picture is shown beside the training images with the most similar features. The numbers are cosine "
        "similarities of the features.",
    ),
}


def _figure(findings, name):
    title, caption = _CAPTIONS[name]
    if name == "attention_distance" and len(findings.distances) < 2:
        return ""  # With one model, the chart above already shows the distances.
    if name not in findings.figures:
        reason = findings.left_out.get(name)
        return f"<h2>{title}</h2>\n<p>Left out: {escape(reason)}</p>" if reason else ""
    source = data_uri((findings.folder / f"{name}.png").read_bytes())
    description, width = findings.figures[name]
    # As in a run's report: if a figure is shown at less than 60 % of its width, its text is too small to read.
    size = f'width={width:.0f} style="min-width:{0.6 * width:.0f}px"'
    return (
        f'<h2>{title}</h2>\n<figure>\n<div class=plot tabindex=0 role=group aria-label="{title}">'
        f'<img {size} src="{source}" alt="{escape(description)}"></div>\n'
        f"<figcaption>{caption}</figcaption>\n</figure>"
    )
