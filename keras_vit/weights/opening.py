"""Opens a source of weights: finds or downloads it, recognises its layout and describes it as a `Checkpoint`."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import typing

from keras_vit.checks import shown
from keras_vit.licences import checked_licence, licence_of_card
from keras_vit.outputs import Output
from keras_vit.weights.catalogue.families import FAMILY_ALIASES, preprocessing_of
from keras_vit.weights.catalogue.lookup import entry_at, exact_entry, get_entry
from keras_vit.weights.checkpoint import Hints
from keras_vit.weights.containers.files import Merged, open_arrays
from keras_vit.weights.formats import FORMATS
from keras_vit.weights.formats.text import READERS
from keras_vit.weights.sources.download import redacted
from keras_vit.weights.sources.fetch import locate

WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json", "model.weights.h5", "pytorch_model.bin"),
    *("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
)
"""Names of weight files in a folder. The first one that exists is read."""
TOKENIZER_FILES = ("tokenizer.json", "spiece.model", "tokenizer.model")
"""Names of the files beside the weights from which tokenizers are made."""
SETTINGS_FILES = tuple(dict.fromkeys(name for layout in FORMATS.values() for name in layout.settings_files))
"""Names of the JSON files of all formats."""
_MAX_CONFIG_BYTES = 10_000_000


def open_checkpoint(source, variant=None, **hints):
    """Opens a source of weights and reads the description of the model. The weights are read later.

    Args:
        source: Name in the catalogue, path of a file or folder, `"hf://…"`, `"gs://…"` or `"https://…"`.
        variant: Variant of the model, for catalogue names that do not contain one.
        **hints: Settings from the caller. The names are fields of `Hints`, such as `num_heads`. `None`: not given.

    Returns:
        A `Checkpoint`.

    Raises:
        FileNotFoundError: If there is nothing at the path.
        OSError: If the source cannot be downloaded.
        ValueError: If the source is unknown, damaged or in an unknown layout, or if a needed setting is missing.
    """
    given = {name: value for name, value in hints.items() if value is not None}
    if "family" in given:
        given["family"] = FAMILY_ALIASES.get(given["family"], given["family"])
    named = entry_of_source(source, variant)
    entry, has_its_weights = entry_at(str(source)) if named is None else (named, True)
    known, changes = {"source": redacted(str(source))}, {}
    if named:
        known = {"source": named.name, "family": named.family, "num_heads": named.config.num_heads}
        known["image_size"] = (named.image_size, named.image_size)
        known |= named.hints
        if named.family == "flexivit":  # The same file is used for all patch sizes.
            changes["patch_size"] = named.config.patch_size
    if entry and has_its_weights and entry.config.mlp == "quick_gelu":
        changes["mlp"] = "quick_gelu"  # In timm's repositories of these weights, the config.json names the exact GELU.
    known_and_given = Hints(**known | given, changes=changes)  # Raises ValueError before any download.
    if known_and_given.encoder is not None:
        encoder = open_checkpoint(known_and_given.encoder)
        known_and_given = dataclasses.replace(known_and_given, encoder=encoder)
    address, sha256 = (named.url, named.sha256) if named else (source, None)
    path = locate(address, sha256, SETTINGS_FILES)
    checkpoint = _describe(path, known_and_given)
    num_heads = getattr(checkpoint.config, "num_heads", None)  # A ResNet has no heads.
    if given.get("num_heads", num_heads) != num_heads:
        raise ValueError(
            f"{checkpoint.source} has {num_heads or 'no'} attention heads. Received: num_heads={given['num_heads']}"
        )
    if given.get("output", checkpoint.output.kind) != checkpoint.output.kind:
        raise ValueError(
            f"{checkpoint.source} has outputs of the kind {checkpoint.output.kind!r}. Received: "
            f"output={given['output']!r}"
        )
    facts = {}
    if "family" in given:
        facts["preprocessing"] = preprocessing_of(given["family"], checkpoint.image_size)
    if named:
        _check_entry(checkpoint, named)
        facts["label_space"] = named.label_space if named.output is None else checkpoint.label_space
        facts["output"] = Output("embedding") if named.has_projection else checkpoint.output
    elif entry and has_its_weights and not checkpoint.label_space and checkpoint.classes == entry.classes:
        facts["label_space"] = entry.label_space
    if entry:
        origin_source = entry.name if has_its_weights else checkpoint.source
        facts["origin"] = {"source": origin_source, "licence": entry.licence}
    return dataclasses.replace(checkpoint, **facts)


def open_text(source, **hints):
    """Opens the text encoder of a source of weights and reads its description. The weights are read later.

    Args:
        source, **hints: As in `open_checkpoint`.

    Returns:
        A `TextCheckpoint`.

    Raises:
        OSError: If the source cannot be found or downloaded.
        ValueError: If it has no text encoder, or as in `open_checkpoint`.
    """
    named = entry_of_source(source)
    address, sha256 = (named.url, named.sha256) if named else (source, None)
    known = {"family": named.family} if named else {}
    given = {name: value for name, value in hints.items() if value is not None}
    path = locate(address, sha256, (*SETTINGS_FILES, *TOKENIZER_FILES))
    with _opened(path) as opened:
        text_hints = Hints(source=str(source), settings=opened.settings, **known | given)
        text = READERS[opened.name](opened.file, text_hints) if opened.name in READERS else None
        if text is None:
            raise ValueError(
                "There is no text encoder that can be read. The formats of transformers, OpenCLIP and big_vision can "
                "have one. For an image encoder without text, call keras_vit.from_pretrained."
            )
        read = functools.partial(_read, text.read, opened.stack.pop_all())
        return dataclasses.replace(text, read=read, folder=opened.folder)


def entry_of_source(source, variant=None):
    """The catalogue entry of a name, or `None` for a path or an address.

    A full name in the catalogue always refers to the catalogue. If a short name or the name of a repository is also the
    path of a file or folder, the path is used.
    """
    endings = (".npz", ".safetensors", ".h5", ".pth", ".pt", ".tar", ".json", ".keras", ".bin", os.sep)
    if not isinstance(source, str) or "://" in source or source.startswith((".", "~", os.sep)):
        return None
    if source.endswith(endings):
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


def _describe(path, hints):
    """Describes the files at a path, whose layout is that of the first of `FORMATS` that recognises them."""
    with _opened(path) as opened:
        checkpoint = opened.layout.describe(opened.file, dataclasses.replace(hints, settings=opened.settings))
        licence = _declared_licence(opened.folder, opened.settings.get("config.json", {}), opened.metadata)
        return dataclasses.replace(
            checkpoint,
            source=hints.source,
            format=checkpoint.format or opened.name,
            read=functools.partial(_read, checkpoint.read, opened.stack.pop_all()),
            origin={"source": hints.source, "licence": licence},
        )


@dataclasses.dataclass(frozen=True)
class _Opened:
    """Open files of weights.

    Args:
        name: Key of `FORMATS`.
        file: The arrays, a mapping.
        settings: {name of a JSON file of the format: its contents}
        metadata: Metadata of the first file.
        folder: Folder of the files, or `None` for an `.npz` file.
        stack: `contextlib.ExitStack` that closes the files.
    """

    name: str
    file: typing.Any
    settings: dict
    metadata: dict
    folder: pathlib.Path | None
    stack: contextlib.ExitStack

    @property
    def layout(self):
        return FORMATS[self.name]


@contextlib.contextmanager
def _opened(path):
    """Opens the files at a path as `_Opened`. Errors in the block name the path and the layout."""
    folder, paths = _weight_files(path)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open_arrays(path)) for path in paths]
        file = files[0] if len(files) == 1 else Merged(files)
        name = next((name for name, layout in FORMATS.items() if layout.recognises(file)), None)
        if name is None:
            titles = ", ".join(each.title for each in FORMATS.values())
            raise ValueError(
                f"The names of the arrays in {path} match no known layout ({titles}). The first names are: "
                f"{', '.join(list(file)[:5])}. If the file was written by Keras' model.save_weights, call "
                f"model.load_weights of a model with the same layers."
            )
        settings = {each: _json(folder / each) if folder else {} for each in FORMATS[name].settings_files}
        try:
            yield _Opened(name, file, settings, files[0].metadata, folder, stack)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ZeroDivisionError) as error:
            raise ValueError(
                f"{path} has the layout of {FORMATS[name].title}, but arrays or settings are missing or invalid. The "
                f"file has another architecture, or it is incomplete or damaged. If you downloaded it, download it and "
                f"its config.json again."
            ) from error


def _read(read, files):
    with files:  # The weights are read once, then the files are closed.
        return read()


def _check_entry(checkpoint, entry):
    """Checks that a downloaded file has the sizes and the classes of its catalogue entry."""
    for field in ("hidden_dim", "num_layers", "num_heads", "mlp_dim"):
        if getattr(checkpoint.config, field) != getattr(entry.config, field):
            raise ValueError(
                f"The downloaded file is not {entry.name}: {field} is {getattr(checkpoint.config, field)}, not "
                f"{getattr(entry.config, field)}. Delete the file from the cache. If the error occurs again, report it."
            )
    if entry.classes and checkpoint.classes not in (None, entry.classes):
        raise ValueError(f"The downloaded file is not {entry.name}: it has {checkpoint.classes} classes.")


def _declared_licence(folder, config, metadata):
    """The licence that a file or its folder declares, or `None`."""
    timm_settings = config.get("pretrained_cfg")
    declared = [config, timm_settings if isinstance(timm_settings, dict) else {}, metadata]
    licences = [checked_licence(settings.get("license")) for settings in declared]
    licences.append(folder and licence_of_card(folder / "README.md"))
    return next(filter(None, licences), None)


def _weight_files(path):
    """(folder with the JSON files, or `None` for an `.npz` file; paths of the weight files)"""
    path = pathlib.Path(path)
    is_file = path.is_file()
    folder = path.parent if is_file else path
    known = [path] if is_file else [path / name for name in WEIGHTS if (path / name).is_file()]
    files = known[:1] or sorted(path.glob("*.npz")) + sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        contents = ", ".join(sorted(file.name for file in path.iterdir())) or "nothing"
        raise ValueError(
            f"The folder {path} must contain one of {', '.join(WEIGHTS)}, or exactly one .npz or .safetensors file. It "
            f"contains: {contents}. Pass the path of the file, also of a .keras file."
        )
    head = folder / "task.weights.h5"  # KerasHub stores the head in a separate file.
    if files[0].name == "model.weights.h5" and head.is_file():
        files.append(head)
    return (None if is_file and path.suffix == ".npz" else folder), files


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
