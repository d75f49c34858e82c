"""Opens a source of weights: finds or downloads it, recognises its layout and describes it as a `Checkpoint`."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib

from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.checks import shown
from keras_vit.licences import checked_licence, licence_of_card
from keras_vit.weights import bit, google, huggingface, keras_hub, open_clip, timm, torchvision
from keras_vit.weights.catalogue import FAMILY_ALIASES, entry_at, exact_entry, get_entry, protocol
from keras_vit.weights.checkpoint import published_config
from keras_vit.weights.download import redacted
from keras_vit.weights.fetch import fetch, locate
from keras_vit.weights.files import open_arrays
from keras_vit.weights.hints import Hints
from keras_vit.weights.renamed import Merged
from keras_vit.weights.settings import pair

ADAPTERS = {
    google: "Google's Vision Transformers",
    keras_hub: "KerasHub's ViT",
    huggingface: "the Vision Transformers of transformers",
    open_clip: "OpenCLIP's image towers",
    timm: "timm's VisionTransformer",
    bit: "BiT-ResNets",
    torchvision: "the ResNets of torchvision and timm",
}
"""{module of a layout: models with this layout}. The first module that recognises a file reads it."""

WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json", "model.weights.h5", "pytorch_model.bin"),
    *("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
)
"""Names of weight files in a folder. The first one that exists is read."""
_MAX_CONFIG_BYTES = 10_000_000
_MAX_WIDTH = 65_536


def open_checkpoint(source, variant=None, **given):
    """Opens a source of weights and reads the description of the model. The weights are read later.

    Args:
        source: Name in the catalogue, path of a file or folder, `"hf://…"`, `"gs://…"` or `"https://…"`.
        variant: Variant of the model, for catalogue names that do not contain one.
        **given: Settings from the caller. The names are fields of `Hints`, such as `num_heads`. `None`: not given.

    Returns:
        A `Checkpoint`.

    Raises:
        FileNotFoundError: If there is nothing at the path.
        OSError: If the source cannot be downloaded.
        ValueError: If the source is unknown, damaged or in an unknown layout, or if a needed setting is missing.
    """
    given = {name: value for name, value in given.items() if value is not None}
    if "family" in given:
        given["family"] = FAMILY_ALIASES.get(given["family"], given["family"])
    entry = entry_of_source(source, variant)
    if entry is None:
        hints = Hints(source=redacted(str(source)), **given)
        checkpoint = _with_given_settings(_describe(locate(source), hints), given)
        entry, has_its_weights = entry_at(str(source))
        checkpoint = _with_facts_of_address(checkpoint, entry) if has_its_weights else checkpoint
        return _with_origin(checkpoint, entry, has_its_weights)
    known = {"family": entry.family, "image_size": pair(entry.image_size)}
    hints = Hints(source=entry.name, **{**known, "num_heads": published_config(entry).num_heads, **given})
    path = locate(entry.url) if entry.url.startswith("hf://") else fetch(entry.url, entry.sha256)
    checkpoint = _with_given_settings(_describe(path, hints), given)
    return _with_origin(_with_catalogue_facts(checkpoint, entry), entry)


def entry_of_source(source, variant=None):
    """The catalogue entry of a name, or `None` for a path or an address.

    A full name in the catalogue always refers to the catalogue. If a short name or the name of a repository is also the
    path of a file or folder, the path is used.
    """
    if not isinstance(source, str) or "://" in source or _looks_like_path(source):
        return None
    if os.path.exists(source) and exact_entry(source, variant) is None:
        return None
    try:
        return get_entry(source, variant)
    except ValueError as error:
        raise ValueError(
            f"{str(error).rstrip('.')}. There is no file or folder {shown(source)} either. For a repository on the "
            f"Hugging Face Hub, pass 'hf://owner/repository'."
        ) from error


def _looks_like_path(text):
    endings = (".npz", ".safetensors", ".h5", ".pth", ".pt", ".tar", ".json", ".keras", ".bin", os.sep)
    return text.endswith(endings) or text.startswith((".", "~", os.sep))


def _with_given_settings(checkpoint, given):
    """The checkpoint with the given family's image preparation. Raises ValueError if the given `num_heads` is wrong."""
    num_heads = getattr(checkpoint.config, "num_heads", None)  # A ResNet has no heads.
    if given.get("num_heads", num_heads) != num_heads:
        raise ValueError(
            f"{checkpoint.source} has {num_heads or 'no'} attention heads. Received: num_heads={given['num_heads']}"
        )
    if "family" in given:
        return dataclasses.replace(checkpoint, pixels=protocol(given["family"], checkpoint.image_size))
    return checkpoint


