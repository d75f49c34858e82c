"""Odd assignments to fields of a recipe, configs, and records of data sets and runs."""

import contextlib
import io
import json
import pathlib
import shutil
import string

import numpy as np

from benchmarks.robustness.mutations import dump, mutate_bytes, mutate_json

_ODD_VALUES = ["nan", "-inf", "1e400", "0x10", "\u0661\u0662", "true", "none", "", "-0", "1_000", "'", '"', "\0", "\n"]


class Assignments:
    """Assignments to fields of a recipe, as on the command line."""

    def __init__(self, folder):
        from training import recipes
        from training.errors import InputError
        from training.recipe.assignments import leaves
        from training.recipe.config import to_dict

        self.documented = (InputError,)
        self._recipes = [recipes.load(name) for name in recipes.NAMES]
        self._paths = [[path for path, _ in leaves(to_dict(recipe))] for recipe in self._recipes]
        self._values = sorted({str(value) for recipe in self._recipes for _, value in leaves(to_dict(recipe))})

    @staticmethod
    def prepare(folder):
        """Needs no files."""

    def make(self, rng):
        """((recipe, assignment), its size)"""
        number = rng.integers(len(self._recipes))
        path = self._paths[number][rng.integers(len(self._paths[number]))]
        if rng.random() < 0.2:
            path = _mutated_text(path, rng)
        assignment = f"{path}={self._value(rng)}"
        return (self._recipes[number], assignment), len(assignment)

    def _value(self, rng):
        choices = (
            lambda: self._values[rng.integers(len(self._values))],
            lambda: _mutated_text(self._values[rng.integers(len(self._values))], rng),
            lambda: "9" * int(rng.choice([1, 30, 5000])),
            lambda: str(rng.choice(_ODD_VALUES)),
            lambda: "[" * int(rng.choice([1, 30, 5000])),
            lambda: "{" + '"a":' * int(rng.choice([1, 30, 5000])),
            lambda: ",".join(["3"] * int(rng.choice([2, 3, 5000]))),
            lambda: "x" * 100_000,
        )
        return choices[rng.integers(len(choices))]()

    def attempt(self, case):
        """Whether the recipe is changed."""
        from training.recipe.assignments import override

        recipe, assignment = case
        return override(recipe, [assignment]) is not None


def _mutated_text(text, rng):
    letters = list(text)
    place = int(rng.integers(0, len(letters) + 1))
    letters[place : place + int(rng.integers(0, 3))] = list(rng.choice(list(string.printable), int(rng.integers(0, 4))))
    return "".join(letters)


class Configs:
    """Configs of models, of rotary positions and stems, and of the preprocessing layer, with odd fields."""

    documented = (ValueError, TypeError)

    def __init__(self, folder):
        import keras_vit
        from keras_vit.preprocessing import Preprocessing

        plain = {"patch_size": 16, "hidden_dim": 12, "num_layers": 2, "num_heads": 3, "mlp_dim": 24}
        configs = (
            keras_vit.ViTConfig(**plain, rotary=keras_vit.RotaryConfig()),
            keras_vit.ViTConfig(**plain | {"patch_size": 4}, stem=keras_vit.ConvStemConfig((8, 16))),
            keras_vit.VARIANTS["R50+B/16"],
        )
        self._configs = [("architecture", config.to_dict()) for config in configs]
        layer = Preprocessing().get_config()
        self._configs.append(("preprocessing", {name: layer[name] for name in layer if name not in ("name", "dtype")}))

    @staticmethod
    def prepare(folder):
        """Needs no files."""

    def make(self, rng):
        """((kind, config), its size)"""
        kind, config = self._configs[rng.integers(len(self._configs))]
        config = mutate_json(json.loads(json.dumps(config)), rng, depths=(3,))  # Keras reads no deep JSON.
        return (kind, config), len(dump(config))

    def attempt(self, case):
        """Whether the config is accepted. An accepted config is written and read again."""
        from keras_vit.architectures import read_architecture
        from keras_vit.preprocessing import Preprocessing

        kind, config = case
        if kind == "preprocessing":
            accepted = Preprocessing.from_config(config).get_config()
            again = Preprocessing.from_config(accepted).get_config()
        else:
            accepted = read_architecture(config).to_dict()
            again = read_architecture(accepted).to_dict()
        assert again == accepted, "an accepted config changes when it is read again"
        return True


class Records:
    """The record of a run's splits, its recipe, and the index and the shards of a data set of records."""

    def __init__(self, folder):
        from training.errors import InputError

        self.documented = (InputError,)
        self._folder = pathlib.Path(folder)

    @staticmethod
    def prepare(folder):
        import PIL.Image

        from training import recipes
        from training.data.loading import load_dataset
        from training.data.sets.records import write_records
        from training.engine.distribution import Engine
        from training.recipe.assignments import override
        from training.runs.folder import open_run

        for number in range(12):
            path = pathlib.Path(folder, "photographs", "ab"[number % 2], f"{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(np.full((5, 4), 20 * number, "uint8")).save(path)
        recipe = override(recipes.load("folder"), [f"data.directory={pathlib.Path(folder, 'photographs')}"])
        dataset = load_dataset(recipe.data)
        write_records(dataset, str(pathlib.Path(folder, "whole", "shards")), images_per_shard=3)
        open_run(recipe, dataset, None, pathlib.Path(folder, "whole", "run"), Engine(None))

    def make(self, rng):
        """(folder with the damaged file, the size of this file)"""
        case = self._folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(self._folder / "whole", case)
        files = [path for path in sorted(case.rglob("*")) if path.is_file()]
        file = files[rng.integers(len(files))]
        if file.suffix == ".json" and rng.random() < 0.7:
            file.write_text(dump(mutate_json(json.loads(file.read_text()), rng)))
        else:
            file.write_bytes(mutate_bytes(file.read_bytes(), rng))
        return case, file.stat().st_size

    def attempt(self, case):
        """Whether the run and its data set can be read."""
        from training import recipes
        from training.data.loading import load_dataset
        from training.recipe.assignments import read_run_info
        from training.recipe.config import Data
        from training.runs.folder import Run, read_record

        run = Run(case / "run")
        read_run_info(run.recipe)
        recipes.load(str(run.recipe))
        record = read_record(run)
        data = Data(dataset="records", directory=str(case / "shards"))
        with contextlib.redirect_stdout(io.StringIO()):  # The changes are printed.
            dataset = load_dataset(data, record=record)
        dataset.contents.changes_since(record.contents)
        return True
