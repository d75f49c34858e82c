"""The optimizers of recipes: Keras's optimizers with layer-wise learning rates and gradients summed over replicas."""

import collections
import math
import re

import keras
import tensorflow as tf
from keras import ops

from training.engine.schedules import build_schedule, training_steps

# Patterns of a weight's path, which may start with the name of an outer model.
_BLOCK = re.compile(
    r"(?:^|/)(?:(?:encoder_block|position_embedding)_(\d+)|stage_(\d+)_(?:(?:global_)?unit_(\d+)|\w+))/"
)
_BELOW_BLOCKS = re.compile(
    r"(?:^|/)(?:stem_\w+|patch_embedding|(?:register|distillation|class)_tokens?|position_embedding|pre_norm)/"
)

_CLASSIFIER = re.compile(r"(?:^|/)(?:distillation_)?predictions/")
# Kernels whose first axis are the inputs: those of attentions have the shape (inputs, heads, width of a head). The last
# axis of all other kernels are the outputs.
_INPUTS_FIRST = re.compile(r"(?:^|/)(?:query|key|value)/")


def build_optimizer(recipe, model, steps_per_epoch):
    """Builds the optimizer of a recipe for a model's trainable weights.

    AdamW follows arXiv 1711.05101. It adds epsilon to the square root before the bias correction, as at the end of
    section 2 of arXiv 1412.6980. RMSprop follows TensorFlow 1, with epsilon inside the square root. All optimizers
    decouple weight decay from the gradients: each step decreases a kernel w by learning_rate * weight_decay * w. As
    usual in Keras, the momentum of SGD and RMSprop accumulates steps, not gradients, so a change of the learning rate
    does not rescale earlier steps. The moving average of the weights starts from the weights after the first step.

    Args:
        recipe: `training.recipe.config.Recipe`
        model: Model to train. Layers that are not trained must already be frozen.
        steps_per_epoch: Number of steps in an epoch.

    Returns:
        A built `keras.optimizers.Optimizer`. For mixed_float16 it is wrapped in a `LossScaleOptimizer`. Under a
        `tf.distribute` strategy, call this function in the strategy's scope. The optimizer sums the gradients of all
        replicas. Each replica must therefore divide the sum of its losses by the number of images of all replicas.
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
    if options.kind == "muon":
        second = {"adam_beta_2": options.square_momentum or 0.999, "epsilon": options.epsilon}
        return {"momentum": options.momentum, **second}
    if options.kind == "rmsprop":
        return {"momentum": options.momentum, "rho": options.square_momentum or 0.9, "epsilon": options.epsilon}
    return {"momentum": options.momentum}


def layer_scales(paths, layer_decay):
    """The factor of each weight's learning rate (arXiv 2106.08254, as in the code of arXiv 2111.06377).

    The layers are divided into groups:

    * Group 0 is everything before the L blocks: stem, patch embedding, tokens and position embedding.
    * Group i + 1 is block i, including the position embedding of this block if there is one. In a ResNet, each unit is
      a block. If a stage has layers outside its units, these layers are an additional block before the units.
    * Group L + 1 is the rest: the final norm, the head and any layers on top.

    The scale of group g is layer_decay^(L + 1 - g).

    Args:
        paths: Paths of a model's weights, such as `encoder_block_0/attention/query/kernel`. The paths of frozen layers
            may be omitted if the paths of all earlier layers are omitted too.
        layer_decay: Learning rate of a group divided by that of the next group.

    Returns:
        List with the scale of each path.
    """
    matches = [_BLOCK.search(path) for path in paths]
    blocks = [match and tuple(int(number) for number in match.groups() if number) for match in matches]
    # Blocks are numbered from the lowest trained block, because scales depend only on the distance to the top.
    order = {block: group for group, block in enumerate(sorted({block for block in blocks if block}), start=1)}
    top = 1 + len(order)
    groups = [
        order[block] if block else 0 if _BELOW_BLOCKS.search(path) else top
        for path, block in zip(paths, blocks, strict=True)
    ]
    return [layer_decay ** (top - group) for group in groups]


def sum_over_replicas(tensors):
    """Sums tensors over the replicas of a `tf.distribute` strategy, if there is one."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tensors
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)


