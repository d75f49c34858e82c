"""The schedule of the learning rate: a linear warm-up, then one of Keras's decays."""

import re
from decimal import ROUND_HALF_UP, Decimal

import keras
from keras import ops

from training.errors import InputError

_MOST_STEPS = 2**31 - 1  # JAX counts steps in 32 bits.


def training_steps(recipe, steps_per_epoch):
    """The number of steps of a whole run. Raises an InputError if it is too large for a 32-bit counter."""
    steps = recipe.fit.steps or recipe.fit.epochs * int(steps_per_epoch)
    return _checked(steps, "The whole run")


def num_steps(duration, steps_per_epoch, total_steps):
    """Converts a duration to steps, rounded to the nearest integer. Halves are rounded up.

    Args:
        duration: `training.recipe.config.Duration`, such as `"5%"` of all steps, `"10000 steps"` or `"2.5 epochs"`.
        steps_per_epoch: Number of steps in an epoch.
        total_steps: Number of steps in the whole run.

    Returns:
        The number of steps, an integer.

    Raises:
        InputError: If the number of steps is too large for a 32-bit counter.
    """
    [(amount, unit)] = re.findall(r"^([\d.]+) ?(%|step|epoch)s?$", duration)
    # `Decimal` is exact. As a float, 2.8 % of 125 steps would be slightly less than 3.5, and would be rounded to 3.
    unit_steps = {"%": Decimal(int(total_steps)) / 100, "step": Decimal(1), "epoch": Decimal(int(steps_per_epoch))}
    steps = int((Decimal(amount) * unit_steps[unit]).to_integral_value(ROUND_HALF_UP))
    return _checked(steps, f"A duration of {duration}")


def _checked(steps, what):
    if steps > _MOST_STEPS:
        raise InputError(f"{what} is {steps:,} steps. At most {_MOST_STEPS:,} steps can be counted. Choose fewer.")
    return steps


def build_schedule(recipe, steps_per_epoch, total_steps):
    """Builds the learning rate schedule of a recipe.

    t is the step, w the number of warm-up steps, and T the total number of steps. p = min((t - w) / (T - w), 1). peak
    is `optimizer.learning_rate`. start, end, rate and every are fields of `schedule`. The learning rate at step t is

    * during the warm-up: start + (peak - start) * t / w
    * cosine: end + (peak - end) * (1 + cos(pi * p)) / 2
    * linear: end + (peak - end) * (1 - p)
    * exponential: peak * rate ** floor((t - w) / every)
    * constant: peak

    The warm-up and the linear decay follow `google-research/vision_transformer`, where the decay ends at 1e-5.

    Args:
        recipe: `training.recipe.config.Recipe`
        steps_per_epoch: Number of steps in an epoch.
        total_steps: Number of steps in the whole run.

    Returns:
        A serialisable `keras.optimizers.schedules.LearningRateSchedule`.

    Raises:
        InputError: If the warm-up leaves no step for the decay, if `schedule.start` is set without a warm-up, or if
            `schedule.every` is less than half a step.
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
            f"schedule.start={schedule.start} is used only with a warm-up, and schedule.warmup={schedule.warmup} is "
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
    """A linear increase to the initial learning rate of another schedule, followed by that schedule.

    Keras itself supports a warm-up only in its cosine decay.

    Args:
        decay: `LearningRateSchedule` after the warm-up.
        warmup_steps: Number of steps of the warm-up, at least 1.
        start: Learning rate at step 0.
    """

    def __init__(self, decay, warmup_steps, start=0.0):
        self.decay, self.warmup_steps, self.start = decay, warmup_steps, start

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
