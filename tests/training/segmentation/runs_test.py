"""Segmentation from start to end: a run and its files, the commands on it, and errors."""

import contextlib
import csv
import dataclasses
import json
import re

import keras
import numpy as np
import PIL.Image
import pytest
import sklearn.metrics
import tensorflow as tf
import tensorflow_datasets as tfds

import keras_vit
from keras_vit.data import decoding
from keras_vit.data.decoding import image_decoder
from tests.training.tiny_sets import TinySet
from training import recipes
from training.__main__ import main
from training.data.loading import load_dataset
from training.data.masks import VOID, encode_png, read_mask, read_values
from training.data.samples import resize_raster
from training.data.sets import shapes
from training.engine import train as module
from training.engine.train import train
from training.errors import InputError
from training.evaluation.segmentation import Segmentation
from training.recipe.assignments import override
from training.reports.overlays import class_legend, overlay_mask, palette
from training.reports.segmentation import judge
from training.tasks import TASKS

pytestmark = pytest.mark.filterwarnings("ignore:Even though the .tf.config", "ignore:The structure of .inputs")
BRIEF = [
    "model.input_shape=32,64,3",
    "data.train_images=13",
    "data.validation_fraction=0.2",
    "data.cache=false",
    "augment.scale_range=0.8,1.2",
    "augment.color_jitter=0.2",
    "fit.epochs=1",
    "fit.batch_size=7",
]


@contextlib.contextmanager
def brief():
    """Few images, and models that run eagerly, because tracing so many layers takes longer than a few steps."""
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shapes, "NUM_IMAGES", {"train": 25, "test": 9})
            # The decoder of all kinds of files would be traced again for each data set.
            patch.setattr(decoding, "_decode_any", lambda content: tf.io.decode_png(content, 3))
            patch.setattr(decoding, "read_orientation", lambda content: tf.constant(1))
            yield patch
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.fixture
def briefly():
    with brief():
        yield


@pytest.fixture(scope="module")
def recipe():
    """A recipe for a Panoptic FPN. It is built and compiled faster than a VT-FPN, and trained in the same way."""
    recipe = recipes.load("shapes_vt_fpn")
    arguments = {"backbone": "R18", "stage_depths": (1, 1), "width": 4, "neck_dim": 16, "head_dim": 8}
    small = dataclasses.replace(recipe.model, function="PanopticFPN", arguments=arguments)
    return override(dataclasses.replace(recipe, model=small), BRIEF)


@pytest.fixture(scope="module")
def brief_run(recipe, tmp_path_factory):
    with brief() as patch:
        patch.setattr(module, "export", lambda *arguments: False)  # It takes as long as all else. See the slow test.
        return train(recipe, tmp_path_factory.mktemp("runs"))


def test_leaves_a_model_its_export_and_its_numbers(brief_run):
    run, evaluation = brief_run
    facts = json.loads(run.recipe.read_text())
    assert facts["result"]["test_mean_iou"] == evaluation.mean_iou
    assert facts["result"]["test_images"] == 9
    assert facts["class_names"] == ["background", "disc", "square", "triangle"]
    rows = list(csv.DictReader(run.history.read_text().splitlines()))
    names = {"epoch", "step", "learning_rate", "loss", "mean_iou", "val_loss", "val_mean_iou"}
    assert [set(row) for row in rows] == [names]
    assert len(list(run.samples.iterdir())) == 8