class _Update(keras.optimizers.Optimizer):
    """Mixin that adds layer-wise learning rates to an optimizer of Keras, and applies weight decay to kernels only.

    Under `tf.distribute`, Keras 3.15 clips the gradients of each replica before it sums them, so a step differs from
    the step on one device. This class sums before it clips. https://github.com/tensorflow/tensorflow/issues/33929
    describes the problem for Keras 2. No report of it for Keras 3 is known.

    Args:
        learning_rate: Number or schedule.
        layer_decay: As in `layer_scales`.
        **options: Options of Keras's optimizer.
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
        """Does nothing, because `update_step` applies the decay with the layer's learning rate."""

    def _clip_gradients(self, grads):
        return super()._clip_gradients(sum_over_replicas(grads))

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return grads_and_vars  # `_clip_gradients` has already summed the gradients.

    @property
    def averages(self):
        """The moving averages of the weights, a list of Keras variables. Without `use_ema` it is empty."""
        return self._model_variables_moving_average if self.use_ema else []

    def finalize_variable_values(self, var_list):
        """Does nothing. Keras would replace the weights by their averages after `fit`, but the run may continue."""

    def get_config(self):
        return super().get_config() | {"layer_decay": self.layer_decay}


@keras.saving.register_keras_serializable(package="training")
class AdamW(_Update, keras.optimizers.AdamW):
    """Keras's AdamW with the changes of `_Update`."""


@keras.saving.register_keras_serializable(package="training")
class SGD(_Update, keras.optimizers.SGD):
    """Keras's SGD with the changes of `_Update`."""


@keras.saving.register_keras_serializable(package="training")
class RMSprop(_Update, keras.optimizers.RMSprop):
    """Keras's RMSprop with the changes of `_Update`."""


@keras.saving.register_keras_serializable(package="training")
class Muon(_Update, keras.optimizers.Muon):
    """Keras's Muon with the changes of `_Update`, and for kernels of any rank.

    Muon (https://kellerjordan.github.io/posts/muon) makes the momentum of each kernel orthogonal. Steps are scaled as
    in arXiv 2502.16982, eq. 4, so that learning rates and weight decays of AdamW can be used. The stem, the
    patch embedding, the classifier, and all weights that are not kernels are trained with AdamW, with a beta 1 of 0.9.

    Keras's Muon leaves kernels of attentions and convolutions to AdamW, because they are not matrices. Here they are
    reshaped to matrices with a row for each input and a column for each output. All matrices of the same shape are made
    orthogonal together, which takes less time than one after another.
    """

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._nums_outputs = [
            math.prod(variable.shape[1:] if _INPUTS_FIRST.search(variable.path) else variable.shape[-1:])
            for variable in variables
        ]

    def _should_use_adamw(self, variable):
        return variable.name != "kernel" or bool(
            _BELOW_BLOCKS.search(variable.path) or _CLASSIFIER.search(variable.path)
        )

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        matrices = collections.defaultdict(dict)
        self._new_momentums, self._orthogonal = {}, {}
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            index = self._get_variable_index(variable)
            if self.adam_velocities[index] is None:
                momentum = self.momentums[index] * self.momentum + gradient
                matrix = ops.reshape(gradient + momentum * self.momentum, (-1, self._nums_outputs[index]))
                matrices[tuple(matrix.shape)][index] = matrix
                self._new_momentums[index] = momentum
        for group in matrices.values():
            orthogonal = self.zeropower_via_newtonschulz5(ops.stack(list(group.values())), self.ns_steps)
            self._orthogonal |= dict(zip(group, ops.unstack(orthogonal, len(group)), strict=True))
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        self._new_momentums, self._orthogonal = {}, {}  # Tensors of a graph must not outlive it.

    def _muon_update_step(self, gradient, variable, lr, m):
        index = self._get_variable_index(variable)
        self.assign(m, self._new_momentums[index])
        step = self.lr_adjust(self._orthogonal[index] * lr)
        self.assign_sub(variable, ops.reshape(step, variable.shape))


_KINDS = {"adamw": AdamW, "sgd": SGD, "rmsprop": RMSprop, "muon": Muon}


@keras.saving.register_keras_serializable(package="training")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras's loss scaling for several replicas. A step is skipped if the gradients of any replica overflow.

    Keras 3.15 checks only the gradients of the first replica, before the gradients of all replicas are summed. Without
    this class, an overflow in another replica would reach the weights.
    """

    def build(self, variables):
        if not self.built:  # Without this check, Keras would create all variables twice.
            super().build(variables)

    @property
    def averages(self):
        """The moving averages of the inner optimizer."""
        return self.inner_optimizer.averages

    def check_finite(self, grads):
        overflowed = ops.logical_not(super().check_finite(grads))
        [num_overflowed] = sum_over_replicas([ops.cast(overflowed, "float32")])
        return ops.equal(num_overflowed, 0)