def _with_catalogue_facts(checkpoint, entry):
    """The checkpoint with the facts of a catalogue entry. Raises ValueError if their sizes or classes differ."""
    checkpoint = _with_quick_gelu(checkpoint, entry)
    config, published = checkpoint.config, published_config(entry)
    for field in ("hidden_dim", "num_layers", "num_heads", "mlp_dim"):
        if getattr(config, field) != getattr(published, field):
            raise ValueError(
                f"The downloaded file is not {entry.name}: {field} is {getattr(config, field)}, not "
                f"{getattr(published, field)}. Delete the file from the cache. If the error occurs again, report it."
            )
    if entry.classes and checkpoint.classes not in (None, entry.classes):
        raise ValueError(f"The downloaded file is not {entry.name}: it has {checkpoint.classes} classes.")
    if entry.family == "flexivit":  # The same file is used for all patch sizes.
        config = config.replace(patch_size=published.patch_size)
    return dataclasses.replace(
        checkpoint,
        config=config,
        label_space=entry.label_space,
        activation=None if entry.has_projection else checkpoint.activation,
    )


def _with_facts_of_address(checkpoint, entry):
    """The checkpoint at the address of a catalogue entry, with the entry's activation and classes."""
    checkpoint = _with_quick_gelu(checkpoint, entry)
    if checkpoint.label_space or checkpoint.classes != entry.classes:
        return checkpoint
    return dataclasses.replace(checkpoint, label_space=entry.label_space)


def _with_quick_gelu(checkpoint, entry):
    """The checkpoint with QuickGELU if the weights of a catalogue entry were trained with it.

    In timm's repositories of these weights, the config.json names the exact GELU.
    """
    if published_config(entry).mlp != "quick_gelu":
        return checkpoint
    return dataclasses.replace(checkpoint, config=checkpoint.config.replace(mlp="quick_gelu"))


def _with_origin(checkpoint, entry, has_its_weights=True):
    """The checkpoint with the origin that its catalogue entry defines. Without an entry, it does not change.

    The licence is that of the entry. The source is the entry's name if the checkpoint has the weights of the entry.
    """
    if entry is None:
        return checkpoint
    source = entry.name if has_its_weights else checkpoint.origin["source"]
    return dataclasses.replace(checkpoint, origin={"source": source, "licence": entry.licence})


def _declared_licence(folder, config, metadata):
    """The licence that a file or its folder declares, or `None`."""
    timm_settings = config.get("pretrained_cfg")
    declared = [config, timm_settings if isinstance(timm_settings, dict) else {}, metadata]
    licences = [checked_licence(settings.get("license")) for settings in declared]
    licences.append(folder and licence_of_card(folder / "README.md"))
    return next(filter(None, licences), None)


