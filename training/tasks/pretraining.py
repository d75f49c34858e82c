"""Pre-training without labels: hidden patches are predicted. Shapes: B batch, N patches."""

import keras
from keras import ops

from keras_vit.pretraining import MaskedAutoencoder, MaskedPatchPrediction
from keras_vit.pretraining.pretrainer import mean_of_hidden
from training.errors import InputError
from training.evaluation.pretraining import evaluate
from training.reports.pretraining import write_pretraining_report
from training.tasks import classification, task


class Task(classification.Task):
    """The task of predicting hidden patches. Images are loaded and changed as for classification.

    The learner is a model of `keras_vit.pretraining`. The labels of the images have no effect. The metric is the
    accuracy if the targets are classes. If they are pixels, it is the share of their variance that is explained.
    """

    metric = task.Metric("accuracy", "accuracy")
    commands = ("fewshot", "explain", "duplicates")
    published_results = ()
    has_predictions = False

    def __init__(self, recipe):
        super().__init__(recipe)
        if recipe.pretraining.method == "mae" or recipe.pretraining.target == "pixels":
            self.metric = task.Metric("explained_variance", "explained variance")

    def head_arguments(self, num_classes, with_logits):
        return {"include_top": False}

    def build_learner(self, model):
        options = self.recipe.pretraining
        try:
            if options.method == "mae":
                names = ("decoder_layers", "decoder_dim", "decoder_heads", "normalize_targets")
                settings = {name: getattr(options, name) for name in names}
                return MaskedAutoencoder(model, options.mask_ratio or 0.75, seed=self.recipe.seed, **settings)
            return MaskedPatchPrediction(model, options.mask_ratio or 0.5, options.target, seed=self.recipe.seed)
        except ValueError as error:
            raise InputError(str(error)) from error

    def finish(self, model, dataset):
        """The model has no head, so it has no classes."""

    def build_objective(self, learner, dataset):
        return lambda labels, outputs: learner.image_losses(outputs)

    def build_metric(self, learner, dataset):
        if self.metric.name == "accuracy":
            return PatchAccuracy(learner, name=self.metric.name)
        return ExplainedVariance(name=self.metric.name)

    def evaluate(self, model, dataset, splits):
        objective, metric = self.build_objective(model, dataset), self.build_metric(model, dataset)
        return evaluate(model, dataset, splits, self.recipe, objective, metric)

    def results(self, evaluation):
        return {
            f"test_{self.metric.name}": evaluation.value,
            "test_loss": evaluation.loss,
            "test_images": evaluation.num_images,
        }

    def report(self, run, dataset, state, evaluation, model):
        write_pretraining_report(run, self.recipe, state, evaluation, model)
        return self.results(evaluation)

    def next_commands(self, folder, samples):
        return [
            f"fewshot {folder}",
            f"train folder model.weights={folder}/model.keras data.directory=PATH",
            f"explain {folder}",
        ]


class PatchAccuracy(keras.metrics.Mean):
    """Share of the corrupted patches whose class is predicted correctly, of the outputs of a learner."""

    def __init__(self, learner, name="accuracy"):
        super().__init__(name=name)
        self._accuracies = learner.image_accuracies

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(self._accuracies(y_pred), sample_weight)


class ExplainedVariance(keras.metrics.Metric):
    """1 - (mean squared error) / (variance of the targets), over all values of the hidden patches (R squared).

    It is 0 for a model that always predicts the mean of all targets, and 1 for perfect predictions.
    """

    def __init__(self, name="explained_variance"):
        super().__init__(name=name)
        # Sums over images: weights, and means of squared errors, targets and squared targets over hidden patches. The
        # sums of several replicas can be added.
        self.sums = self.add_variable((4,), "zeros", name="sums")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds the outputs of a batch. Images of weight 0 are not counted."""
        targets, predictions, mask = (y_pred[name] for name in ("targets", "predictions", "mask"))
        weights = ops.ones_like(mask[:, 0]) if sample_weight is None else sample_weight
        weights = ops.cast(weights, "float32")
        values = ops.square(predictions - targets), targets, ops.square(targets)
        means = [ops.sum(weights * mean_of_hidden(ops.mean(value, axis=-1), mask)) for value in values]
        self.sums.assign(self.sums + ops.stack([ops.sum(weights), *means]))

    def result(self):
        error, mean, square = (self.sums[i] / ops.maximum(self.sums[0], 1e-6) for i in (1, 2, 3))
        return 1 - error / ops.maximum(square - ops.square(mean), 1e-12)
