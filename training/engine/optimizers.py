"""The optimizer that a recipe describes: one of Keras's, and what Keras leaves to be done."""

import re

import keras
import tensorflow as tf
from keras import ops

from training.engine.schedules import build_schedule, training_steps

# Of a weight's path. A model that contains a Vision Transformer may put its own name in front.
_BLOCK = re.compile(
    r"(?:^|/)(?:(?:encoder_block|position_embedding)_(\d+)|stage_(\d+)_(?:(?:global_)?unit_(\d+)|\w+))/"
)
_BELOW_BLOCKS = re.compile(
    r"(?:^|/)(?:stem_\w+|patch_embedding|(?:register|distillation|class)_tokens?|position_embedding|pre_norm)/"
)


def build_optimizer(recipe, model, steps_per_epoch):
    """The optimizer of a recipe, built for a model's trainable weights.

    AdamW is that of arXiv 1711.05101; epsilon is added to the root before its bias is corrected, as at the end of
    section 2 of arXiv 1412.6980. RMSProp is that of TensorFlow 1, with epsilon inside the root. Weight decay is
    decoupled from the gradients in all of them: a kernel w loses learning_rate * weight_decay * w a step. Momentum of
    SGD and RMSProp adds up steps, not gradients, as everywhere in Keras: when the learning rate changes, the steps that
    were taken keep their size. The moving average of the weights begins with those after the first step.

    Args:
        recipe: `training.recipe.config.Recipe`
        model: The model that will be trained, with the layers frozen that are to be.
        steps_per_epoch: Steps in an epoch.

    Returns:
        A `keras.optimizers.Optimizer` that is built, inside a `LossScaleOptimizer` for mixed_float16. Under a
        `tf.distribute` strategy, call this in its scope; the sum over the replicas of what each gives to it must be the
        gradient.
    """
    options = recipe.optimizer
    optimizer = _KINDS[options.kind](
        learning_rate=build_schedule(recipe, steps_per_epoch, training_steps(recipe, steps_per_epoch)),
        layer_decay=options.layer_decay,
        weight_decay=options.weight_decay,
        global_clipnorm=options.clip_norm,
        use_ema=options.ema > 0,
        ema_momentum=options.ema,
        **_moments(options),
    )
    if recipe.fit.precision == "mixed_float16":
        optimizer = LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    return optimizer


def _moments(options):
    if options.kind == "adamw":
        return {"beta_1": options.momentum, "beta_2": options.square_momentum or 0.999, "epsilon": options.epsilon}
    if options.kind == "rmsprop":
        return {"momentum": options.momentum, "rho": options.square_momentum or 0.9, "epsilon": options.epsilon}
    return {"momentum": options.momentum}


def layer_scales(paths, layer_decay):
    """What each weight's learning rate is multiplied by (arXiv 2106.08254, as in the code of arXiv 2111.06377).

    Group 0 is all before the blocks: stem, patches, tokens, positions; group i + 1 is block i, with positions of its
    own if it has any, of a ResNet unit i of all stages, before which comes what else its stage has; the rest, which is
    the final norm and the head, and whatever has been put on top of them, is group L + 1. The scale of group g is
    layer_decay^(L + 1 - g).

    Args:
        paths: Paths of a model's weights, such as `encoder_block_0/attention/query/kernel`. Those of frozen layers may
            be missing, if all below them are.
        layer_decay: Learning rate of a group, as a multiple of that of the group above.

    Returns:
        A scale for each path.
    """
    found = [_BLOCK.search(path) for path in paths]
    blocks = [block and tuple(int(number) for number in block.groups() if number) for block in found]
    # Counted from the lowest that trains: scales are counted from the top.
    order = {block: group for group, block in enumerate(sorted({block for block in blocks if block}), start=1)}
    top = 1 + len(order)
    groups = [
        order[block] if block else 0 if _BELOW_BLOCKS.search(path) else top
        for path, block in zip(paths, blocks, strict=True)
    ]
    return [layer_decay ** (top - group) for group in groups]


def _sum_over_replicas(tensors):
    """The sums over the replicas of a `tf.distribute` strategy, where there is one."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tensors
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)


class _Update:
    """Goes before one of Keras's optimizers: learning rates by layer, decay of kernels only, clipping of the sum.

    Under `tf.distribute`, Keras 3.15 clips the gradients of each replica, and adds them up afterwards: another step
    than on one device. Here they are added up first, and only once. https://github.com/tensorflow/tensorflow/issues/33929
    says so of Keras 2; of Keras 3 no thread was found.

    Args:
        learning_rate: Number or schedule.
        layer_decay: Of `layer_scales`.
        **options: Of Keras's optimizer.
    """

    def __init__(self, learning_rate, layer_decay=1.0, **options):
        super().__init__(learning_rate, **options)
        self.layer_decay = layer_decay

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._layer_scales = layer_scales([variable.path for variable in variables], self.layer_decay)
        self._are_kernels = [variable.name == "kernel" for variable in variables]

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        learning_rate = ops.cast(learning_rate, variable.dtype) * self._layer_scales[index]
        if self.weight_decay and self._are_kernels[index]:
            self.assign_sub(variable, variable * (learning_rate * self.weight_decay))
        super().update_step(gradient, variable, learning_rate)

    def _apply_weight_decay(self, variables):
        """Nothing: `update_step` does it, which knows the layer's learning rate."""

    def _clip_gradients(self, grads):
        return super()._clip_gradients(_sum_over_replicas(grads))

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return grads_and_vars  # They are sums already.

    @property
    def averages(self):
        """The moving averages of the weights, as Keras variables; none if none are kept."""
        return self._model_variables_moving_average if self.use_ema else []

    def finalize_variable_values(self, var_list):
        """Nothing: Keras would put the averages in the weights' place at the end of `fit`, and the run may go on."""

    def get_config(self):
        return super().get_config() | {"layer_decay": self.layer_decay}


@keras.saving.register_keras_serializable(package="training")
class AdamW(_Update, keras.optimizers.AdamW):
    """Keras's, with the changes of `_Update`."""


@keras.saving.register_keras_serializable(package="training")
class SGD(_Update, keras.optimizers.SGD):
    """Keras's, with the changes of `_Update`."""


@keras.saving.register_keras_serializable(package="training")
class RMSprop(_Update, keras.optimizers.RMSprop):
    """Keras's, with the changes of `_Update`."""


_KINDS = {"adamw": AdamW, "sgd": SGD, "rmsprop": RMSprop}


@keras.saving.register_keras_serializable(package="training")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras's, which skips a step whose gradients overflowed, for gradients that differ between replicas.

    Keras 3.15 asks the first replica alone whether its gradients are finite. They are not summed yet, so that what
    overflowed in another would get into the weights.
    """

    def build(self, variables):
        if not self.built:  # Keras's other optimizers ask; this one would have all of its variables twice.
            super().build(variables)

    @property
    def averages(self):
        """As of the optimizer inside."""
        return self.inner_optimizer.averages

    def check_finite(self, grads):
        overflowed = ops.logical_not(super().check_finite(grads))
        [num_overflowed] = _sum_over_replicas([ops.cast(overflowed, "float32")])
        return ops.equal(num_overflowed, 0)
