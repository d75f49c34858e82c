"""Heads for pixels, trained from recipes: on a frozen encoder, with queries, and for depth."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from tests.test_case import canonical_weights
from training import recipes
from training.data.contents import Contents, Item
from training.data.sets import scenes
from training.engine import frozen
from training.engine import train as module
from training.engine.models import build_model
from training.errors import InputError
from training.recipe.assignments import override
from training.runs.folder import Run
from training.tasks import TASKS
from training.tasks.depth_losses import ScaleShiftInvariantLoss, SiLogLoss
from training.tasks.segmentation import TaskWithQueries

pytestmark = pytest.mark.filterwarnings("ignore:Even though the .tf.config", "ignore:The structure of .inputs")
CONFIG = keras_vit.ViTConfig(16, 24, num_layers=4, num_heads=2, mlp_dim=32)
BRIEF = ["data.validation_fraction=0.2", "fit.epochs=2", "fit.batch_size=8", "fit.report_every=1 epoch"]
QUERIES = ["model.head=eomt", "model.head_arguments.num_queries=7", "model.head_arguments.num_blocks=1"]


@pytest.fixture(autouse=True)
def _few_images(monkeypatch):
    monkeypatch.setattr(scenes, "NUM_IMAGES", {"train": 20, "test": 6})
    monkeypatch.setattr(module, "export", lambda *arguments: False)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("encoder") / "encoder.keras"
    keras.utils.set_random_seed(0)
    keras_vit.ViT(CONFIG, classes=4, input_shape=(96, 96, 3)).save(path)
    return path


def on_encoder(encoder, *assignments):
    fields = ["data.dataset=scenes", f"model.encoder={encoder}", "model.input_shape=96,96,3", "data.views=2", *BRIEF]
    return override(recipes.load("segment_folder"), [*fields, *assignments])


def weights_of(path):
    return canonical_weights(keras.saving.load_model(path))


@pytest.mark.slow
@pytest.mark.parametrize("head", ["linear", "eomt"])
def test_a_frozen_encoder_keeps_its_weights(head, encoder, tmp_path, capsys):
    arguments = ["data.validation_fraction=0", "fit.final_weights=last", "fit.epochs=1"]
    recipe = on_encoder(encoder, *arguments, *(QUERIES if head == "eomt" else ()))
    run, evaluation = module.train(recipe, folder=tmp_path / "run")
    found, before = weights_of(run.model), weights_of(encoder)
    unchanged = [path for path in found if path in before and not path.startswith("predictions")]
    assert len(unchanged) > 30
    assert all((found[path] == before[path]).all() for path in unchanged)
    assert found["predictions/kernel"].any()
    own = [path for path in found if path.startswith("head/encoder_block_3/") and "key/bias" not in path]
    assert len(own) == (head == "eomt") * 15
    assert not any((found[path] == before[path.removeprefix("head/")]).all() for path in own)
    assert 0 <= evaluation.mean_iou <= 1
    assert run.report.is_file()
    assert capsys.readouterr().out.count("Computing the features") == 1


def test_features_are_computed_again_if_annotations_change(encoder, monkeypatch):
    """They are kept if only the limit and the number of views change."""
    monkeypatch.setattr(frozen, "cached_features", lambda folder, *_: folder.name)
    model, dataset, names = build_model(on_encoder(encoder), 6), TASKS["segmentation"](on_encoder(encoder)).load(), []
    for label, field in (("a", "views=2"), ("a", "views=3"), ("a", "cache_limit=9"), ("b", "views=2")):
        contents = Contents({"test": (Item("1.png", 3, "digest of the image", label),)})
        changed = dataclasses.replace(dataset, list_contents=lambda contents=contents: contents)
        task = TASKS["segmentation"](on_encoder(encoder, f"data.{field}"))
        names.append(frozen.FrozenEncoder(model, task, changed, Run("runs/run")).features("test", dict, dict))
    assert names[0] == names[1] == names[2] != names[3]


def test_the_loss_of_depth_is_that_of_the_model():
    """Weights of relative depth are not trained as metres. The scenes are 2 to 8 metres deep."""
    task = TASKS["depth"](recipes.load("scenes_depth"))
    dataset = task.load()
    for fields, loss in (({"is_inverse": True, "activation": "relu"}, ScaleShiftInvariantLoss), ({}, SiLogLoss)):
        model = keras_vit.DepthEstimator(CONFIG, "linear", input_shape=(96, 96, 3), **fields)
        assert type(task.build_objective(model, dataset)) is loss
    model = keras_vit.DepthEstimator(CONFIG, "linear", max_depth=0.1, input_shape=(96, 96, 3))
    with pytest.raises(InputError, match=r"is between 0\.001 and 0\.1 metres.*Correct data\.depth_scale or max_depth"):
        task.build_objective(model, dataset)


@pytest.mark.slow
def test_what_is_trained(encoder, tmp_path):
    """All weights, or those of a head without the blocks that it copies from the encoder."""
    before = weights_of(encoder)
    recipe = on_encoder(encoder, *QUERIES, "model.train_last_blocks=false", "fit.epochs=1")
    found = weights_of(module.train(recipe, folder=tmp_path / "head")[0].model)
    shared = [path for path in found if path.removeprefix("head/") in before and not path.startswith("predictions")]
    assert len(shared) > 40
    assert all((found[path] == before[path.removeprefix("head/")]).all() for path in shared)
    assert found["predictions/kernel"].any()
    recipe = on_encoder(encoder, "model.train_encoder=true", "data.views=1", "fit.epochs=1")
    found = weights_of(module.train(recipe, folder=tmp_path / "all")[0].model)
    kernels = [path for path in found if path in before and path.endswith("kernel") and "predictions" not in path]
    assert len(kernels) > 20
    assert not any((found[path] == before[path]).all() for path in kernels)


@pytest.mark.slow
def test_a_stopped_run_continues_as_if_it_had_not_been_stopped(encoder, tmp_path, monkeypatch):
    recipe = on_encoder(encoder)
    whole, _ = module.train(recipe, folder=tmp_path / "whole")
    save = module.Fitting._fit_segment

    def stop_after_one_epoch(fitting, *arguments):
        fitting.stop.requested = fitting.state.step >= 2
        save(fitting, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module.Fitting, "_fit_segment", stop_after_one_epoch)
        patch.setattr("training.engine.events._STEPS_BETWEEN_AGREEMENTS", 1)
        module.train(recipe, folder=tmp_path / "parts")
    parts, _ = module.train(recipe, folder=tmp_path / "parts")
    np.testing.assert_equal(weights_of(parts.model), weights_of(whole.model))


def test_depths_that_a_model_cannot_return_are_unknown():
    task, depth = TASKS["depth"](recipes.load("scenes_depth")), np.array([0.5, 2.9, 3.0, 0.0, 8.0], "float32")
    task.prepare(keras_vit.DepthEstimator(CONFIG, "linear", max_depth=3.0, input_shape=(32, 32, 3)), 10)
    assert task.read_label({"depth": depth}, 0).numpy().tolist() == [*depth[:2].tolist(), 0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.head=none"], "model.encoder needs model.head"),
        (["task=classification"], "model.head and model.function=.* are for task=segmentation"),
        (["task=depth", "model.head=eomt"], "task=depth needs model.head=dpt or linear"),
        (["task=instance_segmentation"], "task=instance_segmentation needs model.head=eomt"),
        (["model.head_arguments.width=3"], r"model\.head_arguments\.width is not an argument of the head linear"),
        (["model.train_encoder=true"], r"data\.views is only used with model\.encoder and model\.train_encoder=false"),
        (["model.resize=600"], "resize"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        override(recipes.load("segment_folder"), changes)


@pytest.mark.parametrize("task", ["segmentation", "panoptic_segmentation", "depth"])
def test_weights_of_other_outputs_are_refused(task, encoder):
    changes = ["model.encoder=none", "model.head=none", "data.views=1", f"model.weights={encoder}", f"task={task}"]
    with pytest.raises(InputError, match=r"predicts classes, but the task needs .* set model\.encoder and model\.head"):
        build_model(override(on_encoder(encoder), changes), 3)


def test_what_keras_adds_to_an_error_is_left_out(encoder):
    with pytest.raises(InputError, match=r"^An image of 96 x 90 pixels does not divide into patches.*remain\)\.$"):
        build_model(on_encoder(encoder, "model.input_shape=96,90,3"), 3)


def test_queries_with_weights_are_fine_tuned(tmp_path):
    head = keras_vit.heads.EoMTHead(num_queries=5, num_blocks=1, num_upscales=0)
    keras_vit.Segmenter(CONFIG, head, classes=4, input_shape=(96, 96, 3)).save(tmp_path / "model.keras")
    changes = ["model.encoder=none", "model.head=none", "data.views=1", f"model.weights={tmp_path / 'model.keras'}"]
    recipe = override(on_encoder(""), changes)
    with pytest.raises(InputError, match=r"predicts masks, .* To train its queries, set model\.head=eomt"):
        build_model(recipe, 3)
    recipe = override(recipe, ["model.head=eomt"])
    assert build_model(recipe, 3).output["objects"].shape == (None, 5, 4)
    assert isinstance(TASKS["segmentation"](recipe), TaskWithQueries)
    with pytest.raises(InputError, match="head_arguments"):
        override(recipe, ["model.head_arguments.num_queries=3"])
