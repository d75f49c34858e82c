"""Losses: cross-entropy with the labels, and with a teacher's predictions."""

import keras
from keras import ops


def build_loss(recipe):
    """Builds the loss of a recipe, with one value per image.

    Args:
        recipe: `training.recipe.config.Recipe`

    Returns:
        A `keras.losses.Loss` from labels and logits, both (B, classes), to (B,), computed in float32. Labels are
        probabilities, so that mixed images can have mixed labels.
    """
    if recipe.fit.loss == "sigmoid":
        return SigmoidCrossEntropy(recipe.fit.label_smoothing)
    return keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=recipe.fit.label_smoothing, reduction=None, dtype="float32"
    )


@keras.saving.register_keras_serializable(package="training")
class SigmoidCrossEntropy(keras.losses.Loss):
    """Binary cross-entropy with one sigmoid per class, summed: (B, classes), (B, classes) to (B,).

    As `sigmoid_xent` of `google-research/big_vision`. Keras's `BinaryCrossentropy` averages over the classes, and
    smooths labels towards 1/2.

    Args:
        label_smoothing: Fraction of the labels' probability that is spread evenly over all classes.
    """

    def __init__(self, label_smoothing=0.0, reduction=None, name="sigmoid_cross_entropy"):
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        labels = (1 - self.label_smoothing) * y_true + self.label_smoothing / y_true.shape[-1]
        return ops.sum(ops.binary_crossentropy(labels, y_pred, from_logits=True), axis=-1)

    def get_config(self):
        return super().get_config() | {"label_smoothing": self.label_smoothing}


def distillation_loss(logits, teacher_logits, temperature):
    """Cross-entropy with a teacher's softened probabilities (arXiv 1503.02531), times the temperature's square.

    -T^2 sum(softmax(teacher / T) log softmax(student / T)). The factor T^2 keeps the size of the gradients when T
    changes (section 2 of the paper). The loss is T^2 times the sum of the Kullback-Leibler divergence and the teacher's
    entropy, which is constant.

    Args:
        logits: Logits of the student, (B, classes).
        teacher_logits: Logits of the teacher, (B, classes).
        temperature: Divisor T of both logits.

    Returns:
        (B,), in float32.
    """
    log_probabilities = ops.log_softmax(ops.cast(logits, "float32") / temperature)
    targets = ops.softmax(ops.cast(teacher_logits, "float32") / temperature)
    return -(temperature**2) * ops.sum(targets * log_probabilities, axis=-1)


class Objective:
    """The loss of each image: that of the labels, or its weighted mean with the distillation loss.

    Args:
        recipe: `training.recipe.config.Recipe`
    """

    def __init__(self, recipe):
        self.loss = build_loss(recipe)
        self.distillation = recipe.distillation

    @property
    def has_teacher(self):
        """Whether `teacher_logits` are needed."""
        return self.distillation.teacher is not None

    def __call__(self, labels, logits, teacher_logits=None):
        """The loss of each image, float32 (B,), of labels and logits, all (B, classes)."""
        if self.has_teacher != (teacher_logits is not None):
            raise ValueError(
                f"teacher_logits must be given if and only if distillation.teacher is set. Received: "
                f"distillation.teacher={self.distillation.teacher!r}, teacher_logits={teacher_logits!r}"
            )
        loss = self.loss(labels, logits)
        if not self.has_teacher:
            return loss
        teacher_loss = distillation_loss(logits, teacher_logits, self.distillation.temperature)
        return self.distillation.weight * teacher_loss + (1 - self.distillation.weight) * loss
