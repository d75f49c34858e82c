"""The three kinds of cases: the mutated input, the attempt to read it, and the documented errors."""

import io
import json
import pathlib
import shutil
import string

import numpy as np

from benchmarks.robustness.mutations import dump, mutate_arrays, mutate_bytes, mutate_json, mutate_safetensors

FORMATS = ("google", "timm", "huggingface", "keras_hub")


class Weights:
    """Files of a small model in each format. One file is damaged, and `from_pretrained` reads the model."""

    documented = (ValueError, TypeError, OSError)

    def __init__(self, folder):
        self._folder = pathlib.Path(folder)

    @staticmethod
    def prepare(folder):
        """Writes the files that are mutated."""
        import keras_vit

        for format in FORMATS:
            exact = {"mlp": "gelu_exact"} if format != "google" else {}
            config = keras_vit.ViTConfig(16, 12, 2, 3, 24, **exact)
            model = keras_vit.ViT(config, input_shape=(32, 48, 3), classes=5)
            keras_vit.save_weights(model, pathlib.Path(folder, format, "vit.npz" if format == "google" else ""), format)

    def make(self, rng):
        """(path of a file or folder, its size in bytes)"""
        format = FORMATS[rng.integers(len(FORMATS))]
        case = self._folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(self._folder / format, case)
        files = sorted(case.iterdir())
        self._damage(files[rng.integers(len(files))], rng)
        size = sum(file.stat().st_size for file in files if file.exists())
        return (case / "vit.npz" if format == "google" else case), size

    def _damage(self, file, rng):
        from keras_vit.weights.files import open_arrays, write_h5, write_npz, write_safetensors

        writers = {".npz": write_npz, ".h5": write_h5, ".safetensors": write_safetensors}
        if file.suffix == ".json" and rng.random() < 0.8:
            file.write_text(dump(mutate_json(json.loads(file.read_text()), rng)))
        elif file.suffix == ".safetensors" and rng.random() < 0.4:
            file.write_bytes(mutate_safetensors(file.read_bytes(), rng))
        elif file.suffix in writers and rng.random() < 0.5:
            with open_arrays(file) as arrays:
                changed = mutate_arrays(dict(arrays), rng)
            writers[file.suffix](file, changed)
        else:
            file.write_bytes(mutate_bytes(file.read_bytes(), rng))

    def attempt(self, case):
        """Whether the weights are read."""
        import keras_vit

        return keras_vit.from_pretrained(case) is not None


class Images:
    """A damaged image between two good ones. The decoder of an export reads the batch."""

    documented = ()

    def __init__(self, folder):
        import keras_vit
        from keras_vit.decoding import batch_decoder

        model = keras_vit.ViT("Ti/16", input_shape=(32, 32, 3), num_layers=1, classes=2)
        self._files = [path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir())]
        self._decode = batch_decoder(model)
        self._good = self._files[0]
        self._expected, _ = self._decode([self._good])

    @staticmethod
    def prepare(folder):
        """Writes the files that are mutated."""
        import PIL.Image

        pixels = np.random.default_rng(0).integers(0, 256, (37, 53, 3), "uint8")
        picture = PIL.Image.fromarray(pixels)
        animated = {"save_all": True, "append_images": [picture.rotate(180)]}
        kinds = {"jpeg": {}, "jpeg progressive": {"progressive": True}, "png": {}, "gif": {}, "gif animation": animated}
        exif = PIL.Image.Exif()
        exif[0x0112] = 6  # The orientation.
        turned = {f"{kind} turned": {"exif": exif} for kind in ("jpeg", "png", "webp")}
        for kind, options in {**kinds, "bmp": {}, "webp": {"lossless": True}, **turned}.items():
            content = io.BytesIO()
            picture.save(content, kind.split()[0], **options)
            pathlib.Path(folder, kind).write_bytes(content.getvalue())

    def make(self, rng):
        """(content of the damaged file, its size in bytes)"""
        content = mutate_bytes(self._files[rng.integers(len(self._files))], rng)
        return content, len(content)

    def attempt(self, case):
        """Whether the image is read. Raises AssertionError if the two images beside it are affected."""
        pixels, valid = self._decode([self._good, case, self._good])
        for place in (0, 2):
            assert valid[place], "an image beside the damaged one was not read"
            assert np.array_equal(pixels[place], self._expected[0]), "an image beside the damaged one was changed"
        assert valid[1] or not np.any(pixels[1]), "the pixels of an image that was not read are not zero"
        return bool(valid[1])


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


KINDS = {"weights": Weights, "images": Images, "assignments": Assignments}
