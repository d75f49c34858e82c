"""The command `predict` shows the export of a run as its task means it."""

import pytest

from training.__main__ import main
from training.data.sets import scenes


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
    assert not main(["explain", str(tmp_path / "run"), "--path", str(tmp_path / "explained")])
    figures = {path.name for path in (tmp_path / "explained").iterdir()}
    assert ("queries.png" in figures, "rollout.png" in figures) == (recipe == "scenes_eomt", True)
    assert "left out" not in capfd.readouterr().out
