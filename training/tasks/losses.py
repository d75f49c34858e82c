"""Losses: cross-entropy with the labels, and with a teacher's predictions."""

import keras
from keras import ops


def build_loss(recipe):
    """Builds the loss of a recipe.

    Args:
        recipe: `training.recipe.config.Recipe`

    Returns:
        A `keras.losses.Loss` of labels and logits, both (B, classes), that returns the float32 loss of each image,
        (B,). Labels are probabilities, because mixed images have mixed labels.
    """
    if recipe.fit.loss == "sigmoid":
        return SigmoidCrossEntropy(recipe.fit.label_smoothing)
    return keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=recipe.fit.label_smoothing, reduction=None, dtype="float32"
    )


@keras.saving.register_keras_serializable(package="training")
class SigmoidCrossEntropy(keras.losses.Loss):
    """Binary cross-entropy with one sigmoid per class, summed over the classes. Maps two tensors (B, classes) to (B,).

    Same as `sigmoid_xent` in `google-research/big_vision`. Keras's `BinaryCrossentropy` averages over the classes
    instead, and smooths labels towards 1/2.

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

    The loss is -T^2 sum(softmax(teacher / T) log softmax(student / T)), that is, T^2 times the sum of the
    Kullback-Leibler divergence and the teacher's entropy. The entropy is constant. Because of the factor T^2, the size
    of the gradients hardly depends on T (section 2 of the paper).

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
    """The loss of each image. With a teacher, it is the weighted mean of the label loss and the distillation loss.

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
        """Returns the loss of each image, float32 (B,). All arguments have the shape (B, classes)."""
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
