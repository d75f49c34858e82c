"""The training step. Its results do not depend on the number of devices. Shapes: B batch, k chunks of a batch."""

import keras
import tensorflow as tf
from keras import ops

from training.engine.optimizers import sum_over_replicas

if keras.backend.backend() == "jax":
    import jax


class _Model(keras.Model):
    """Base class for the models of both backends."""

    def __init__(self, inputs, outputs, objective, accumulation_steps=1, teacher=None, metric=None, reads_labels=False):
        super().__init__(inputs=inputs, outputs=outputs)
        self.objective = objective
        self.accumulation_steps, self.reads_labels = accumulation_steps, reads_labels
        # Keras tracks `teacher` as a layer. Its weights are therefore part of the state on JAX, not constants in the
        # compiled step.
        self.teacher = teacher
        if teacher is not None:
            teacher.trainable = False
        self.loss_metric = keras.metrics.Mean(name="loss")
        self.quality_metric = metric or keras.metrics.CategoricalAccuracy(name="accuracy")

    @property
    def metrics(self):
        # Keras's own metric "loss" is omitted, because it averages over batches and ignores the weights of images.
        return [self.loss_metric, self.quality_metric]

    def _weighted_loss(self, images, labels, weights, *, training):
        """The sum of the images' losses, each multiplied by the image's weight. Also updates the metrics."""
        logits = self([images, labels] if self.reads_labels else images, training=training)
        if self.reads_labels:
            losses = self.objective(labels, logits, weights=weights)
        elif self.teacher is None:
            losses = self.objective(labels, logits)
        else:
            teacher_logits = ops.stop_gradient(self.teacher(images, training=False))
            losses = self.objective(labels, logits, teacher_logits=teacher_logits)
        self.loss_metric.update_state(losses, sample_weight=weights)
        self.quality_metric.update_state(labels, logits, sample_weight=weights)
        return ops.sum(weights * losses)


class _TensorFlowModel(_Model):
    def train_step(self, data):
        with _after(data):
            # Every replica divides its loss by the total weight of the whole batch, so that gradients can be summed.
            total = sum_over_replicas(tf.reduce_sum(data[2]))
            self.optimizer.apply(self._accumulate(data, total), self.trainable_variables)
            return self._logs()

    def test_step(self, data):
        with _after(data):
            self._weighted_loss(*data, training=False)
            return self._logs()

    def _accumulate(self, data, total):
        k = self.accumulation_steps
        if k == 1:
            return self._gradients(data, total)
        chunks = tf.nest.map_structure(lambda values: tf.reshape(values, (k, -1, *values.shape[1:])), data)

        def add(i, sums):
            gradients = self._gradients(tf.nest.map_structure(lambda values: values[i], chunks), total)
            return i + 1, [sum_ + gradient for sum_, gradient in zip(sums, gradients, strict=True)]

        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in self.trainable_variables]
        # The chunks are computed one after the other. Computed in parallel, they would save no memory.
        return tf.while_loop(lambda i, _: i < k, add, (0, zeros), parallel_iterations=1)[1]

    def _gradients(self, data, total):
        with tf.GradientTape() as tape:
            loss = self.optimizer.scale_loss(self._weighted_loss(*data, training=True) / total)
        # Variables that do not affect the loss get gradients of zero, because `None` could not be summed.
        return tape.gradient(loss, self.trainable_variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def _logs(self):
        """The metrics over all replicas. The variables of each replica count only the images of this replica."""
        # The values are copied, because only tensors on the replica's device can be summed over replicas.
        totals = sum_over_replicas([tf.identity(variable.value) for variable in self.metrics_variables])
        with _values(self.metrics_variables, totals):
            logs = self.get_metrics_result()
        if isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Keras takes the mean over an axis that scalars do not have (keras-team/keras issue 20585). Once Keras has
            # fixed this issue, a test fails and these lines can be removed.
            return {name: tf.reshape(value, (1,)) for name, value in logs.items()}
        return logs

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Keras's method builds the model and the optimizer from a batch. This fails under
        # MultiWorkerMirroredStrategy (see the issue above). The model is already built, so only the optimizer is built.
        if self.optimizer is not None and not self.optimizer.built:
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)


def _after(data):
    """Returns a context manager. Operations created in it run only after a batch has been read.

    TensorFlow starts the step once more after the last batch. Some operations need no batch, such as weight decay and
    the update of seeds. Without this context, some replicas would run them in this extra step, and others would not.
    """
    return tf.control_dependencies(tf.nest.flatten(data))


