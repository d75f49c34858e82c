"""What the recipes of drawn scenes reach, beside models that cannot see the answer, and beside transformers on torch.

Command: make bench-scenes ARGS="objects torch --rate 1e-3 --seed 0"
         make bench-scenes ARGS=--document

The tasks are `semantic` (recipe `scenes_semantic`), `depth` (`scenes_depth`) and `objects` (`scenes_eomt`). The
contenders are:

* recipe: the recipe as it is.
* shuffled: the recipe, but each training and validation image has the annotations of the next one.
* baseline: no training. A linear classifier of the colour of a pixel, or the best constant depth of each position.
* ours and torch (`objects` only): EoMT of this package, and of transformers on torch. Both start with the same random
  weights of transformers, and get the same batches. Their model is that of the recipe with a class token, as
  transformers needs it.

Each measurement is appended to results/scenes.jsonl. `--document` writes the means over the seeds into
docs/segmentation.md. The learning rate of each EoMT is the one whose validation images have the highest AP50. The
command needs the extras `training` and `peers`.
"""

import argparse
import collections
import dataclasses
import pathlib
import re
import statistics
import sys
import time
from unittest import mock

import numpy as np
import timm  # noqa: F401 (It must be imported before TensorFlow, which would crash otherwise.)
import torch
import transformers
from sklearn.linear_model import LogisticRegression

import keras_vit
from benchmarks.provenance import provenance
from benchmarks.records import add_options, append, markdown_table, put_between, read
from training import recipes
from training.data.augment import build_augmentation
from training.data.pipeline import num_steps_per_epoch, training_batches
from training.data.sets import scenes
from training.engine.schedules import build_schedule, training_steps
from training.engine.train import train
from training.recipe.assignments import override
from training.recipe.config import Model
from training.runs.folder import load_model
from training.tasks import TASKS

