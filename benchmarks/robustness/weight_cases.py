"""Damaged files of weights: the weights, their settings and model cards, and the cache of downloads."""

import hashlib
import json
import os
import pathlib
import shutil

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
        from keras_vit.weights.containers.files import open_arrays
        from keras_vit.weights.containers.h5 import write_h5
        from keras_vit.weights.containers.npz import write_npz
        from keras_vit.weights.containers.safetensors import write_safetensors

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


class Settings(Weights):
    """The same files. Only the files with settings of the model and of its preprocessing are damaged."""

    @staticmethod
    def prepare(folder):
        Weights.prepare(folder)
        shutil.rmtree(pathlib.Path(folder, "google"))

    def make(self, rng):
        format = FORMATS[rng.integers(1, len(FORMATS))]
        case = self._folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(self._folder / format, case)
        files = sorted(case.glob("*.json"))
        file = files[rng.integers(len(files))]
        settings = json.loads(file.read_text())
        if rng.random() < 0.5:
            settings = mutate_json(settings, rng, depths=(3,))
        file.write_text(dump(mutate_json(settings, rng)))
        return case, sum(file.stat().st_size for file in files)


class Cards(Weights):
    """A model card whose front matter is damaged. It is read for the licence. Or a card with odd metrics, written."""

    @staticmethod
    def prepare(folder):
        import keras_vit

        model = keras_vit.ViT(keras_vit.ViTConfig(16, 12, 2, 3, 24), input_shape=(32, 48, 3), classes=5)
        keras_vit.save_weights(model, pathlib.Path(folder, "timm"), "timm", card=True)

    def __init__(self, folder):
        import keras_vit

        super().__init__(folder)
        self._model = keras_vit.ViT(keras_vit.ViTConfig(16, 12, 2, 3, 24), input_shape=(32, 48, 3), classes=5)

    def make(self, rng):
        case = self._folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(self._folder / "timm", case)
        card = case / "README.md"
        card.write_bytes(mutate_bytes(card.read_bytes(), rng))
        odd = "".join(map(chr, rng.choice([0, 10, 34, 45, 58, 65, 124, 8238, 0xD800, 0x1F600], 8)))
        numbers = {odd[:2]: float(rng.choice([np.nan, np.inf, -1, 0.5, 1e300])), "accuracy": 0.5}
        return (case if rng.random() < 0.5 else (odd, numbers)), card.stat().st_size

    def attempt(self, case):
        import keras_vit

        if isinstance(case, pathlib.Path):
            return super().attempt(case)
        name, metrics = case
        card = keras_vit.Evaluation(name, metrics)
        folder = self._folder / "written"
        keras_vit.save_weights(self._model, folder, "timm", card=card, overwrite=True)
        return (folder / "README.md").read_text(encoding="utf-8") != ""


class Pth(Weights):
    """PyTorch's files. Without torch, which only `.venv-peers` has, each file is refused."""

    documented = (ValueError, TypeError, OSError, ImportError)

    @staticmethod
    def prepare(folder):
        try:
            import torch
        except ImportError:
            return
        rng = np.random.default_rng(0)
        arrays = {f"blocks.{i}.norm1.weight": torch.tensor(rng.normal(size=12)) for i in range(3)}
        for name, is_zip in (("new.pth", True), ("old.pth", False)):
            torch.save({"model": arrays}, pathlib.Path(folder, name), _use_new_zipfile_serialization=is_zip)

    def make(self, rng):
        contents = [path.read_bytes() for path in sorted(self._folder.glob("*.pth")) if path.stem != "case"]
        contents = contents or [b"PK" + bytes(200)]
        content = mutate_bytes(contents[rng.integers(len(contents))], rng)
        case = self._folder / "case.pth"
        case.write_bytes(content)
        return case, len(content)

    def attempt(self, case):
        """Whether arrays are read. They are not those of a whole model."""
        from keras_vit.weights.containers.files import open_arrays

        with open_arrays(case) as arrays:
            return bool([arrays[name][...] for name in arrays])


class Cache:
    """A file in a cache that was damaged after its download. It must be refused, or be the same."""

    documented = (ValueError, OSError)

    def __init__(self, folder):
        self._folder = pathlib.Path(folder)
        self._original = (self._folder / "original").read_bytes()
        os.environ |= {"KERAS_VIT_CACHE": str(self._folder / "case"), "HF_HUB_OFFLINE": "1"}
        os.environ["HF_HUB_CACHE"] = str(self._folder / "case" / "hub")

    @staticmethod
    def prepare(folder):
        from keras_vit.weights.containers.safetensors import write_safetensors

        file = pathlib.Path(folder, "original")
        write_safetensors(file, {"a": np.arange(50, dtype="float32")})
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        cached = pathlib.Path(folder, "cache", "a.org", "vit.safetensors")
        cached.parent.mkdir(parents=True)
        shutil.copy(file, cached)
        cached.with_name("vit.safetensors.origin").write_text(json.dumps({"sha256": digest, "etag": None}))
        hub = pathlib.Path(folder, "cache", "hub", "models--a--b")
        revision = "0" * 40
        for path, content in (
            (hub / "refs" / "main", revision.encode()),
            (hub / "blobs" / digest, file.read_bytes()),
            (hub / "snapshots" / revision / "README.md", b"---\nlicense: mit\n---\n"),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (hub / "snapshots" / revision / "model.safetensors").symlink_to(f"../../blobs/{digest}")

    def make(self, rng):
        """(source, number of bytes of the cache)"""
        case = self._folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(self._folder / "cache", case, symlinks=True)
        files = sorted(path for path in case.rglob("*") if path.is_file())
        file = files[rng.integers(len(files))]
        file.write_bytes(mutate_bytes(file.read_bytes(), rng))
        source = "https://a.org/vit.safetensors" if rng.random() < 0.5 else "hf://a/b/model.safetensors"
        return source, sum(path.stat().st_size for path in files)

    def attempt(self, case):
        from keras_vit.weights.sources.fetch import locate

        assert locate(case).read_bytes() == self._original, "a changed file was accepted"
        return True
