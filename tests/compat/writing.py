"""Writes one file of each kind, to be read by every later version: `python -m tests.compat.writing`.

A set is a folder named after the version that wrote it, such as `tests/compat/0.1`. It is written once, when a version
is released, and never changed.
"""

import functools
import json
import pathlib
import shutil
import sys

import numpy as np

import keras_vit
from tests.test_case import random_model
from training.data.loading import load_dataset
from training.data.sets.records import write_records
from training.engine.train import train
from training.recipe.config import Data, Fit, Model, Recipe

FOLDER = pathlib.Path(__file__).parent
_CONFIG = keras_vit.ViTConfig(patch_size=(4, 3), hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20)
_MERGING = {"token_merging": 2, "qk_norm": True, "layer_scale": 0.1, "dropout_rate": 0.1, "drop_path_rate": 0.2}
_STEM = keras_vit.StemConfig(stage_depths=(1,), width=32)
_RESNET = {"stage_depths": (1, 1), "width": 4, "token_dim": 16, "num_heads": 2, "group_width": 4}
_ARGUMENTS = {"input_shape": (32, 64, 3), "classes": 5, "include_preprocessing": True}

MODELS = {
    "vit": functools.partial(keras_vit.ViT, _CONFIG, crop_to_patches=True, **_ARGUMENTS),
    "merging": functools.partial(keras_vit.ViT, _CONFIG.replace(patch_size=8, **_MERGING), **_ARGUMENTS),
    "axial": functools.partial(keras_vit.AxialViT, _CONFIG.replace(patch_size=8), **_ARGUMENTS),
    "hybrid": functools.partial(keras_vit.ViT, _CONFIG.replace(patch_size=1, stem=_STEM), **_ARGUMENTS),
    "vt_resnet": functools.partial(keras_vit.VTResNet, "VT-R18", filters=16, num_tokens=6, **_RESNET, **_ARGUMENTS),
    "vt_fpn": functools.partial(keras_vit.VTFPN, "R18", neck_dim=16, head_dim=8, **_RESNET, **_ARGUMENTS),
}
"""{name: function that builds the model}"""

RECIPE = Recipe(
    name="compat",
    model=Model(config=_CONFIG.replace(patch_size=4, pooling="avg"), input_shape=(8, 8, 1)),
    data=Data(dataset="digits", train_images=120),
    fit=Fit(epochs=3, batch_size=40),
)


def _write_run(folder):
    """Trains the recipe, and removes the files that no program reads from the run's folder."""
    run, evaluation = train(RECIPE, folder=folder)
    for place in (run.figures, run.tensorboard, run.export / "1" / "assets.extra"):
        shutil.rmtree(place)
    run.report.unlink()
    facts = json.loads(run.recipe.read_text())
    run.recipe.write_text(json.dumps(facts | {"git": None, "machine": ""}, indent=2) + "\n")
    return {"run_labels": evaluation.labels, "run_probabilities": evaluation.probabilities}


def main():
    folder = FOLDER / keras_vit.__version__.rpartition(".")[0]
    if folder.exists():
        sys.exit(f"{folder} exists. The files of a released version are not written again.")
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (2, *_ARGUMENTS["input_shape"])).astype("uint8")
    outputs = {"images": images}
    for name, build in MODELS.items():
        model = random_model(build())
        outputs[name] = model.predict(images, verbose=0)
        model.save(folder / f"{name}.keras")
        model.save_weights(folder / f"{name}.weights.h5")
        if name == "axial":
            model.quantize("int8")
            outputs["axial_int8"] = model.predict(images, verbose=0)
            model.save(folder / "axial_int8.keras")
    write_records(load_dataset(RECIPE.data), str(folder / "records"))
    outputs |= _write_run(folder / "run")
    np.savez_compressed(folder / "outputs.npz", **outputs)


if __name__ == "__main__":
    main()
