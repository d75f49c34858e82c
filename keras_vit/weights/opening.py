"""From a source of weights to a `Checkpoint`: found, fetched, opened, recognised, described."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib

from keras_vit.architectures.vision_transformer import VARIANTS, ViTConfig
from keras_vit.weights import bit, google, huggingface, keras_hub, timm, torchvision
from keras_vit.weights.catalogue import FAMILY_ALIASES, get_entry, protocol
from keras_vit.weights.download import shown
from keras_vit.weights.fetch import fetch, locate
from keras_vit.weights.files import open_arrays
from keras_vit.weights.hints import Hints
from keras_vit.weights.renamed import Merged
from keras_vit.weights.settings import pair

ADAPTERS = {
    google: "Google's Vision Transformers",
    keras_hub: "KerasHub's ViT",
    huggingface: "the Vision Transformers of transformers",
    timm: "timm's VisionTransformer",
    bit: "BiT-ResNets",
    torchvision: "the ResNets of torchvision and timm",
}
"""{module of a layout: the models whose files have it}, the first that recognises a file"""

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model.weights.h5", "pytorch_model.bin")
"""What a folder's weights are called, the first that is there."""
_MAX_CONFIG_BYTES = 10_000_000
_MAX_WIDTH = 65_536


def open_checkpoint(source, variant=None, **told):
    """Opens a source of weights and reads what model it describes; the weights themselves are read later.

    Args:
        source: Name in the catalogue, path of a file or folder, `"hf://…"`, `"gs://…"` or `"https://…"`.
        variant: Variant that a catalogue name without one belongs to.
        **told: Fields of `Hints`: what files may not say, such as `num_heads` or `grid_size`.

    Returns:
        A `Checkpoint`.

    Raises:
        FileNotFoundError: If there is nothing at the path.
        OSError: If the source cannot be fetched.
        ValueError: If the source is unknown, damaged, in no layout that is known, or leaves something unsaid.
    """
    told = {name: value for name, value in told.items() if value is not None}
    if "family" in told:
        told["family"] = FAMILY_ALIASES.get(told["family"], told["family"])
    entry = _entry(source, variant)
    if entry is None:
        hints = Hints(source=shown(str(source)), **told)
        return _told(_describe(locate(source), hints), told)
    hints = Hints(source=entry.name, **{"family": entry.family, "image_size": pair(entry.image_size), **told})
    checkpoint = _told(_describe(_fetch(entry), hints), told)
    return _of_catalogue(checkpoint, entry)


def _entry(source, variant):
    """The catalogue's entry of a name; `None` for a path or an address."""
    if not isinstance(source, str) or "://" in source or _looks_like_path(source):
        return None
    try:
        return get_entry(source, variant)
    except ValueError as error:
        if os.path.exists(source):
            return None
        raise ValueError(
            f"{str(error).rstrip('.')}. Nor is there a file or folder {source!r}; a repository of the Hugging Face Hub "
            f"is 'hf://owner/repository'."
        ) from error


def _looks_like_path(text):
    endings = (".npz", ".safetensors", ".h5", ".pth", ".json", ".keras", ".bin", os.sep)
    return text.endswith(endings) or text.startswith((".", "~", os.sep))


def _told(checkpoint, told):
    """The checkpoint with what the caller says, which wins over the file; refused where it cannot be."""
    num_heads = getattr(checkpoint.config, "num_heads", None)  # A ResNet has none.
    if told.get("num_heads", num_heads) != num_heads:
        raise ValueError(
            f"{checkpoint.source} has {num_heads or 'no'} attention heads. Received: num_heads={told['num_heads']}"
        )
    if "family" in told:
        label_space = (checkpoint.pixels or {}).get("label_space")
        pixels = {**protocol(told["family"], checkpoint.image_size), "label_space": label_space}
        return dataclasses.replace(checkpoint, pixels=pixels)
    return checkpoint


def _of_catalogue(checkpoint, entry):
    """The checkpoint with the catalogue's label space, if it is of the entry's size."""
    config, variant = checkpoint.config, VARIANTS.get(entry.variant)
    for field in ("hidden_dim", "num_layers", "mlp_dim") if variant else ():
        if getattr(config, field) != getattr(variant, field):
            raise ValueError(
                f"What was fetched is not {entry.name}: {field} is {getattr(config, field)}, not "
                f"{getattr(variant, field)}. Remove the file from the cache, or report the catalogue's entry."
            )
    if entry.classes and checkpoint.classes not in (None, entry.classes):
        raise ValueError(f"What was fetched is not {entry.name}: it has {checkpoint.classes} classes.")
    if entry.family == "flexivit" and variant:  # One file serves all patch sizes.
        config = config.replace(patch_size=variant.patch_size)
    pixels = {**checkpoint.pixels, "label_space": entry.label_space}
    return dataclasses.replace(checkpoint, config=config, pixels=pixels)


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
                f"The arrays in {path} have names of no layout that is known (Google's, timm's, torchvision's, "
                f"Hugging Face's, KerasHub's). The first are: {', '.join(list(file)[:5])}. What model.save_weights of "
                f"Keras wrote is read by model.load_weights, into a model of the same shape."
            )
        try:
            checkpoint = adapter.describe(file, hints)
            _check_width(checkpoint.config)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ZeroDivisionError) as error:
            raise ValueError(
                f"{path} has the layout of {ADAPTERS[adapter]}, and not all arrays or settings of such a model. It is "
                f"of another architecture, or incomplete. If it was downloaded, download it and its config.json again."
            ) from error
        opened = stack.pop_all()
    return _normalized(dataclasses.replace(checkpoint, read=functools.partial(_read, checkpoint.read, opened)))


def _check_width(config):
    """Refuses a model whose positions alone would take much memory, where they are computed."""
    width = getattr(config, "hidden_dim", 0)
    if width > _MAX_WIDTH:
        raise ValueError(f"Its tokens are {width:,} wide. Models of at most {_MAX_WIDTH:,} are read.")


def _read(read, opened):
    with opened:  # Weights are read once; then the files are closed.
        return read()


def _normalized(checkpoint):
    """The checkpoint with its config as one would write it."""
    config = checkpoint.config
    if not isinstance(config, ViTConfig):
        return checkpoint
    changes = {}
    if config.class_token and config.pooling in ("token", None):  # With another pooling it would go.
        changes["class_token"] = None
    if config.position_prefix_rows == config.num_class_tokens:
        changes["num_position_prefix_rows"] = None
    sizes = zip(checkpoint.image_size, config.total_stride, strict=True)
    if config.stem is None and any(size % stride for size, stride in sizes):
        changes["crop_to_patches"] = True  # As some published models do: 27 x 27 patches of 14 pixels at 384.
    return dataclasses.replace(checkpoint, config=config.replace(**changes))


def _weight_files(path):
    """(folder whose config.json counts or `None`, files of weights)"""
    path = pathlib.Path(path)
    if path.is_file():
        return (path.parent if path.suffix != ".npz" else None), _with_task(path)
    for name in WEIGHTS:
        if (path / name).is_file():
            return path, _with_task(path / name)
    others = sorted(path.glob("*.npz")) + sorted(path.glob("*.safetensors"))
    if len(others) != 1:
        found = ", ".join(sorted(file.name for file in path.iterdir())) or "nothing"
        raise ValueError(
            f"The folder {path} has none of {', '.join(WEIGHTS)}, and not one single .npz or .safetensors file. It "
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
    except (ValueError, RecursionError) as error:  # Also of JSON and of UTF-8.
        raise ValueError(f"{path} is no configuration: {error}. Download it again, or remove it.") from error
    return contents