def _describe(path, hints):
    folder, files = _weight_files(path)
    hints = dataclasses.replace(hints, **_configs(folder))
    with contextlib.ExitStack() as stack:
        arrays = [stack.enter_context(open_arrays(file)) for file in files]
        file = arrays[0] if len(arrays) == 1 else Merged(arrays)
        adapter = next((adapter for adapter in ADAPTERS if adapter.recognises(file)), None)
        if adapter is None:
            raise ValueError(
                f"The names of the arrays in {path} match no known layout (Google's, timm's, torchvision's, Hugging "
                f"Face's, KerasHub's, OpenCLIP's). The first names are: {', '.join(list(file)[:5])}. If the file was "
                f"written by Keras' model.save_weights, call model.load_weights of a model with the same layers."
            )
        try:
            checkpoint = adapter.describe(file, hints)
            _check_width(checkpoint.config)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ZeroDivisionError) as error:
            raise ValueError(
                f"{path} has the layout of {ADAPTERS[adapter]}, but arrays or settings are missing or invalid. The "
                f"file has another architecture, or it is incomplete or damaged. If you downloaded it, download it and "
                f"its config.json again."
            ) from error
        origin = {"source": hints.source, "licence": _declared_licence(folder, hints.config, arrays[0].metadata)}
        opened = stack.pop_all()
    read = functools.partial(_read, checkpoint.read, opened)
    return _normalized(dataclasses.replace(checkpoint, read=read, origin=origin))


def _check_width(config):
    width = getattr(config, "hidden_dim", 0)
    if width > _MAX_WIDTH:  # The computed positions of a very wide model need much memory.
        raise ValueError(f"The width of its tokens must be at most {_MAX_WIDTH:,}. Received: {width:,}")


def _read(read, opened):
    with opened:  # The weights are read once, then the files are closed.
        return read()


def _normalized(checkpoint):
    """Sets redundant config fields to `None`. Sets `crop_to_patches` if the image has incomplete patches."""
    config = checkpoint.config
    if not isinstance(config, ViTConfig):
        return checkpoint
    changes = {}
    if config.class_token and config.pooling in ("token", None):  # With these poolings, a class token is the default.
        changes["class_token"] = None
    if config.position_prefix_rows == config.num_class_tokens:
        changes["num_position_prefix_rows"] = None
    sizes = zip(checkpoint.image_size, config.total_stride, strict=True)
    if config.stem is None and any(size % stride for size, stride in sizes):
        changes["crop_to_patches"] = True  # SigLIP (arXiv 2303.15343) cuts 27 patches of 14 pixels from 384 pixels.
    return dataclasses.replace(checkpoint, config=config.replace(**changes))


def _weight_files(path):
    """(folder with the JSON files, or `None` for an `.npz` file; paths of the weight files)"""
    path = pathlib.Path(path)
    if path.is_file():
        return (path.parent if path.suffix != ".npz" else None), _with_task(path)
    for name in WEIGHTS:
        if (path / name).is_file():
            return path, _with_task(path / name)
    files = sorted(path.glob("*.npz")) + sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        contents = ", ".join(sorted(file.name for file in path.iterdir())) or "nothing"
        raise ValueError(
            f"The folder {path} must contain one of {', '.join(WEIGHTS)}, or exactly one .npz or .safetensors file. It "
            f"contains: {contents}. Pass the path of the file."
        )
    return path, files


def _with_task(path):
    """A file and, for a KerasHub preset with a head, the separate file of the head."""
    task = path.parent / "task.weights.h5"
    return [path, task] if path.name == "model.weights.h5" and task.is_file() else [path]


def _configs(folder):
    """Contents of the JSON files beside the weights, as fields of `Hints`."""
    if folder is None:
        return {}
    config = _json(folder / "config.json")
    for name, file in _MORE_CONFIGS.items():
        if contents := _json(folder / file):
            config[name] = contents
    processor = (
        _json(folder / "preprocessor_config.json")
        or _json(folder / "processor_config.json").get("image_processor")
        or _json(folder / "image_converter.json")
    )
    return {"config": config, "processor": processor}


_MORE_CONFIGS = {"task": "task.json", "open_clip": "open_clip_config.json"}
"""{key in `Hints.config`: file whose contents are added to the config.json}"""


def _json(path):
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ValueError("it is too large")
        contents = json.loads(path.read_text("utf-8"))
        if not isinstance(contents, dict):
            raise ValueError("it is not an object")
    except (ValueError, RecursionError) as error:  # Errors of JSON and UTF-8 are ValueErrors.
        raise ValueError(f"{path} is not a configuration: {error}. Download it again, or remove it.") from error
    return contents
