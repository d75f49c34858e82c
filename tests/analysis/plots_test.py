"""The figures show the arrays that they get."""

import matplotlib.colors
import numpy as np
import pytest
import scipy.ndimage

from keras_vit.analysis import plots


def _drawn(figure):
    figure.canvas.draw()  # Drawing warns about overlaps and text that does not fit.
    return figure


@pytest.mark.parametrize(("count", "channels"), [(9, 3), (3, 1), (2, 4)])
def test_filters_stand_in_their_order(count, channels):
    filters = np.random.default_rng(0).uniform(size=(count, 4, 5, channels))
    axes = _drawn(plots.plot_filters(filters)).axes
    assert len(axes) == {9: 14, 3: 3, 2: 2}[count]
    for one, values in zip(axes, filters, strict=False):
        shown = 255 * (values if channels == 3 else values.mean(-1))
        np.testing.assert_allclose(one.images[0].get_array(), shown, atol=0.51)
    assert not any(one.images for one in axes[count:])


def test_each_tile_is_a_map_of_similarities():
    similarity = np.random.default_rng(0).uniform(-1, 1, (2, 3, 2, 3))
    figure = _drawn(plots.plot_position_similarity({"a $model": similarity, "other": similarity[:, :2, :, :2]}))
    first, second, bar = figure.axes
    picture = np.ma.filled(first.images[0].get_array(), np.nan)
    assert picture.shape == (2 * 3 - 1, 3 * 4 - 1)
    for row in range(2):
        for column in range(3):
            tile = picture[3 * row : 3 * row + 2, 4 * column : 4 * column + 3]
            np.testing.assert_allclose(tile, similarity[row, column], rtol=1e-6)
    assert np.isnan(picture[2]).all()
    assert np.isnan(picture[:, 3]).all()
    assert first.images[0].get_clim() == (-1, 1)
    assert [one.get_title() for one in (first, second)] == ["a $model", "other"]
    assert bar.get_ylabel() == "cosine similarity"
    assert [label.get_text() for label in first.get_xticklabels()] == ["1", "2", "3"]


def test_of_a_large_grid_some_patches_are_numbered():
    figure = _drawn(plots.plot_position_similarity({"": np.zeros((37, 24, 37, 24))}))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][:3] == ["1", "4", "7"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()][:3] == ["1", "3", "5"]
    assert not figure.axes[0].get_title()


def test_a_dot_for_a_head_and_a_line_for_their_mean():
    values = np.array([[1.0, 3.0], [2.0, np.nan], [np.nan, np.nan], [5.0, 7.0]])
    figure = _drawn(plots.plot_attention_distance({"ViT": values, "hybrid": values[:2]}))
    for one, array, mean in zip(figure.axes, (values, values[:2]), ([2, 2, np.nan, 6], [2, 2]), strict=True):
        line, dots = one.lines
        np.testing.assert_array_equal(line.get_ydata(), mean)
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, len(mean) + 1))
        np.testing.assert_array_equal(dots.get_xdata(), np.repeat(np.arange(1, len(mean) + 1), 2))
        np.testing.assert_array_equal(dots.get_ydata(), array.ravel())
    assert figure.axes[0].get_ylabel() == "mean attention distance (pixels)"
    assert [one.get_title() for one in figure.axes] == ["ViT", "hybrid"]


def test_the_widest_entropy_is_drawn():
    figure = _drawn(plots.plot_attention_entropy({"m": np.ones((3, 2))}, {"m": 17}))
    [axes] = figure.axes
    assert set(axes.lines[-1].get_ydata()) == {np.log(17)}
    assert axes.get_ylim()[1] >= np.log(17)
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["mean of the heads", "a head", "uniform attention"]
    assert len(plots.plot_attention_entropy({"m": np.ones((3, 2))}).axes[0].lines) == 2


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_multiplied_with_its_rollout(channels):
    rng = np.random.default_rng(0)
    images, rollouts = rng.uniform(0, 255, (3, 8, 6, channels)), rng.uniform(size=(3, 2, 3))
    figure = _drawn(plots.plot_rollout(images, rollouts, columns=2))
    assert len(figure.axes) == 8
    for pair, image, rollout in zip(np.reshape(figure.axes, (-1, 2)), images, rollouts, strict=False):
        enlarged = scipy.ndimage.zoom(rollout, (4, 2), order=1, grid_mode=True, mode="nearest")
        expected = [image, image * enlarged[..., None]]
        for one, pixels in zip(pair, expected, strict=True):
            shown = pixels if channels == 3 else pixels[..., 0]
            np.testing.assert_allclose(one.images[0].get_array(), shown, atol=0.51)
    assert [one.get_title() for one in figure.axes[:4]] == ["input", "attention"] * 2
    assert not figure.axes[6].images


def test_each_token_shows_where_it_comes_from():
    rng = np.random.default_rng(0)
    images, maps = rng.uniform(0, 255, (2, 8, 6, 3)), rng.uniform(size=(2, 5, 2, 3))
    figure = _drawn(plots.plot_token_maps(images, maps, num_tokens=4))
    rows = np.reshape(figure.axes, (2, 5))
    for row, image, of_image in zip(rows, images, maps, strict=True):
        np.testing.assert_allclose(row[0].images[0].get_array(), image, atol=0.51)
        for one, values in zip(row[1:], of_image, strict=False):
            enlarged = scipy.ndimage.zoom(values / values.max(), (4, 2), order=1, grid_mode=True, mode="nearest")
            np.testing.assert_allclose(one.images[0].get_array(), image * enlarged[..., None], atol=0.51)
    assert [one.get_title() for one in rows[0]] == ["input", "token 1", "token 2", "token 3", "token 4"]


def test_neighbours_stand_beside_their_image():
    rng = np.random.default_rng(0)
    images, gallery = rng.uniform(0, 255, (2, 5, 4, 3)), rng.uniform(0, 255, (3, 7, 9, 3))
    captions = [("ant", ["bee", "cat", "a very long name that is cut"]), ("dog", ["elk", "$fox", "gnu"])]
    figure = _drawn(plots.plot_neighbours(images, [gallery, gallery[::-1]], [[0.9, 0.5, -0.25], [1, 0, 0]], captions))
    rows = np.reshape(figure.axes, (2, 4))
    for row, image, found in zip(rows, images, [gallery, gallery[::-1]], strict=True):
        for one, pixels in zip(row, [image, *found], strict=True):
            np.testing.assert_allclose(one.images[0].get_array(), pixels, atol=0.51)
    assert [one.get_title() for one in rows[0]] == ["ant", "bee (0.90)", "cat (0.50)", "a very long … (-0.25)"]
    without_names = plots.plot_neighbours(images[:1], [gallery], [[0.9, 0.5, 0.1]])
    assert [one.get_title() for one in without_names.axes] == ["", "0.90", "0.50", "0.10"]


def test_text_is_legible():
    """The text has a contrast of at least 4.5 to 1 on white (WCAG 2.1, 1.4.3)."""
    for color in (plots.INK, plots.MUTED, plots.ACCENT):
        channels = np.array(matplotlib.colors.to_rgb(color))
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        assert 1.05 / (linear @ [0.2126, 0.7152, 0.0722] + 0.05) >= 4.5