METRICS = {"semantic": "mean_iou", "depth": "abs_rel", "objects": "mask_ap50"}
BEST = {"semantic": max, "depth": min, "objects": max}
SETTINGS = ("task", "contender", "seed", "rate", "steps")
RECIPES = {"semantic": "scenes_semantic", "depth": "scenes_depth", "objects": "scenes_eomt"}
SHAPE = (96, 96, 3)
CONFIG = {
    **{"hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "mlp_ratio": 3, "num_register_tokens": 0},
    **{"image_size": 96, "patch_size": 8, "num_queries": 16, "num_blocks": 2, "num_upscale_blocks": 1},
    **{"train_num_points": 282, "id2label": dict(enumerate(scenes.KINDS))},
}
_TOKENS = re.compile("query|cls_token|position_embeddings")  # Like biases and norms, they do not decay.
NUM_BASELINE_IMAGES, NUM_PIXELS = 4000, 200_000


def initial_weights(seed, folder):
    """Writes transformers' model with random weights, and classes of equal probability."""
    torch.manual_seed(seed)
    model = transformers.EomtForUniversalSegmentation(transformers.EomtConfig(**CONFIG))
    torch.nn.init.zeros_(model.class_predictor.weight)
    torch.nn.init.zeros_(model.class_predictor.bias)
    model.save_pretrained(folder)


def recipe_of(options):
    changes = [f"seed={options.seed}"]
    if options.rate:
        changes.append(f"optimizer.learning_rate={options.rate}")
    if options.steps:
        changes += ["fit.epochs=none", f"fit.steps={options.steps}"]
    return override(recipes.load(RECIPES[options.task]), changes)


def from_weights(recipe, folder):
    """The recipe with the model of a folder in place of its own."""
    return dataclasses.replace(recipe, model=Model(weights=str(folder), input_shape=SHAPE))


def with_annotations_of_another_image(split, index, draw=scenes.draw):
    """Same as `scenes.draw`, but images that are not those of the test have the annotations of the next one."""
    other = (index + 1) % scenes.NUM_IMAGES[split] if split == "train" else index
    return draw(split, index)[0], draw(split, other)[1]


def baseline(task):
    """The test metric of a model that sees one pixel, or only its position."""
    rng = np.random.default_rng(0)
    drawn = [scenes.draw("train", index) for index in range(NUM_BASELINE_IMAGES)]
    tested = [scenes.draw("test", index) for index in range(scenes.NUM_IMAGES["test"])]
    if task == "depth":
        depths = np.stack([annotations["depth"][..., 0] for _, annotations in drawn])
        best = weighted_median(depths)
        errors = [abs(best - found["depth"][..., 0]) / found["depth"][..., 0] for _, found in tested]
        return {"abs_rel": float(np.mean(errors))}
    colors, classes = (
        np.concatenate([part.reshape(scenes.SIDE**2, -1) for part in parts])
        for parts in ([image for image, _ in drawn], [annotations["mask"] for _, annotations in drawn])
    )
    chosen = rng.choice(len(colors), NUM_PIXELS, replace=False)
    model = LogisticRegression(max_iter=1000).fit(colors[chosen] / 255, classes[chosen, 0])
    counts = np.zeros((len(scenes.KINDS) + 1,) * 2, "int64")
    for image, annotations in tested:
        predicted = model.predict(image.reshape(-1, 3) / 255)
        np.add.at(counts, (annotations["mask"].ravel(), predicted), 1)
    both = np.diag(counts)
    return {"mean_iou": float(np.mean(both / (counts.sum(0) + counts.sum(1) - both)))}


def weighted_median(depths):
    """The depth of each position that has the lowest AbsRel: the median of the images, weighted by 1 / depth."""
    ordered = np.sort(depths, axis=0)
    weights = np.cumsum(1 / ordered, axis=0)
    return np.take_along_axis(ordered, (weights < weights[-1] / 2).sum(axis=0, keepdims=True), axis=0)[0]


def report(step, loss):
    if step % 50 == 0:
        print(f"step {step}: loss {loss:.3f}", flush=True)


def train_torch(recipe, folder, on_step=report):
    """Trains transformers' model. The update is that of `training.engine.optimizers`."""
    model = transformers.EomtForUniversalSegmentation.from_pretrained(folder / "initial").train()
    ours, task = keras_vit.from_pretrained(folder / "initial", input_shape=SHAPE), TASKS[recipe.task](recipe)
    dataset = task.load()
    per_epoch = num_steps_per_epoch(dataset, recipe)
    steps = training_steps(recipe, per_epoch)
    schedule = build_schedule(recipe, per_epoch, steps)
    parameters = [
        [p for name, p in model.named_parameters() if (p.ndim > 1 and not _TOKENS.search(name)) == decays]
        for decays in (True, False)
    ]
    groups = [{"params": parameters[0], "weight_decay": recipe.optimizer.weight_decay}]
    optimizer = torch.optim.AdamW([*groups, {"params": parameters[1], "weight_decay": 0.0}], betas=(0.9, 0.999))
    changes = build_augmentation(ours, recipe.augment)
    batches = training_batches(
        dataset.splits["train"], changes, lambda sample: task.read_label(sample, len(scenes.KINDS)), recipe
    )(range(steps))(0, 1, recipe.fit.batch_size)
    starts = np.linspace(1 / 6, 4 / 6, CONFIG["num_blocks"])
    for step, (images, labels, _) in enumerate(batches.as_numpy_iterator()):
        masked = (1 - np.clip((step / steps - starts) * 6, 0, 1)) ** 0.9
        model.attn_mask_probs.copy_(torch.tensor(masked))
        kept = labels["classes"] >= 0
        pixels = keras_vit.preprocess_input(images, ours).transpose(0, 3, 1, 2)
        masks = [
            torch.tensor((segments == np.flatnonzero(row)[:, None, None] + 1).astype("float32"))
            for segments, row in zip(labels["segments"], kept, strict=True)
        ]
        classes = [
            torch.tensor(row[is_kept].astype("int64")) for row, is_kept in zip(labels["classes"], kept, strict=True)
        ]
        loss = model(torch.tensor(np.array(pixels)), mask_labels=masks, class_labels=classes).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optimizer.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = float(schedule(step))
        optimizer.step()
        on_step(step, loss.item())
    model.attn_mask_probs.zero_()
    model.save_pretrained(folder / "trained")
    return keras_vit.from_pretrained(folder / "trained", input_shape=SHAPE, include_preprocessing=True)


def measure(options):
    """Trains a contender. Returns the results on the validation and test images."""
    if options.contender == "baseline":
        return {"test": baseline(options.task)}
    settings = options.task, options.contender, options.rate, options.steps, options.seed
    folder = options.runs / "-".join("recipe" if value is None else str(value) for value in settings)
    folder.mkdir(parents=True, exist_ok=True)
    recipe = recipe_of(options)
    if options.contender in ("ours", "torch"):
        initial_weights(options.seed, folder / "initial")
        recipe = from_weights(recipe, folder / "initial")
    if options.contender == "torch":
        model = train_torch(recipe, folder)
    else:
        draw = with_annotations_of_another_image if options.contender == "shuffled" else scenes.draw
        with mock.patch.object(scenes, "draw", draw):
            run, _ = train(recipe, folder=folder / "run")
        model = load_model(run.model)
    task = TASKS[recipe.task](recipe)
    dataset = task.load()
    return {
        split: {
            name.removeprefix("test_"): value
            for name, value in task.results(task.evaluate(model, dataset, split)).items()
        }
        for split in ("validation", "test")
    }


def chosen(rows):
    """The rows of the learning rate whose validation images have the best metric."""
    by_rate = collections.defaultdict(list)
    for row in rows:
        by_rate[row["rate"]].append(row)
    if len(by_rate) == 1:
        return rows
    metric = METRICS[rows[0]["task"]]
    seeds = set.intersection(*({row["seed"] for row in same} for same in by_rate.values()))

    def validation(rate):
        return statistics.mean(row["validation"][metric] for row in by_rate[rate] if row["seed"] in seeds)

    return by_rate[BEST[rows[0]["task"]](by_rate, key=validation)]


def table(rows):
    """One row for each contender, with the mean and the standard deviation over the seeds."""
    newest = {tuple(row[name] for name in SETTINGS): row for row in rows}
    groups = collections.defaultdict(list)
    for row in newest.values():
        groups[row["task"], row["contender"], row["steps"]].append(row)
    cells = []
    for (task, contender, steps), same in sorted(groups.items(), key=lambda item: tuple(map(str, item[0]))):
        same = chosen(same)
        values = [100 * row["test"][METRICS[task]] for row in same]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        rate = same[0]["rate"] or ""
        result = f"{statistics.mean(values):.2f}{spread}"
        cells.append((task, contender, steps or "", rate, len(values), METRICS[task], result))
    columns = ("task", "contender", "steps", "rate", "seeds", "metric", "test (%)")
    return markdown_table(columns, cells, right=("steps", "rate", "seeds", "test (%)"))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("task", choices=METRICS, nargs="?")
    add("contender", choices=("recipe", "shuffled", "baseline", "ours", "torch"), nargs="?")
    add("--seed", type=int, default=0)
    add("--rate", type=float, help="learning rate (default: that of the recipe)")
    add("--steps", type=int, help="number of steps (default: that of the recipe)")
    add("--runs", type=pathlib.Path, default=pathlib.Path("runs/scenes"), help="parent folder of the runs")
    add_options(parser, "bench-scenes", "scenes")
    options = parser.parse_args(arguments)
    if (options.task is None) != (options.contender is None):
        parser.error("name a task and a contender")
    if (options.contender in ("ours", "torch") and options.task != "objects") or (
        options.contender == "baseline" and options.task == "objects"
    ):
        parser.error(f"{options.task} has no contender {options.contender}")
    if options.task:
        state, began = provenance(), time.monotonic()
        settings = {name: getattr(options, name) for name in SETTINGS}
        found = measure(options)
        row = settings | found | {"minutes": round((time.monotonic() - began) / 60, 1)} | state
        append([row], options.results)
        print(row)
    if options.document:
        put_between("bench-scenes", f"{table(read(options.results))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