class _JaxModel(_Model):
    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        # The arrays contain the whole batch, distributed over all devices and processes.
        total = ops.sum(data[2])
        changing = [*non_trainable, *metrics]
        gradients, changing = self._accumulate(trainable, changing, optimizer, data, total)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        non_trainable, metrics = self._separate(changing)
        return self._logs(metrics), (trainable, non_trainable, optimizer, metrics)

    def test_step(self, state, data):
        trainable, non_trainable, metrics = state
        variables = [*self.trainable_variables, *self._changing_variables]
        with _values(variables, [*trainable, *non_trainable, *metrics]) as scope:
            self._weighted_loss(*data, training=False)
        non_trainable, metrics = self._separate(map(scope.get_current_value, self._changing_variables))
        return self._logs(metrics), (trainable, non_trainable, metrics)

    def _accumulate(self, trainable, changing, optimizer, data, total):
        """The gradients of a batch, and the new values of `changing`."""
        k = self.accumulation_steps
        gradients_of = jax.grad(self._scaled_loss, has_aux=True)
        if k == 1:
            return gradients_of(trainable, changing, optimizer, data, total)

        def add(carry, chunk):
            sums, changing = carry
            gradients, changing = gradients_of(trainable, changing, optimizer, chunk, total)
            return (jax.tree.map(ops.add, sums, gradients), changing), None

        # A chunk consists of every k-th image, so that each device has an equal share of each chunk.
        chunks = jax.tree.map(lambda values: ops.moveaxis(ops.reshape(values, (-1, k, *values.shape[1:])), 1, 0), data)
        zeros = jax.tree.map(ops.zeros_like, trainable)
        return jax.lax.scan(add, (zeros, changing), chunks)[0]

    def _scaled_loss(self, trainable, changing, optimizer, data, total):
        variables = [*self.trainable_variables, *self._changing_variables, *self.optimizer.variables]
        with _values(variables, [*trainable, *changing, *optimizer]) as scope:
            loss = self.optimizer.scale_loss(self._weighted_loss(*data, training=True) / total)
        return loss, [scope.get_current_value(variable) for variable in self._changing_variables]

    @property
    def _changing_variables(self):
        return [*self.non_trainable_variables, *self.metrics_variables]

    def _separate(self, changing):
        changing = list(changing)
        count = len(self.non_trainable_variables)
        return changing[:count], changing[count:]

    def _logs(self, metrics):
        with _values(self.metrics_variables, metrics):
            return self.get_metrics_result()


def _values(variables, values):
    """Returns a context manager in which Keras variables have the given values."""
    return keras.StatelessScope(state_mapping=zip(variables, values, strict=True))


class TrainedModel(_JaxModel if keras.backend.backend() == "jax" else _TensorFlowModel):  # type: ignore[misc]
    """A model with logits as outputs that defines the steps of `fit` and `evaluate`.

    A batch is a tuple of inputs, labels, and weights (B,). Inputs and labels are tensors (B, ...), or lists or
    dictionaries of such tensors, as the model and the objective take them. Padding has weight 0. The loss is
    `sum(weights * losses) / sum(weights)` over the whole batch. It does not depend on the division of the batch among
    devices, processes and chunks. The metrics are
    `loss` and `metric`. Both are computed over the whole epoch, with the same weights of the images. Their state is in
    `metrics_variables`. On TensorFlow, each replica passes its share of the gradients to the optimizer, which sums the
    gradients over replicas.

    This model shares layers and variables with the model of `inputs` and `outputs`. Save that model, not this one.

    Args:
        inputs: Input of a model, a Keras tensor, or a list or dictionary of Keras tensors.
        outputs: Output of that model, in the same way.
        objective: Function `(labels, outputs)`, or with a teacher `(labels, outputs, teacher_logits=...)`, that returns
            the loss of each image, (B,).
        accumulation_steps: Number k of chunks into which a batch, or a replica's share of it, is divided. Chunks are
            computed one after the other. k must divide the number of images. Each chunk has its own batch statistics.
        teacher: `keras.Model` that converts the same images to logits (B, classes). It is frozen, and runs in inference
            mode. `None`: no teacher.
        metric: `keras.metrics.Metric` of labels, outputs and sample weights. Its variables must be sums. `None`:
            `accuracy`, for labels (B, classes).
        reads_labels: Whether the labels are a second input of the model, as the texts of images are. The objective then
            gets `weights` as well, because the loss of an image depends on the other ones.
    """
