"""The content of a report's figures."""

import io
import urllib.request

import numpy as np
import PIL.Image
import pytest

from training.evaluation.metrics import Calibration
from training.reports.figures import (
    data_uri,
    encode_picture,
    overlay_attention,
    plot_calibration,
    plot_confidence,
    plot_confusion_matrix,
    plot_curve,
)


def test_curves_are_the_values():
    figure = plot_curve([10, 20, 25], {"training": [2.0, 1.5, 1.1], "validation": [1.9, 1.6, 1.4]}, "step", "loss", 0.4)
    [axes] = figure.axes
    training, validation, least = axes.lines
    assert [line.get_label() for line in axes.lines] == ["training", "validation", "least possible"]
    for line, values in ((training, [2.0, 1.5, 1.1]), (validation, [1.9, 1.6, 1.4])):
        np.testing.assert_array_equal(line.get_xdata(), [10, 20, 25])
        np.testing.assert_array_equal(line.get_ydata(), values)
    assert set(least.get_ydata()) == {0.4}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["training", "validation", "least possible"]


def test_a_single_curve_needs_no_legend():
    figure = plot_curve([1], {"training": [0.5]}, "epoch", "learning rate")
    assert len(figure.axes[0].lines) == 1
    assert not figure.legends


def test_bars_of_the_calibration_stand_at_their_bins():
    calibration = Calibration(np.array([0, 2, 0, 3]), np.array([0, 0.4, 0, 0.97]), np.array([0, 0.5, 0, 0.25]))
    bars = {bar.get_center()[0]: bar.get_height() for bar in plot_calibration(calibration).axes[0].patches}
    assert bars == pytest.approx({37.5: 50, 87.5: 25})
    heights = [bar.get_height() for bar in plot_confidence(calibration).axes[0].patches]
    assert heights == [0, 2, 0, 3]


def test_confusion_matrix_is_annotated_if_there_are_few_classes():
    counts = np.random.default_rng(0).integers(0, 4, (5, 5))
    counts[2] = 0
    names = [f"class_{i}" for i in range(5)]
    axes = plot_confusion_matrix(counts, names).axes[0]
    shown = {text.get_position(): int(text.get_text()) for text in axes.texts}
    assert shown == {(column, row): counts[row, column] for row, column in np.argwhere(counts)}
    expected = [row / row.sum() if row.any() else row for row in counts]
    np.testing.assert_allclose(axes.images[0].get_array(), expected)
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    assert axes.get_ylabel() == "true class"


def test_a_large_confusion_matrix_names_some_classes():
    axes = plot_confusion_matrix(np.eye(250, dtype=int), [f"class {i}" for i in range(250)]).axes[0]
    assert not axes.texts
    assert [label.get_text() for label in axes.get_xticklabels()][:2] == ["class 0", "class 3"]
    assert axes.get_xlabel() == "predicted class (1 in 3 is named)"


@pytest.mark.parametrize("channels", [1, 3])
def test_small_pictures_are_encoded_to_the_last_bit(channels):
    image = np.random.default_rng(0).uniform(-3, 258, (9, 6, channels))
    content, media_type = encode_picture(image)
    assert media_type == "image/png"
    decoded = np.asarray(PIL.Image.open(io.BytesIO(content))).reshape(9, 6, channels)
    np.testing.assert_array_equal(decoded, np.rint(image).clip(0, 255))


def test_a_picture_stands_in_the_page_itself():
    with urllib.request.urlopen(data_uri(b"\xff\xfe>\x00", "image/jpeg")) as answer:
        assert (answer.read(), answer.headers.get_content_type()) == (b"\xff\xfe>\x00", "image/jpeg")


def test_large_pictures_are_encoded_with_little_loss():
    rows, columns = np.mgrid[:70, :90]
    image = np.stack([rows, columns, rows + columns], axis=-1).astype("uint8")
    content, media_type = encode_picture(image)
    assert media_type == "image/jpeg"
    picture = PIL.Image.open(io.BytesIO(content))
    assert picture.size == (90, 70)
    assert np.abs(np.asarray(picture).astype(float) - image).mean() < 2


@pytest.mark.parametrize("channels", [1, 3])
def test_attention_lies_over_its_place(channels):
    attention = np.zeros((3, 2), "float32")
    attention[2, 0] = 1
    drawn = overlay_attention(np.full((27, 12, channels), 100, "uint8"), attention).astype(int).sum(axis=-1)
    assert drawn.shape == (27, 12)
    assert np.unravel_index(drawn.argmax(), drawn.shape)[0] > 18
    assert np.unravel_index(drawn.argmax(), drawn.shape)[1] < 6
    np.testing.assert_array_equal(drawn[:9], drawn[0, 0])  # Other patches show no attention.


def test_the_image_shines_through_the_attention():
    image = np.zeros((8, 8, 3), "uint8")
    image[:, 4:] = 200
    drawn = overlay_attention(image, np.full((2, 2), 0.5)).astype(int)
    np.testing.assert_allclose(drawn[:, 4:] - drawn[:, :4], 0.35 * 200, atol=1)
