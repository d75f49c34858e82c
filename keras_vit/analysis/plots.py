"""Plots the arrays of the other analysis modules. Matplotlib is imported only inside the functions.

Shapes: N images, H W C image, h w grid of patches, P Q patch, L layers, K heads. Save a figure with
`figure.savefig(path, dpi=150)`.
"""

import math

import numpy as np

from keras_vit.resampling import grid_matrices

INK, MUTED, FAINT, ACCENT = "#1f2733", "#5f6b7a", "#d5dae1", "#1d5fa6"
PANEL = (4.2, 2.9)  # In inches. Two panels fit side by side on a page, and one panel fits on the screen of a phone.
_SMALL_IMAGE = 64  # In pixels. Smaller images are not smoothed, because smoothing would blur them.


def style(axes):
    """Applies the common style of this package's figures to axes."""
    axes.spines[:].set_visible(False)
    axes.tick_params(which="both", length=0, colors=MUTED)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(INK)
    axes.set_axisbelow(True)


def panels(size=PANEL, rows=1, columns=1, **options):
    """Creates a figure and an array of axes (rows, columns), each of `size` (width, height) in inches.

    `options` are passed on to `matplotlib.figure.Figure.subplots`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        style(ax)
    return figure, axes


def _picture_panels(size, rows, columns):
    """Same as `panels`, but for pictures without frames and numbers."""
    figure, axes = panels(size, rows, columns)
    for ax in axes.flat:
        ax.axis("off")
    return figure, axes


def plot_filters(filters, columns=7):
    """Plots the principal components of a model's filters, the strongest first (ViT, figure 7, left).

    Args:
        filters: (n, P, Q, C) in [0, 1], as from `keras_vit.embedding_filters`.
        columns: Number of filters in a row.

    Returns:
        A `matplotlib.figure.Figure`.

    Example:

    >>> import keras_vit
    >>> from keras_vit.analysis import plots
    >>> plots.plot_filters(keras_vit.embedding_filters(model)).savefig("filters.png")  # doctest: +SKIP
    """
    columns = min(columns, len(filters))
    size = 0.85, 0.85 * filters.shape[1] / filters.shape[2]
    figure, axes = _picture_panels(size, -(-len(filters) // columns), columns)
    for ax, values in zip(axes.flat, filters, strict=False):
        _show(ax, 255 * values)
    return figure


def plot_position_similarity(similarities, size=5.0):
    """Plots the similarity of position embeddings (ViT, figure 10).

    Each tile is a heat map of the similarity between one patch and all patches.

    Args:
        similarities: {name of a model: (h, w, h, w)}, as from `keras_vit.position_similarity`. Each model has a panel.
        size: Width of each model's panel in inches.

    Returns:
        A `matplotlib.figure.Figure`.

    Example:

    >>> import keras_vit
    >>> from keras_vit.analysis import plots
    >>> similarities = {"Ti/16": keras_vit.position_similarity(model)}  # doctest: +SKIP
    >>> plots.plot_position_similarity(similarities).savefig("positions.png")  # doctest: +SKIP
    """
    tallest = max(array.shape[0] / array.shape[1] for array in similarities.values())
    tiles = size - 0.6 - 0.9 / len(similarities)  # Without the labels and the color bar.
    figure, axes = panels((size, tiles * tallest + 0.7 + 0.35 * (len(similarities) > 1)), columns=len(similarities))
    for ax, (name, array) in zip(axes[0], similarities.items(), strict=True):
        height, width = array.shape[:2]
        picture = ax.imshow(_tiles(array), cmap="viridis", vmin=-1, vmax=1, interpolation="nearest")
        for axis, count in ((ax.xaxis, width), (ax.yaxis, height)):
            step = -(-count // 16)  # More than 16 numbers would be too small to read.
            numbers = range(0, count, step)
            axis.set_ticks([number * _pitch(count) + (count - 1) / 2 for number in numbers], [n + 1 for n in numbers])
        ax.set_xlabel("patch column")
        ax.set_ylabel("patch row")
        _name(ax, name, similarities)
    bar = figure.colorbar(picture, ax=list(axes[0]), shrink=0.8, aspect=30, ticks=[-1, -0.5, 0, 0.5, 1])
    bar.set_label("cosine similarity", color=INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, colors=MUTED)
    return figure


def _pitch(count):
    """Returns the distance in cells from the start of a tile of `count` cells to the start of the next tile."""
    # Large tiles have wider gaps, so that the gaps stay visible.
    return count + max(1, count // 10)


def _tiles(similarity):
    """Arranges the maps of an array (h, w, h, w) as tiles of one picture, with gaps of NaN between them."""
    height, width = similarity.shape[:2]
    gaps = [(0, 0), (0, 0), (0, _pitch(height) - height), (0, _pitch(width) - width)]
    padded = np.pad(similarity.astype("float32"), gaps, constant_values=np.nan)
    picture = padded.transpose(0, 2, 1, 3).reshape(height * _pitch(height), width * _pitch(width))
    return picture[: height - _pitch(height) or None, : width - _pitch(width) or None]


def plot_attention_distance(distances):
    """Plots the attention distance by depth: a dot for each head, a line for the mean (ViT, figures 7 right and 11).

    Args:
        distances: {name of a model: (L, K) in pixels}, as from `keras_vit.mean_attention_distance`. Each model has a
            panel.

    Returns:
        A `matplotlib.figure.Figure`.

    Example:

    >>> import keras_vit
    >>> from keras_vit.analysis import plots
    >>> distances = {"Ti/16": keras_vit.mean_attention_distance(model, images)}  # doctest: +SKIP
    >>> plots.plot_attention_distance(distances).savefig("distances.png")  # doctest: +SKIP
    """
    return _plot_heads(distances, "mean attention distance (pixels)")


def plot_attention_entropy(entropies, num_tokens=None):
    """Plots the attention entropy by depth: a dot for each head, a line for their mean.

    Args:
        entropies: {name of a model: (L, K) in nats}, as from `keras_vit.attention_entropy`. Each model has a panel.
        num_tokens: {name of a model: number of tokens}. If given, a line marks the entropy of uniform attention.

    Returns:
        A `matplotlib.figure.Figure`.

    Example:

    >>> import keras_vit
    >>> from keras_vit.analysis import plots
    >>> entropies = {"Ti/16": keras_vit.attention_entropy(model, images)}  # doctest: +SKIP
    >>> plots.plot_attention_entropy(entropies, {"Ti/16": 197}).savefig("entropies.png")  # doctest: +SKIP
    """
    return _plot_heads(entropies, "attention entropy (nats)", num_tokens)


def _plot_heads(values, label, num_tokens=None):
    figure, axes = panels(columns=len(values), sharey=True)
    for ax, (name, array) in zip(axes[0], values.items(), strict=True):
        depth = np.arange(1, len(array) + 1)
        mean = [row[~np.isnan(row)].mean() if not np.isnan(row).all() else np.nan for row in array]
        ax.plot(depth, mean, color=ACCENT, lw=2, label="mean of the heads")
        ax.plot(
            np.repeat(depth, array.shape[1]), array.ravel(), "o", color=ACCENT, ms=5, mew=0, alpha=0.45, label="a head"
        )
        if num_tokens:
            ax.axhline(math.log(num_tokens[name]), color=MUTED, lw=1, ls=(0, (4, 3)), label="uniform attention")
        ax.set_xlabel("depth (layer)")
        ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1, nbins=8)
        ax.set_xlim(0.5, len(array) + 0.5)
        ax.grid(axis="y", color=FAINT, lw=0.6)
        _name(ax, name, values)
    axes[0, 0].set_ylabel(label)
    axes[0, 0].set_ylim(0, 1.04 * axes[0, 0].get_ylim()[1])  # Stops autoscaling, so all plots must be drawn before.
    handles = axes[0, 0].get_legend_handles_labels()
    columns = 3 if len(values) > 1 else 2  # A wider legend would be cut off.
    figure.legend(*handles, loc="outside upper left", ncols=columns, frameon=False, labelcolor=INK, columnspacing=1.2)
    return figure


def plot_rollout(images, rollouts, columns=4):
    """Plots each image beside the same image multiplied by its attention rollout (ViT, figures 6 and 14).

    Args:
        images: N images (H, W, C), pixels from 0 to 255.
        rollouts: (N, h, w) from 0 to 1, as from `keras_vit.attention_rollout`. They are enlarged bilinearly.
        columns: Number of pairs in a row.

    Returns:
        A `matplotlib.figure.Figure`.

    Example:

    >>> import keras_vit
    >>> from keras_vit.analysis import plots
    >>> rollouts = keras_vit.attention_rollout(model, images)  # doctest: +SKIP
    >>> plots.plot_rollout(images, rollouts).savefig("rollout.png")  # doctest: +SKIP
    """
    columns = min(columns, len(images))
    height, width = images[0].shape[:2]
    figure, axes = _picture_panels((1.5, 1.5 * height / width + 0.05), -(-len(images) // columns), 2 * columns)
    for pair, image, rollout in zip(axes.reshape(-1, 2), images, rollouts, strict=False):
        _show(pair[0], image)
        _show(pair[1], image * enlarge(rollout, image.shape[:2])[..., None], smooth=True)
    for number, ax in enumerate(axes[0]):
        ax.set_title("attention" if number % 2 else "input", size=10)
    return figure


def plot_token_maps(images, maps, num_tokens=8, title="token"):
    """Plots each image in a row with the maps of its visual tokens (Visual Transformers, arXiv 2006.03677, figure 6).

    Args:
        images: N images (H, W, C), pixels from 0 to 255.
        maps: (N, L, h, w), one of the arrays of `keras_vit.token_maps`, or `keras_vit.token_lineage(...)[:, m]` for
            module m. Each map is divided by its largest value and enlarged bilinearly.
        num_tokens: Maximum number of tokens to plot.
        title: Title of the columns, which are numbered, or a list with the title of each column.

    Returns:
        A `matplotlib.figure.Figure`.

    Example:

    >>> import keras_vit
    >>> from keras_vit.analysis import plots
    >>> maps = keras_vit.token_maps(model, images)["tokenizer_0"]  # doctest: +SKIP
    >>> plots.plot_token_maps(images, maps).savefig("token_maps.png")  # doctest: +SKIP
    """
    height, width = images[0].shape[:2]
    shown = maps[:, :num_tokens]
    figure, axes = _picture_panels((1.3, 1.3 * height / width + 0.05), len(images), 1 + shown.shape[1])
    for row, image, image_maps in zip(axes, images, shown, strict=True):
        _show(row[0], image)
        for ax, values in zip(row[1:], image_maps, strict=True):
            _show(ax, image * enlarge(values / values.max(), image.shape[:2])[..., None], smooth=True)
    numbered = [f"{title} {number}" for number in range(1, len(axes[0]))] if isinstance(title, str) else title
    for ax, name in zip(axes[0], ["input", *numbered], strict=False):
        ax.set_title(_shortened(name, 16), size=10)
    return figure


def enlarge(values, size):
    """Resizes a map (h, w) to `size` (height, width) bilinearly."""
    rows, columns = grid_matrices(values.shape, size, "bilinear")
    return rows @ values @ columns.T


def plot_neighbours(images, neighbours, similarities, captions=None):
    """Plots each image in a row with its nearest neighbours.

    Args:
        images: N images (H, W, C), pixels from 0 to 255.
        neighbours: For each image, a list of its k nearest neighbours. They are images of any size.
        similarities: (N, k), as from `keras_vit.nearest_neighbours`.
        captions: N pairs (name of the image, list of the names of its neighbours). `None`: no names.

    Returns:
        A `matplotlib.figure.Figure`.

    Example:

    >>> import keras_vit
    >>> from keras_vit.analysis import plots
    >>> indices, similarities = keras_vit.nearest_neighbours(model, images, gallery, k=3)  # doctest: +SKIP
    >>> plots.plot_neighbours(images, gallery[indices], similarities).savefig("neighbours.png")  # doctest: +SKIP
    """
    figure, axes = _picture_panels((1.3, 1.65), len(images), 1 + len(neighbours[0]))
    for row, (image, similar_images) in enumerate(zip(images, neighbours, strict=True)):
        name, names = captions[row] if captions else ("", [""] * len(similar_images))
        titles = [_shortened(name), *map(_neighbour_title, names, similarities[row])]
        for ax, picture, title in zip(axes[row], [image, *similar_images], titles, strict=True):
            _show(ax, picture)
            ax.set_title(title, size=9, parse_math=False)
        axes[row, 0].title.set_weight("bold")
    figure.suptitle(
        "Each image, then those most like it (and their cosine similarity)", x=0.01, ha="left", size=10, color=MUTED
    )
    return figure


def _neighbour_title(name, similarity):
    return f"{_shortened(name, 13)} ({similarity:.2f})" if name else f"{similarity:.2f}"


def _show(axes, image, smooth=False):
    """Draws an image with pixels from 0 to 255. It is drawn in gray unless it has three channels."""
    pixels = np.clip(np.rint(image), 0, 255).astype("uint8")
    if pixels.shape[-1] != 3:
        pixels = np.rint(image.mean(axis=-1)).clip(0, 255).astype("uint8")
    is_small = max(pixels.shape[:2]) < _SMALL_IMAGE and not smooth
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest" if is_small else "antialiased")


def _name(axes, name, names):
    if len(names) > 1:
        axes.set_title(name, size=11, parse_math=False)


def _shortened(name, length=20):
    return name if len(name) <= length else f"{name[: length - 1]}…"
