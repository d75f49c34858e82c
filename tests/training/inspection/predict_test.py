"""Runs of the recipes of scenes record their results, and show what their export predicts as their task means it."""

import json

import pytest

from training.__main__ import main
from training.data.sets import scenes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "settings", "files", "results"),
    [
        ("scenes_eomt", [], {"instances.json"}, ("mask_ap", "mask_ap50", "mask_ap75")),
        ("scenes_eomt", ["task=panoptic_segmentation"], {"panoptic.json", "panoptic"}, ("panoptic_quality",)),
        ("scenes_eomt", ["task=segmentation"], {"legend.png", "masks"}, ("mean_iou",)),
        ("scenes_semantic", [], {"legend.png", "masks"}, ("mean_iou",)),
        ("scenes_depth", [], {"depth"}, ("abs_rel", "rmse", "delta_1", "constant_abs_rel")),
    ],
)
def test_a_run_predicts_its_samples_with_its_export(recipe, settings, files, results, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(scenes, "NUM_IMAGES", {"train": 40, "test": 9})
    small = ["model.input_shape=32,32,3", "fit.epochs=1", "fit.batch_size=8", f"run={tmp_path / 'run'}"]
    assert not main(["train", recipe, *small, *settings])
    recorded = json.loads((tmp_path / "run" / "recipe.json").read_text())["result"]
    assert {f"test_{name}" for name in (*results, "images")} <= recorded.keys()
    assert (tmp_path / "run" / "report.html").is_file()
    samples = tmp_path / "run" / "figures" / "samples"
    assert {path.name for path in samples.iterdir()} == files | {f"{number}.png" for number in range(8)}
    assert "predicted by the SavedModel in a separate process" in capfd.readouterr().out
    assert not main(["explain", str(tmp_path / "run"), "--path", str(tmp_path / "explained")])
    figures = {path.name for path in (tmp_path / "explained").iterdir()}
    assert ("queries.png" in figures, "rollout.png" in figures) == (recipe == "scenes_eomt", True)
    assert "left out" not in capfd.readouterr().out
