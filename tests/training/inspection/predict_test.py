"""The command `predict` chooses a signature of a SavedModel by the kind of output and the task of the run."""

import json

import pytest
import tensorflow as tf

from tests.pictures import picture
from training.__main__ import main
from training.data.sets import scenes

_FILES = tf.TensorSpec([None], tf.string, "image_bytes")


class Objects(tf.Module):
    """Replaces an exported model of masks: each image has one segment, the first two columns of 4 x 3 pixels."""

    @tf.function(input_signature=[_FILES])
    def serve(self, image_bytes):
        return {"masks": tf.zeros([tf.size(image_bytes), 4, 3, 1]), "valid": tf.fill(tf.shape(image_bytes), True)}

    @tf.function(input_signature=[_FILES])
    def panoptic(self, image_bytes):
        tf.debugging.assert_equal(tf.size(image_bytes), 1, "images are computed one by one")
        return {
            "counts": tf.constant([[[0, 8, 4]]]),
            "num_counts": tf.constant([[3]]),
            "classes": tf.constant([[1]]),
            "scores": tf.constant([[0.875]]),
            "num_objects": tf.constant([1]),
            "sizes": tf.constant([[4, 3]]),
            "valid": tf.constant([True]),
        }

    @tf.function(input_signature=[_FILES])
    def predict_original(self, image_bytes):
        mask = tf.constant([[[1, 1, 0]] * 4], tf.uint8)
        return {"mask": mask, "sizes": tf.constant([[4, 3]]), "valid": tf.constant([True])}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run with an export."""
    folder, model = tmp_path_factory.mktemp("run"), Objects()
    signatures = {
        "serving_default": model.serve,
        "panoptic": model.panoptic,
        "predict_original": model.predict_original,
    }
    tf.saved_model.save(model, str(folder / "export" / "1"), signatures)
    (folder / "export" / "1" / "assets" / "labels.txt").write_text("road\ncar\n")
    (folder / "export" / "1" / "keras_vit.json").write_text(json.dumps({"output": {"kind": "masks", "units": None}}))
    for name in ("a", "b"):
        picture(4, 3).save(folder / f"{name}.png")
    return folder


def _predict(run, task, *arguments):
    (run / "recipe.json").write_text(json.dumps({"recipe": {"task": task}}))
    return main(["predict", *arguments, str(run / "a.png"), str(run / "b.png")])


def test_panoptic_segments_of_a_run(run, tmp_path, capsys):
    for source in (run, run / "export" / "1"):
        assert not _predict(run, "panoptic_segmentation", "--to", str(tmp_path / "to"), str(source))
        assert capsys.readouterr().out.splitlines()[0].endswith(f"a.png: car 87.5%; {tmp_path}/to/a.png")
    content = json.loads((tmp_path / "to" / "panoptic.json").read_text())
    assert [image["file_name"] for image in content["images"]] == [str(run / "a.png"), str(run / "b.png")]
    table = tmp_path / "table.jsonl"
    assert not _predict(run, "panoptic_segmentation", "--to", str(table), str(run))
    row = json.loads(table.read_text().splitlines()[1])
    assert row == {"path": str(run / "b.png"), "labels": ["car"], "scores": [0.875], "shares": [8 / 12]}


def test_classes_of_pixels_of_a_run_with_queries(run, capsys):
    assert not _predict(run, "segmentation", str(run))
    assert capsys.readouterr().out.splitlines()[0].endswith("a.png: car 66.7% of the pixels, road 33.3% of the pixels")


def test_a_missing_signature(run, capsys):
    assert _predict(run, "instance_segmentation", str(run)) == 2
    assert "needs the signature 'instances'. Export the model with it." in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "settings", "files"),
    [
        ("scenes_eomt", [], {"instances.json"}),
        ("scenes_eomt", ["task=panoptic_segmentation"], {"panoptic.json", "panoptic"}),
        ("scenes_eomt", ["task=segmentation"], {"legend.png", "masks"}),
        ("scenes_depth", [], {"depth"}),
    ],
)
def test_a_run_predicts_its_samples_with_its_export(recipe, settings, files, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(scenes, "NUM_IMAGES", {"train": 40, "test": 9})
    small = ["model.input_shape=32,32,3", "fit.epochs=1", "fit.batch_size=8", f"run={tmp_path / 'run'}"]
    assert not main(["train", recipe, *small, *settings])
    samples = tmp_path / "run" / "figures" / "samples"
    assert {path.name for path in samples.iterdir()} == files | {f"{number}.png" for number in range(8)}
    assert "predicted by the SavedModel in a separate process" in capfd.readouterr().out