@pytest.mark.usefixtures("briefly")
def test_evaluate_gives_the_metric_of_the_validation(recipe, brief_run, capsys):
    run, _ = brief_run
    assert not main(["evaluate", str(run.folder), "--split", "validation"])
    printed = capsys.readouterr().out
    mean_iou = float(list(csv.DictReader(run.history.read_text().splitlines()))[-1]["val_mean_iou"])
    assert float(re.search(r"mean IoU +(.*)%", printed)[1]) == pytest.approx(100 * mean_iou, abs=0.006)
    model, source = keras.models.load_model(run.model), TASKS[recipe.task](recipe).load().splits["validation"]
    assert keras_vit.describe(model).config.kind == "panoptic_fpn"
    assert source.size == 5
    decode, examples = image_decoder(model), list(source.in_order().as_numpy_iterator())
    images = np.stack([decode(example["image"]) for example in examples])
    masks = np.stack([resize_raster(read_mask(example["mask"]), (32, 64))[..., 0] for example in examples])
    predicted = np.argmax(model(images), axis=-1)
    expected = sklearn.metrics.jaccard_score(masks.ravel(), predicted.ravel(), average="macro")
    assert mean_iou == pytest.approx(expected, abs=1e-4)


def test_report_shows_images_and_classes(brief_run):
    run, evaluation = brief_run
    page = run.report.read_text()
    assert f"{evaluation.mean_iou:.2%}" in page
    assert page.count("<li>") == 8
    assert page.count('alt="predicted mask"') == 8
    for score in evaluation.by_class:
        assert f"<th scope=row>{score.name}<td>{score.pixels:,}<td>" in page
    assert "$" not in page.replace(run.recipe.read_text(), "")


@pytest.mark.slow
@pytest.mark.usefixtures("briefly")
def test_evaluate_takes_other_data(brief_run, tmp_path, capsys):
    run, evaluation = brief_run
    for part in ("train/images", "train/masks", "test/images", "test/masks"):
        (tmp_path / part).mkdir(parents=True)
    for number in range(7):
        folder = tmp_path / ("test" if number else "train")
        PIL.Image.new("RGB", (20, 10)).save(folder / "images" / f"{number}.png")
        (folder / "masks" / f"{number}.png").write_bytes(encode_png(np.full((10, 20), number % 2, "uint8")))
    (tmp_path / "classes.txt").write_text("\n".join(evaluation.class_names))
    assert not main(["evaluate", str(run.folder), "data.dataset=folder", f"data.directory={tmp_path}"])
    assert "6 images at 32 x 64 pixels" in capsys.readouterr().out
    (tmp_path / "classes.txt").write_text("wall\ndoor")
    assert main(["evaluate", str(run.folder), "data.dataset=folder", f"data.directory={tmp_path}"]) == 2
    assert "The model has the classes background, disc" in capsys.readouterr().err


