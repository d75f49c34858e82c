"""Pre-training without labels as a task of `python -m training`."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.pretraining import MaskedAutoencoder, MaskedPatchPrediction
from tests.test_case import assert_close, randomize
from tests.training.fitting import array_pipeline, fitted
from training.engine import train
from training.errors import InputError
from training.inspection import fewshot
from training.inspection.evaluate import evaluate_source
from training.inspection.predict import predict
from training.recipe.assignments import override
from training.runs.folder import Run
from training.tasks.pretraining import ExplainedVariance, PatchAccuracy, Task

MAE = [
    "pretraining.method=mae",
    "pretraining.decoder_layers=1",
    "pretraining.decoder_dim=8",
    "pretraining.decoder_heads=2",
]


@pytest.fixture(scope="module")
def recipe(brief_recipe):
    changes = [
        "task=pretraining",
        "fit.label_smoothing=0",
        "fit.epochs=none",
        "fit.steps=4",
        "fit.report_every=2 steps",
    ]
    return override(brief_recipe, changes)


def outputs(*shape):
    """Random outputs of a learner: values of hidden patches are far from those of the others."""
    rng = np.random.default_rng(0)
    mask = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]], "float32")
    targets, predictions = rng.normal(size=(2, 3, 4, *shape)).astype("float32")
    targets += np.where(mask, 0, 50)[..., *[None] * len(shape)]
    return {"targets": targets, "predictions": predictions, "mask": mask}


def test_the_explained_variance_is_that_of_hidden_patches():
    drawn = outputs(6)
    metric = ExplainedVariance()
    for first, last in ((0, 2), (2, 3)):
        part = {name: values[first:last] for name, values in drawn.items()}
        metric.update_state(None, part, sample_weight=np.array([1, 0, 2][first:last]))
    hidden = drawn["mask"] == 1
    targets, predictions = (drawn[name][[0, 2, 2]][hidden[[0, 2, 2]]] for name in ("targets", "predictions"))
    assert_close(metric.result(), 1 - np.mean((predictions - targets) ** 2) / np.var(targets))


def test_the_accuracy_is_that_of_hidden_patches(recipe):
    learner = MaskedPatchPrediction(keras_vit.ViT(recipe.model.config, input_shape=(8, 8, 1)), target="mean_color")
    targets = np.arange(12).reshape(3, 4, 1) % 8
    right = np.array([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]])[..., None]
    predictions = np.eye(8)[np.where(right, targets, (targets + 1) % 8)]
    mask = outputs()["mask"]
    metric = PatchAccuracy(learner)
    metric.update_state(None, {"targets": targets, "predictions": predictions, "mask": mask}, np.array([1, 1, 0]))
    assert_close(metric.result(), 3 / 4)  # 1 of 2 hidden patches of the first image, 2 of 2 of the second.


@pytest.mark.parametrize("changes", [[], pytest.param(MAE, marks=pytest.mark.slow)], ids=["masked patches", "mae"])
def test_only_what_runs_is_trained(recipe, changes):
    """Not the pooling, which weight decay would shrink."""
    recipe = override(recipe, [*changes, "model.config.pooling=map", "model.config.num_heads=2", "fit.steps=2"])
    with array_pipeline():
        run = fitted(recipe, eagerly=True)
    assert isinstance(run.learner, MaskedAutoencoder if changes else MaskedPatchPrediction)
    assert run.learner.model is run.model
    assert run.state.history[-1].keys() >= {"loss", "val_loss", Task(recipe).metric.name}
    frozen = [variable for variable in run.model.variables if not variable.trainable]
    assert {variable.path.split("/")[0] for variable in frozen} - {"preprocessing"} == {"pooling"}
    assert len(run.trained.trainable_variables) == len(run.learner.trainable_variables)


@pytest.mark.slow
@pytest.mark.combination("task=pretraining", "a run is interrupted and resumed")
def test_a_resumed_run_hides_the_same_patches(recipe, tmp_path):
    whole, recipe = None, override(recipe, ["schedule.decay=constant", "schedule.warmup=0%"])
    Task(recipe).load()  # The first time, it uses random numbers.
    for stops in (False, True):
        run = Run(tmp_path / str(stops))
        run.checkpoints.mkdir(parents=True)
        with array_pipeline():
            if stops:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("training.engine.fitting.training_steps", lambda recipe, steps: 2)
                    fitted(recipe, eagerly=True, run=run)
            last = fitted(recipe, eagerly=True, run=run)
        weights = [np.array(variable) for variable in last.learner.variables]
        whole = whole or weights
    assert last.state.step == 4
    for one, other in zip(whole, weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.combination("a run of task=pretraining", "fewshot, and fine-tuning from the run")
@pytest.mark.parametrize("changes", [[], ["pretraining.target=pixels"], MAE], ids=["classes", "pixels", "mae"])
def test_a_run_and_what_follows(recipe, changes, tmp_path):
    run, evaluation = train.train(override(recipe, changes), folder=tmp_path / "run")
    page = run.report.read_text()
    assert page.count("<img") >= 3 * len(evaluation.examples) + 3
    assert "fewshot" in page
    image, masked, predicted = evaluation.examples[0]
    is_gray = masked == 128
    assert 0.3 < is_gray.mean() < 0.9
    np.testing.assert_array_equal(image[~is_gray], predicted[~is_gray])
    assert str(evaluation).startswith(Task(override(recipe, changes)).metric.title)
    encoder = keras.models.load_model(run.model)
    assert encoder.output_shape == (None, recipe.model.config.hidden_dim)
    for command, *arguments in ([evaluate_source, run.folder], [predict, run.folder, [*run.samples.iterdir()]]):
        with pytest.raises(InputError, match=r"for which these commands are available: train, fewshot|has no export"):
            command(*arguments)
    rows, _ = fewshot.measure(run.folder, [], [1], 1)
    assert 0 < rows[0].accuracy < 1
    tuned = [f"model.weights={run.model}", "model.config=none", "task=classification", "fit.steps=1"]
    defaults = ["fit.report_every=1 epoch"]
    model = fitted(override(recipe, [*tuned, *defaults]), eagerly=True).model
    assert model.output_shape == (None, 10)


def test_what_has_no_effect_is_refused(recipe):
    expected = {
        "augment.mixup=0.5": r"augment\.mixup is only used with task=classification",
        "fit.label_smoothing=0.1": r"fit\.label_smoothing is only used with task=classification",
        "distillation.teacher=x": r"distillation\.teacher is only used with task=classification",
        "pretraining.decoder_dim=8": r"pretraining\.decoder_dim is only used for pretraining\.method=mae",
        "task=classification pretraining.target=pixels": r"pretraining\.target is only used with task=pretraining",
        "model.config=none model.function=ResNet": r"trains a Vision Transformer. .*Received: model\.function=ResNet",
        "distribution.kind=model_parallel": "does not split the layers that predict patches",
    }
    for changes, message in expected.items():
        with pytest.raises(InputError, match=message):
            override(recipe, changes.split())
    with pytest.raises(InputError, match=r"pretraining\.target is only used for .*masked_patch_prediction"):
        override(recipe, [*MAE, "pretraining.target=pixels"])
    model = randomize(train.build_model(override(recipe, ["model.config.token_merging=1"]), 10))
    with pytest.raises(InputError, match="token_merging=1 merges tokens"):
        Task(recipe).build_learner(model)
