"""From a source of weights to a `Checkpoint`: found, fetched, opened, recognised, described."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib

from keras_vit.weights import google, huggingface, keras_hub, timm
from keras_vit.weights.catalogue import get_entry
from keras_vit.weights.checkpoint import Checkpoint, Hints, Merged, pair
from keras_vit.weights.fetch import fetch, locate
from keras_vit.weights.files import open_arrays

ADAPTERS = (google, keras_hub, huggingface, timm)

# What a folder's weights are called, the first that is there; and how the caller may say what files do not.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model.weights.h5")
_MAX_CONFIG_BYTES = 10_000_000


def open_checkpoint(source, variant=None, **told):
    """Opens a source of weights and reads what model it describes; the weights themselves are read later.

    Args:
        source: Name in the catalogue, path of a file or folder, `"hf://…"`, `"gs://…"`, `"https://…"`, or a
            `Checkpoint`, which is returned as it is.
        variant: Variant that a catalogue name without one belongs to.
        **told: Fields of `Hints`: what files may not say, such as `num_heads` or `grid_size`.

    Returns:
        A `Checkpoint`.

    Raises:
        FileNotFoundError: If there is nothing at the path.
        OSError: If the source cannot be fetched.
        ValueError: If the source is unknown, damaged, in no layout that is known, or leaves something unsaid.
    """
    if isinstance(source, Checkpoint):
        return source
    entry = None if _is_place(source) else get_entry(source, variant)
    path = locate(source) if entry is None else _fetch(entry)
    if entry is None:
        return _describe(path, Hints(source=str(source), **told))
    hints = Hints(source=entry.name, **{"family": entry.family, "image_size": pair(entry.image_size), **told})
    checkpoint = _describe(path, hints)
    return dataclasses.replace(checkpoint, pixels={**checkpoint.pixels, "label_space": entry.label_space})


def _is_place(source):
    """Whether a source is a path or an address, not a catalogue name."""
    text = os.fspath(source)
    return not isinstance(source, str) or "://" in text or os.path.exists(text) or _looks_like_path(text)


def _looks_like_path(text):
    return text.endswith((".npz", ".safetensors", ".h5", ".pth", ".json", ".keras", ".bin", os.sep)) or text.startswith(
        (".", "~", os.sep)
    )


def _fetch(entry):
    return locate(entry.url) if entry.url.startswith("hf://") else fetch(entry.url, entry.sha256)


def _describe(path, hints):
    folder, files = _weight_files(path)
    hints = dataclasses.replace(hints, **_configs(folder))
    with contextlib.ExitStack() as stack:
        arrays = [stack.enter_context(open_arrays(file)) for file in files]
        file = arrays[0] if len(arrays) == 1 else Merged(arrays)
        adapter = next((adapter for adapter in ADAPTERS if adapter.recognises(file)), None)
        if adapter is None:
            raise ValueError(
                f"The arrays in {path} have names of no layout that is known (Google's, timm's, Hugging Face's, "
                f"KerasHub's). The first are: {', '.join(list(file)[:5])}"
            )
        try:
            checkpoint = adapter.describe(file, hints)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        except (AttributeError, IndexError, KeyError, StopIteration, TypeError) as error:
            raise ValueError(
                f"{path} is incomplete, or the configuration beside it is not that of these weights: {error!r}. "
                f"Download both again."
            ) from error
        opened = stack.pop_all()
    return _cropping(dataclasses.replace(checkpoint, read=functools.partial(_read, checkpoint.read, opened)))


def _read(read, opened):
    with opened:  # Weights are read once; then the files are closed.
        return read()


def _cropping(checkpoint):
    """Some published models cut off the pixels that do not fill a patch: 27 x 27 patches of 14 pixels at 384."""
    config = checkpoint.config
    sizes = zip(checkpoint.image_size, config.total_stride, strict=True)
    if config.stem is None and any(size % stride for size, stride in sizes):
        return dataclasses.replace(checkpoint, config=config.replace(crop_to_patches=True))
    return checkpoint


def _weight_files(path):
    """(folder whose config.json counts or `None`, files of weights)"""
    path = pathlib.Path(path)
    if path.is_file():
        return (path.parent if path.suffix != ".npz" else None), _with_task(path)
    for name in _WEIGHTS:
        if (path / name).is_file():
            return path, _with_task(path / name)
    others = sorted(path.glob("*.npz")) + sorted(path.glob("*.safetensors"))
    if len(others) != 1:
        found = ", ".join(sorted(file.name for file in path.iterdir())) or "nothing"
        raise ValueError(
            f"The folder {path} has none of {', '.join(_WEIGHTS)}, and not one single .npz or .safetensors file. It "
            f"holds: {found}. Name the file."
        )
    return path, others


def _with_task(path):
    """A KerasHub preset keeps the head in a file of its own."""
    task = path.parent / "task.weights.h5"
    return [path, task] if path.name == "model.weights.h5" and task.is_file() else [path]


def _configs(folder):
    """What JSON files beside the weights say, as fields of `Hints`."""
    if folder is None:
        return {}
    config, task = _json(folder / "config.json"), _json(folder / "task.json")
    processor = (
        _json(folder / "preprocessor_config.json")
        or _json(folder / "processor_config.json").get("image_processor")
        or _json(folder / "image_converter.json")
    )
    return {"config": {**config, "task": task} if task else config, "processor": processor}


def _json(path):
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ValueError("it is too large")
        contents = json.loads(path.read_text("utf-8"))
        if not isinstance(contents, dict):
            raise ValueError("it is no object")
    except ValueError as error:  # Also of JSON and of UTF-8.
        raise ValueError(f"{path} is no configuration: {error}. Download it again, or remove it.") from error
    return contents
