"""Learning rates equal their closed forms and the numbers of published recipes."""

import json

import keras
import numpy as np
import pytest

from tests.test_case import assert_close, to_numpy
from training import recipes
from training.engine.schedules import build_schedule, num_steps, training_steps
from training.errors import InputError
from training.recipe.assignments import override

EPOCH = 11  # Number of steps.
TOTAL = 9 * EPOCH + 4


def make_recipe(*assignments):
    return override(recipes.load("digits"), ["fit.epochs=none", f"fit.steps={TOTAL}", *assignments])


def test_durations_are_rounded_to_steps():
    for duration, expected in (
        ("5%", 25),
        ("0.1%", 1),  # Half a step.
        ("0.7%", 4),  # 3.5 steps in decimal arithmetic.
        ("0.09%", 0),
        ("100%", 500),
        ("1 step", 1),
        ("10000 steps", 10_000),
        ("0 steps", 0),
        ("1 epoch", 7),
        ("2.5 epochs", 18),
        ("2.45 epochs", 17),
    ):
        assert num_steps(duration, steps_per_epoch=np.int64(7), total_steps=500) == expected


def test_a_run_is_epochs_or_steps_long():
    assert training_steps(make_recipe(), EPOCH) == TOTAL
    assert training_steps(make_recipe("fit.steps=none", "fit.epochs=6"), np.int64(EPOCH)) == 66


DECAYS = {
    "cosine": (["schedule.end=0.02"], lambda p, since: 0.02 + 0.28 / 2 * (1 + np.cos(np.pi * p))),
    "linear": (["schedule.end=1e-5"], lambda p, since: 1e-5 + (0.3 - 1e-5) * (1 - p)),
    "exponential": (["schedule.rate=0.7", "schedule.every=0.5 epochs"], lambda p, since: 0.3 * 0.7 ** (since // 6)),
    "constant": ([], lambda p, since: 0.3 + 0 * p),
}


@pytest.mark.parametrize(("decay", "options", "closed_form"), [(name, *case) for name, case in DECAYS.items()])
@pytest.mark.parametrize(("warmup", "start"), [(0, 0.0), (20, 0.0), (7, 0.05)])
def test_every_decay_equals_its_closed_form(decay, options, closed_form, warmup, start):
    recipe = make_recipe(
        "optimizer.learning_rate=0.3",
        f"schedule.decay={decay}",
        f"schedule.warmup={warmup} steps",
        f"schedule.start={start}",
        *options,
    )
    schedule = build_schedule(recipe, EPOCH, TOTAL)
    steps = np.array([0, warmup // 2, warmup - 1, warmup, warmup + 6, TOTAL // 2, TOTAL - 1, TOTAL, TOTAL + 50])
    steps = steps[steps >= 0]
    since = np.maximum(steps - warmup, 0)
    warming = start + (0.3 - start) * steps / max(warmup, 1)
    decayed = closed_form(np.clip(since / (TOTAL - warmup), 0, 1), since)
    expected = np.where(steps < warmup, warming, decayed)
    assert_close([to_numpy(schedule(int(step))) for step in steps], expected, 1e-6)
    copy = keras.saving.deserialize_keras_object(json.loads(json.dumps(keras.saving.serialize_keras_object(schedule))))
    assert_close([to_numpy(copy(int(step))) for step in steps], expected, 1e-6)


def test_recipes_by_epochs():
    for name, epochs, expected in (
        # arXiv 2006.03677, section 5.2 (Table 8): 0.01 to 0.16 in 5 epochs, then a factor of 0.9875 per epoch.
        ("pretrain_imagenet_vt_r18_advanced", (0, 5, 6, 400), (0.01, 0.16, 0.158, 0.16 * 0.9875**395)),
        # Tables 2 to 7: a factor of 0.1 every 30 of 90 epochs.
        ("pretrain_imagenet_vt_r18", (0, 29.9, 30, 59.9, 60, 89.9), (0.1, 0.1, 1e-2, 1e-2, 1e-3, 1e-3)),
    ):
        recipe = recipes.load(name)
        schedule = build_schedule(recipe, 10, training_steps(recipe, 10))
        assert_close([to_numpy(schedule(round(10 * epoch))) for epoch in epochs], expected, 1e-6)


def test_impossible_schedules_are_refused():
    for assignments, message in (
        (["schedule.warmup=100%"], r"schedule.warmup=100% is 103 steps, and the whole run has 103\. Shorten"),
        (["schedule.warmup=10 epochs"], "schedule.warmup=10 epochs is 110 steps, and the whole run has 103"),
        (["schedule.warmup=0%", "schedule.start=0.1"], "schedule.start=0.1 is used only with a warm-up"),
        (
            ["schedule.decay=exponential", "schedule.rate=0.5", "schedule.every=0.04 epochs"],
            "schedule.every=0.04 epochs is less than half a step",
        ),
    ):
        with pytest.raises(InputError, match=message):
            build_schedule(make_recipe(*assignments), EPOCH, TOTAL)


def test_steps_that_cannot_be_counted_are_refused():
    recipe = override(make_recipe(), ["fit.steps=none", "fit.epochs=1000000"])
    assert training_steps(recipe, 2147) == 2_147_000_000
    with pytest.raises(
        InputError, match=r"The whole run is 2,148,000,000 steps\. At most 2,147,483,647 steps can be counted"
    ):
        training_steps(recipe, 2148)
    with pytest.raises(InputError, match=r"A duration of 999999999 epochs is 2,999,999,997 steps"):
        num_steps("999999999 epochs", 3, 100)
