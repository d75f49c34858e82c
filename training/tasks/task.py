"""The protocol of a task: everything that the trainer, the commands, the studies and the reports ask a task."""

import abc
import dataclasses
import itertools

import numpy as np

from keras_vit.preprocessing import preprocessing_layer
from training.data.images import image_suffix
from training.data.loading import load_dataset


@dataclasses.dataclass(frozen=True)
class Metric:
    """The number that judges the models of a task.

    Args:
        name: Its key in the history and, after `test_` and `val_`, in results.
        title: Its name in texts, such as `"mean IoU"`.
        is_share: Whether it is a share, which is printed in percent.
        is_higher_better: Whether the highest value is the best, and not the lowest.
        tested_as: Name, after `test_`, of the result of the test that is compared in studies. "": `name`.
    """

    name: str
    title: str
    is_share: bool = True
    is_higher_better: bool = True
    tested_as: str = ""

    def text(self, value, digits=2):
        """The value as text, in percent if it is a share."""
        return f"{value:.{digits}%}" if self.is_share else f"{value:.{digits + 2}g}"

    def quality(self, value):
        """A number that is higher for a better value."""
        return value if self.is_higher_better else -value

    def best(self, values):
        """The best of several values, or `None` if there are none."""
        return max(values, key=self.quality, default=None)


NUM_SAMPLES = 8
"""Maximum number of test images that a run writes to its folder `samples`"""


class Task(abc.ABC):
    """A task that a run can learn. Shapes: B batch, H W C image.

    Args:
        recipe: `training.recipe.config.Recipe`

    Attributes:
        metric: `Metric`. The best weights are those with its best value.
        annotation: The annotation of `training.data.samples` that the model learns to predict.
        predicted: What the names of the data set are called, in texts.
        commands: Names of the commands that accept models of this task, besides `train`.
        published_results: Names of the results that a model card contains, without `test_`.
        factory: Name of the function of `keras_vit` that puts a head on an encoder, or `None`.
        has_predictions: Whether the model predicts something that can be served, so that a run exports it.
        reads_labels: Whether the labels are an input of the learner, too.
        head_of_weights: The argument `head` of `keras_vit.from_pretrained` for published weights.
    """

    metric: Metric
    annotation: str
    predicted = "classes"
    commands: tuple[str, ...]
    published_results: tuple[str, ...] = ()
    has_predictions = True
    reads_labels = False
    head_of_weights: str | None = "reset"
    factory: str | None = None

    def __init__(self, recipe):
        self.recipe = recipe

    def load(self, disjoint=True, record=None):
        """The `training.data.dataset.Dataset` of the recipe. The arguments are those of `load_dataset`."""
        return load_dataset(self.recipe.data, self.annotation, disjoint, record)

    @abc.abstractmethod
    def read_label(self, sample, num_classes):
        """The label of an image in a batch, a tensor or a dictionary of tensors, from a decoded sample."""

    def label_text(self, annotation, class_names):
        """The annotation of a sample as text, from a NumPy array or scalar: here, the names of classes."""
        return " or ".join(class_names[index] for index in np.atleast_1d(annotation)) or "no label"

    @abc.abstractmethod
    def head_arguments(self, num_classes, with_logits):
        """Arguments of the model's factory that define its head. With `with_logits`, its outputs suit the loss."""

    def build_learner(self, model):
        """The model that learns: `model`, or a model that contains it. Its outputs are passed to loss and metric."""
        return model

    def load_weights(self, learner):  # noqa: B027
        """Loads published weights of a new learner that are not those of the model."""

    def graph(self, learner, model):
        """Inputs and outputs of the learner, as `training.engine.step.TrainedModel` takes them."""
        return model.input, model.output if learner is model else learner(model.input)

    def saved_model(self, model, learner):
        """The model that a run saves."""
        return model

    def prepare(self, model, total_steps):  # noqa: B027
        """Prepares a new model for a training of `total_steps` steps."""

    @abc.abstractmethod
    def build_objective(self, learner, dataset):
        """Builds a function that computes the loss of each image, (B,), from labels and outputs of the learner.

        If the task accepts `distillation.teacher`, the function also gets `teacher_logits`.
        """

    @abc.abstractmethod
    def build_metric(self, learner, dataset):
        """Builds the Keras metric of labels, outputs and weights of images. Its variables are sums."""

    def finish(self, model, dataset):
        """Changes a trained model before it is saved. The model then says what its outputs are called."""
        preprocessing_layer(model).label_space = list(dataset.class_names)

    @abc.abstractmethod
    def evaluate(self, model, dataset, splits):
        """Evaluates a learner on one split or several. `str()` of the result is one line of text."""

    def evaluation_text(self, evaluation):
        """Describes an evaluation in lines of text, for the command `evaluate`."""
        return str(evaluation)

    @abc.abstractmethod
    def results(self, evaluation):
        """The numbers of an evaluation for a run's `recipe.json`, with `test_{metric.name}` and `test_images`."""

    def write_samples(self, dataset, run):
        """Writes the first test images to the folder `samples` of a run. Returns the paths."""
        paths = []
        examples = itertools.islice(dataset.splits["test"].in_order().as_numpy_iterator(), NUM_SAMPLES)
        for number, example in enumerate(examples):
            paths.append(run.samples / f"{number}{image_suffix(example['image'])}")
            paths[-1].write_bytes(example["image"])
        return paths

    @abc.abstractmethod
    def report(self, run, dataset, state, evaluation, model):
        """Writes the report of a run. Returns the test results for its `recipe.json`."""

    def predict_options(self, run):
        """Options of the command `predict`, which a run calls for its sample images after the training."""
        return ()

    @abc.abstractmethod
    def next_commands(self, folder, samples):
        """Commands to try after a run, without `python -m training`. `folder` and `samples` are quoted for a shell."""


class DenseTask(Task):
    """A task whose models predict something for each pixel. Their predictions are shown as pictures.

    Attributes:
        output: Kind of the model's output, as in `keras_vit.Output`.
    """

    output: str

    def predict_options(self, run):
        return ("--to", str(run.figures / "samples"))

    def next_commands(self, folder, samples):
        return [f"predict {folder} {samples}/* --to predictions"]
