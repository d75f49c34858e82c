"""The learning rate over the steps of a run: a linear warm-up, then one of Keras's decays."""

import decimal
import re

import keras
from keras import ops

from training.errors import InputError

_MOST_STEPS = 2**31 - 1  # JAX counts in 32 bits.


def training_steps(recipe, steps_per_epoch):
    """How often the weights are changed in a whole run. Raises an InputError if that is too often to be counted."""
    steps = recipe.fit.steps or recipe.fit.epochs * int(steps_per_epoch)
    return _checked(steps, "The whole run")


def num_steps(duration, steps_per_epoch, total_steps):
    """A duration in steps, rounded to the nearest; a half is rounded up.

    Args:
        duration: `training.recipe.config.Duration`, such as `"5%"` of all steps, `"10000 steps"` or `"2.5 epochs"`.
        steps_per_epoch: Steps in an epoch.
        total_steps: Steps in the whole run.

    Returns:
        An integer.

    Raises:
        InputError: If there are too many to be counted.
    """
    amount, unit = re.fullmatch(r"([\d.]+) ?(%|step|epoch)s?", duration).groups()
    # Decimal: in binary fractions 2.8 % of 125 steps are less than three and a half.
    of_one = {"%": decimal.Decimal(int(total_steps)) / 100, "step": 1, "epoch": int(steps_per_epoch)}[unit]
    steps = int((decimal.Decimal(amount) * of_one).to_integral_value(decimal.ROUND_HALF_UP))
    return _checked(steps, f"A duration of {duration}")


def _checked(steps, what):
    if steps > _MOST_STEPS:
        raise InputError(f"{what} is {steps:,} steps. At most {_MOST_STEPS:,} can be counted; choose fewer.")
    return steps


def build_schedule(recipe, steps_per_epoch, total_steps):
    """The learning rate of every step.

    With w steps of warm-up, T steps in all and p = (t - w) / (T - w), not above 1, the learning rate at step t is

    * during the warm-up: start + (peak - start) t / w
    * cosine: end + (peak - end) (1 + cos(pi p)) / 2
    * linear: end + (peak - end) (1 - p)
    * exponential: peak rate^floor((t - w) / every)
    * constant: peak

    The first and third are those of `google-research/vision_transformer`, whose linear decay ends at 1e-5.

    Args:
        recipe: `training.recipe.config.Recipe`
        steps_per_epoch: Steps in an epoch.
        total_steps: Steps in the whole run.

    Returns:
        A `keras.optimizers.schedules.LearningRateSchedule`. It can be serialised.

    Raises:
        InputError: If the warm-up leaves no step to the decay, if there is a `schedule.start` but no warm-up, or if the
            learning rate would change more often than once a step.
    """
    schedule = recipe.schedule
    warmup = num_steps(schedule.warmup, steps_per_epoch, total_steps)
    if warmup >= total_steps:
        raise InputError(
            f"schedule.warmup={schedule.warmup} is {warmup:,} steps, and the whole run has {total_steps:,}. Shorten "
            f"the warm-up, or lengthen the run with fit.epochs or fit.steps."
        )
    decay = _decay(recipe, steps_per_epoch, total_steps, warmup)
    if warmup:
        return WarmUp(decay, warmup, schedule.start)
    if schedule.start:
        raise InputError(
            f"schedule.start={schedule.start} is read with a warm-up only, and schedule.warmup={schedule.warmup} is "
            f"less than half a step. Set schedule.start=0, or lengthen the warm-up."
        )
    return decay


def _decay(recipe, steps_per_epoch, total_steps, warmup):
    schedule, peak, steps = recipe.schedule, recipe.optimizer.learning_rate, total_steps - warmup
    if schedule.decay == "cosine":
        return keras.optimizers.schedules.CosineDecay(peak, steps, alpha=schedule.end / peak)
    if schedule.decay == "exponential":
        every = num_steps(schedule.every, steps_per_epoch, total_steps)
        if not every:
            raise InputError(f"schedule.every={schedule.every} is less than half a step. Set it to 1 step or more.")
        return keras.optimizers.schedules.ExponentialDecay(peak, every, schedule.rate, staircase=True)
    end = schedule.end if schedule.decay == "linear" else peak
    return keras.optimizers.schedules.PolynomialDecay(peak, steps, end_learning_rate=end)


@keras.saving.register_keras_serializable(package="training")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that grows linearly to the first of another schedule, which then begins.

    Keras's own warm-up belongs to its cosine decay alone.

    Args:
        decay: The `LearningRateSchedule` that follows.
        warmup_steps: Steps until it begins, at least 1.
        start: Learning rate at step 0.
    """

    def __init__(self, decay, warmup_steps, start=0.0):
        self.decay = decay
        self.warmup_steps = warmup_steps
        self.start = start

    def __call__(self, step):
        step = ops.cast(step, "float32")
        peak = self.decay(0)
        warming = self.start + (peak - self.start) * step / self.warmup_steps
        decaying = self.decay(ops.maximum(step - self.warmup_steps, 0.0))
        return ops.where(step < self.warmup_steps, warming, decaying)

    def get_config(self):
        decay = keras.saving.serialize_keras_object(self.decay)
        return {"decay": decay, "warmup_steps": self.warmup_steps, "start": self.start}

    @classmethod
    def from_config(cls, config):
        return cls(**config | {"decay": keras.saving.deserialize_keras_object(config["decay"])})