class Thirds(tf.Module):
    """Replaces an exported model: the upper third of a picture is sky, the rest is road."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "image_bytes")])
    def serve(self, image_bytes):
        mask = tf.tile(tf.constant([1, 0, 0], tf.uint8)[None, :, None], [tf.size(image_bytes), 1, 5])
        return {"mask": mask, "valid": tf.strings.substr(image_bytes, 1, 3) == "PNG"}


def test_predict_writes_masks_in_colours(tmp_path, capsys):
    model, folder = Thirds(), tmp_path / "1"
    tf.saved_model.save(model, str(folder), {"serving_default": model.serve})
    (folder / "assets" / "labels.txt").write_text("road\nsky\n")
    paths = [tmp_path / "a.png", tmp_path / "b" / "a.png", tmp_path / "notes.jpg"]
    paths[1].parent.mkdir()
    paths[2].write_text("no image")
    for path in paths[:2]:
        PIL.Image.new("RGB", (8, 12)).save(path)
    assert main(["predict", str(folder), *map(str, paths), "--to", str(tmp_path / "masks"), "--top", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{paths[0]}: road 66.7% of the pixels; {tmp_path / 'masks' / 'a.png'}"
    assert "is not an image that can be decoded" in lines[2]
    assert {path.name for path in (tmp_path / "masks").iterdir()} == {"legend.png", "a.png", "a-2.png", "masks"}
    with PIL.Image.open(tmp_path / "masks" / "masks" / "a-2.png") as mask:
        np.testing.assert_array_equal(np.asarray(mask), np.repeat([[1], [0], [0]], 5, axis=1))
    with PIL.Image.open(tmp_path / "masks" / "a.png") as drawn:
        pixels = np.asarray(drawn)
    assert pixels.shape == (12, 8, 3)
    np.testing.assert_allclose(pixels[:4], np.broadcast_to(0.55 * palette(2)[1], (4, 8, 3)), atol=1)
    assert not main(["predict", str(folder), str(paths[0])])
    assert capsys.readouterr().out.strip() == f"{paths[0]}: road 66.7% of the pixels, sky 33.3% of the pixels"
    (folder / "keras_vit.json").write_text('{"output": {"kind": "masks"}}')
    assert main(["predict", str(folder), str(paths[0])]) == 2
    assert "needs the signature 'instances'. Export the model with it." in capsys.readouterr().err


@pytest.mark.usefixtures("briefly")
def test_what_is_for_classifiers_is_refused(brief_run, tmp_path, monkeypatch, capsys):
    for command in (
        ["fewshot", "RUN"],
        ["explain", "RUN"],
        ["study", "pooling", "recipe=shapes_vt_fpn"],
        ["duplicates", "shapes_vt_fpn"],
        ["duplicates", "digits", "--against", "shapes_vt_fpn"],
        ["vtab", "task=segmentation"],
        ["evaluate", "RUN", "data.dataset=digits"],
    ):
        monkeypatch.chdir(tmp_path)
        assert main([word.replace("RUN", str(brief_run[0].folder)) for word in command]) == 2
        error = capsys.readouterr().err
        reasons = (
            "Received: task=segmentation, for which these commands are available: train, records, evaluate, ",
            "works with classifiers and with heads on a ViT",
            "but no masks",
            "data.label is only used with task=classification",
            "model.function=VTFPN or PanopticFPN are for task=segmentation",
            "requires a recipe with a model.config",
        )
        assert any(reason in error for reason in reasons)
        assert "Traceback" not in error


def test_fields_that_mean_nothing_are_refused(recipe):
    expected = {
        "task=classification": "model.head and model.function=VTFPN or PanopticFPN are for task=segmentation",
        "data.mask=mask": "data.mask is only used for data sets of TFDS",
        "data.mask_offset=1": "data.mask_offset is only used with data.mask",
        "augment.scale_range=2,1": "augment.scale_range must be smallest,largest",
    }
    of_classifiers = ["augment.mixup=0.5", "augment.erasing=0.1", "fit.label_smoothing=0.1", "fit.loss=sigmoid"]
    for assignment in [*of_classifiers, "distillation.teacher=teacher", "model.resize=64", "data.classes=a,b"]:
        expected[assignment] = f"{assignment.partition('=')[0]} is only used with task=classification"
    for assignment, message in expected.items():
        with pytest.raises(InputError, match=message):
            override(recipe, [assignment])


def test_fields_of_masks_are_refused_for_classifiers():
    with pytest.raises(InputError, match=r"data\.mask is only used with task=segmentation"):
        override(recipes.load("cifar10"), ["data.mask=segmentation_mask"])
    with pytest.raises(InputError, match=r"has masks, but no classes\. Choose a recipe for masks"):
        load_dataset(override(recipes.load("cifar10"), ["data.dataset=shapes"]).data)


class TinyStreets(TinySet):
    """Five pictures, each with a label and a mask with values from 1 to 3."""

    features = {  # noqa: RUF012
        "image": tfds.features.Image(),
        "mask": tfds.features.Image(shape=(None, None, 1)),
        "label": tfds.features.ClassLabel(num_classes=2),
        "colors": tfds.features.Image(),
    }
    numbers = {"train": range(3), "test": range(3, 5)}  # noqa: RUF012

    def example(self, i):
        mask, image = np.resize(np.array([1, 2, 3], "uint8"), (6, 10, 1)), np.full((6, 10, 3), i, "uint8")
        return {"image": image, "mask": mask, "label": 0, "colors": image}


def test_masks_of_tfds(recipe, tmp_path):
    TinyStreets(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    data = dataclasses.replace(recipe.data, dataset="tiny_streets", tfds_directory=str(tmp_path), train_images=None)
    named = dataclasses.replace(data, mask="mask", mask_classes=("road", "sky"), mask_offset=1, validation_fraction=0.0)
    dataset = load_dataset(named, "mask")
    assert dataset.class_names == ("road", "sky")
    assert {name: source.size for name, source in dataset.splits.items()} == {"train": 3, "test": 2}
    example = next(dataset.splits["test"].in_order().as_numpy_iterator())
    expected = np.resize(np.array([0, 1, VOID], "uint8"), (6, 10))
    np.testing.assert_array_equal(read_values(example["mask"]), expected)
    for fields, message in (
        ({"mask": "masks"}, r"has no mask 'masks'. Features that could be masks: mask\.$"),
        ({"mask": "colors"}, "has no mask 'colors'"),
        ({"mask": "mask"}, "data.mask_classes="),
        ({}, "has classes, but no masks"),
    ):
        with pytest.raises(InputError, match=message):
            load_dataset(dataclasses.replace(data, **fields), "mask")


def test_numbers_of_a_segmentation():
    confusion = np.array([[6, 2, 0, 0], [1, 3, 0, 0], [0, 0, 0, 0], [4, 0, 0, 0]])
    found = Segmentation(confusion, ("a", "b", "c", "d"), 3, (4, 4))
    np.testing.assert_allclose(found.ious, [6 / 13, 3 / 6, np.nan, 0])
    assert found.mean_iou == pytest.approx((6 / 13 + 3 / 6 + 0) / 3)
    assert found.pixel_accuracy == 9 / 16
    by_class = [(score.name, score.pixels, score.taken_for) for score in found.by_class]
    assert by_class == [("d", 4, "a"), ("a", 8, "b"), ("b", 4, "a"), ("c", 0, "")]


def test_colours_can_be_told_apart():
    for count, least in ((8, 60), (54, 50), (255, 20)):
        colors = palette(count)[[*range(count), VOID]].astype(int)
        distances = np.linalg.norm(colors[:, None] - colors[None], axis=-1) + 255 * np.eye(count + 1)
        assert distances.min() > least
    assert palette(4)[VOID].tolist() == [255, 255, 255]
    names = [f"class {i}" for i in range(5)]
    assert class_legend(names).height > class_legend(names[:2]).height


def test_an_overlay_has_the_pictures_size():
    pixels = np.full((8, 12, 3), 100, "uint8")
    mask = np.array([[0, 1], [2, VOID]], "uint8")
    drawn = overlay_mask(pixels, mask, 3)
    for row, column, value in ((0, 0, 0), (0, 11, 1), (7, 0, 2), (7, 11, VOID)):
        np.testing.assert_allclose(drawn[row, column], 0.55 * palette(3)[value] + 45, atol=1)


@pytest.mark.slow
def test_the_recipe_reaches_its_mean_iou_and_is_exported(tmp_path):
    run, evaluation = train(recipes.load("shapes_vt_fpn"), tmp_path)
    assert evaluation.mean_iou > 0.9
    model = keras.models.load_model(run.model)
    content = next(run.samples.iterdir()).read_bytes()
    served = tf.saved_model.load(str(run.export / "1")).signatures["serving_default"](
        image_bytes=tf.constant([content])
    )
    probabilities = model(image_decoder(model)(content)[None])
    assert (served["mask"].numpy() == np.argmax(probabilities, axis=-1)).mean() > 0.999
    assert len(list((run.figures / "samples").glob("*.png"))) == 9  # One of the files is the legend.


def test_the_worth_of_a_mean_iou_is_told_by_true_classes_alone():
    """One pixel has a predicted class that never occurs."""
    confusion = np.array([[88, 1, 1], [10, 0, 0], [0, 0, 0]])
    sentence = judge(Segmentation(confusion, ("road", "sky", "car"), 3, (4, 4)))
    assert "most common class, road, would reach a mean IoU of 45.00% and a pixel accuracy of 90.00%." in sentence
