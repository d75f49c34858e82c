"""Trains EoMT on drawn scenes with this package, and with transformers on torch, from the same weights and batches.

    python -m benchmarks.scenes_eomt CONTENDER --rate RATE --seed SEED --steps STEPS

CONTENDER is "ours", "torch", or "shuffled": ours with the objects of other images in training. All contenders start
with the random weights of transformers. The model has the size of the recipe scenes_eomt, with a class token, as
transformers needs it. Settings that are not given, and the order and the changes of the images, are those of the
recipe. The command writes the mask AP of the test and validation images into FOLDER/CONTENDER-RATE-SEED.json, and skips
trainings whose file exists. It needs the extras `training` and `peers`.
"""

import argparse
import dataclasses
import json
import pathlib
import time
from unittest import mock

import numpy as np
import timm  # noqa: F401 (It must be imported before TensorFlow, which would crash otherwise.)
import torch
import transformers

import keras_vit
from training import recipes
from training.data.augment import build_augmentation
from training.data.pipeline import num_steps_per_epoch, training_batches
from training.data.sets import scenes
from training.engine.schedules import build_schedule
from training.engine.train import train
from training.recipe.assignments import override
from training.recipe.config import Model
from training.runs.folder import load_model
from training.tasks import TASKS

SHAPE = (96, 96, 3)
CONFIG = {
    **{"hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "mlp_ratio": 3, "num_register_tokens": 0},
    **{"image_size": 96, "patch_size": 8, "num_queries": 16, "num_blocks": 2, "num_upscale_blocks": 1},
    **{"train_num_points": 282, "id2label": dict(enumerate(scenes.KINDS))},
}


def initial_weights(seed, folder):
    """Writes transformers' model with random weights, and classes of equal probability."""
    torch.manual_seed(seed)
    model = transformers.EomtForUniversalSegmentation(transformers.EomtConfig(**CONFIG))
    torch.nn.init.zeros_(model.class_predictor.weight)
    torch.nn.init.zeros_(model.class_predictor.bias)
    model.save_pretrained(folder)


def recipe_of(weights, options):
    changes = [
        f"seed={options.seed}",
        f"optimizer.learning_rate={options.rate}",
        f"fit.batch_size={options.batch_size}",
    ]
    recipe = override(recipes.load("scenes_eomt"), [*changes, "fit.epochs=none", f"fit.steps={options.steps}"])
    return dataclasses.replace(recipe, model=Model(weights=str(weights), input_shape=SHAPE))


def with_objects_of_another_image(split, index, draw=scenes.draw):
    """Same as `scenes.draw`, but training images have the annotations of the next one."""
    other = (index + 1) % scenes.NUM_IMAGES[split] if split == "train" else index
    return draw(split, index)[0], draw(split, other)[1]


def train_torch(recipe, folder):
    """Trains transformers' model. The update is that of `training.engine.optimizers`."""
    model = transformers.EomtForUniversalSegmentation.from_pretrained(folder / "initial").train()
    ours, task = keras_vit.from_pretrained(folder / "initial", input_shape=SHAPE), TASKS[recipe.task](recipe)
    dataset = task.load()
    steps, per_epoch = recipe.fit.steps, num_steps_per_epoch(dataset, recipe)
    schedule = build_schedule(recipe, per_epoch, steps)
    parameters = [[p for p in model.parameters() if (p.ndim > 1) == decays] for decays in (True, False)]
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
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    model.attn_mask_probs.zero_()
    model.save_pretrained(folder / "trained")
    return keras_vit.from_pretrained(folder / "trained", input_shape=SHAPE, include_preprocessing=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("contender", choices=("ours", "shuffled", "torch"))
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1125)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/scenes_eomt"))
    options = parser.parse_args()
    folder = options.folder / f"{options.contender}-{options.rate:g}-{options.seed}"
    result = folder.with_suffix(".json")
    if result.is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    initial_weights(options.seed, folder / "initial")
    recipe = recipe_of(folder / "initial", options)
    began = time.monotonic()
    if options.contender == "torch":
        model = train_torch(recipe, folder)
    else:
        draw = with_objects_of_another_image if options.contender == "shuffled" else scenes.draw
        with mock.patch.object(scenes, "draw", draw):
            run, _ = train(recipe, folder=folder / "run")
        model = load_model(run.model)
    seconds = round(time.monotonic() - began)
    task = TASKS[recipe.task](recipe)
    dataset = task.load()
    found = {split: task.evaluate(model, dataset, split).totals for split in ("validation", "test")}
    facts = {name: value for name, value in vars(options).items() if name != "folder"}
    result.write_text(json.dumps({**facts, "seconds": seconds, **found}, indent=1))
    print(result.read_text())


if __name__ == "__main__":
    main()
