"""`save_weights`: saves a model's weights in the layout of another project."""

import dataclasses
import json
import os
import pathlib

import keras

from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.atomic_files import replace_atomically
from keras_vit.checks import check_choice
from keras_vit.outputs import outputs_of
from keras_vit.preprocessing import preprocessing_layer, vision_model
from keras_vit.weights.assign import arrays_of, canonical_arrays, variables_of
from keras_vit.weights.containers.h5 import write_h5
from keras_vit.weights.containers.npz import write_npz
from keras_vit.weights.containers.safetensors import write_safetensors
from keras_vit.weights.formats import FORMATS
from keras_vit.weights.formats.format import ModelDescription, TextDescription
from keras_vit.weights.formats.text import WRITERS
from keras_vit.weights.loading import target_of
from keras_vit.weights.model_cards import CARD, Evaluation, check_card, model_card, remove_card
from keras_vit.weights.opening import SETTINGS_FILES, WEIGHTS

_WRITTEN = {name: layout for name, layout in FORMATS.items() if layout.write is not None}
_SPELLINGS = {"hf": "huggingface", "transformers": "huggingface", "big_vision": "google", "npz": "google"}
_READ_TOGETHER = (
    *(name for name in SETTINGS_FILES if name != "config.json"),
    *(*WEIGHTS, "task.weights.h5", "preprocessor.json"),
)
"""Files of all formats. If such a file is in the folder of the weights, a loader may read it together with them."""


def save_weights(model: keras.Model, path: str | os.PathLike, format: str, card: bool | Evaluation = False) -> None:
    """Saves a model's weights in the format of another project, so that the project's code can load them.

    The files in folders record a sigmoid of the classifier, for several labels per image. Those of timm and
    transformers also record the values of a regression (`keras_vit.set_output`). Other files cannot express values,
    so they are refused. A classifier of one class is read as one with a sigmoid.

    Google's files contain only arrays. They are read as those of a model without a sigmoid, unless there is one class.
    A sigmoid of several classes and another mean or standard deviation are refused. A warning names another resize,
    crop or interpolation than reading the file assumes. If a model neither resizes nor crops images, transformers and
    KerasHub do not resize them either. timm resizes them to the size of the model.

    Args:
        model: Model of this package, or a model that contains one. Of a `keras_vit.ImageTextModel`, both encoders and
            the tokenizer are saved, as `"huggingface"` or `"open_clip"`.
        path: For `"google"`, path of an `.npz` file. Otherwise, path of a folder, which is created if needed. The
            folder receives the weights and the project's configuration files. These files contain the kind of GELU, the
            LayerNorm epsilon and the image preparation. Existing files of the same names are replaced.
        format: Project that loads the files. `"google"`: vision_transformer and big_vision. `"timm"`:
            `timm.create_model("local-dir:<path>", pretrained=True)`. `"huggingface"`: `from_pretrained` of transformers
            5. `"keras_hub"`: `from_preset` of KerasHub.
        card: Whether a model card in the format of the Hugging Face Hub, `README.md`, is written in the folder of the
            files. It describes the architecture, the source and licence of the weights, the preprocessing, and how to
            load the files. To include measured metrics, pass a `keras_vit.Evaluation`. An existing `README.md` is
            replaced only if keras_vit wrote it. With `False`, the card that keras_vit wrote for the replaced files is
            removed, unless it was changed.

    Raises:
        FileExistsError: If the card would replace another `README.md`. Nothing is written.
        ImportError: If a card is written, and `huggingface_hub` is not installed. Nothing is written.
        ValueError: If the project cannot express the model; the message lists the reasons, and nothing is written.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", num_layers=1, classes=10)
    >>> keras_vit.save_weights(model, "tiny.npz", "google")  # doctest: +SKIP
    """
    text = _text_of(model)
    check_choice("format", format, _WRITTEN if text is None else WRITERS, _SPELLINGS)
    path = pathlib.Path(path)
    target = target_of(model)
    weights = canonical_arrays(model)
    if not isinstance(target.config, ViTConfig):
        raise ValueError(
            f"Files of other projects can only be written for Vision Transformers, and {model.name!r} is a "
            f"{target.config.title}. To save a .weights.h5 file, call model.save_weights."
        )
    if text is not None:
        _save_pair(weights, dataclasses.replace(_describe(model, target), text=text), path, format, card)
        return
    layout = _WRITTEN[format]
    _check_path(path, format, layout.file_suffix)
    description = _describe(model, target)
    if description.output not in (None, *layout.outputs):
        raise ValueError(
            f"Files of the format {format!r} cannot express that a model returns {description.output}: they would be "
            f"read as those of a classifier. Save the model as a .keras file (model.save), or without its head "
            f"(include_top=False)."
        )
    files = layout.write(weights, description)
    if layout.file_suffix:
        [arrays] = files.values()
        folder, main_file, files = path.parent, path.name, {path.name: arrays}
    else:
        folder, main_file = path, next(name for name in WEIGHTS if name in files)
        if description.licence and "config.json" in files:  # A copy, because another file may contain the dictionary.
            files["config.json"] = {**files["config.json"], "license": description.licence}
    check_card(card, folder / CARD, main_file)
    if card:
        transformers_class = files.get("config.json", {}).get("architectures", [None])[0]
        card_format = layout.card(target.config)
        files[CARD] = model_card(
            vision_model(model), card_format, main_file, card, target.classes, transformers_class=transformers_class
        )
    if not layout.file_suffix:
        _check_no_unrelated(path, files)
    _write(folder, files, main_file, description.licence)
    if not card:
        remove_card(folder / CARD, main_file)


def _text_of(model):
    """The `TextDescription` of an image-text model, or `None` for other models."""
    if not hasattr(model, "text_encoder"):
        return None
    weights = arrays_of(variables_of([*model.text_encoder.layers, model.similarity_layer]))
    tokenizer = model.tokenizer and (model.tokenizer.file_name, model.tokenizer.vocabulary)
    return TextDescription(model.text_config, weights, model.activation, tokenizer)


def _save_pair(weights, description, path, format, card):
    """Saves an image-text model in a folder."""
    if card:
        raise ValueError("Model cards are written for image encoders and classifiers only. Pass card=False.")
    _check_path(path, format, None)
    files = WRITERS[format](weights, description)
    if description.licence and "config.json" in files:
        files["config.json"]["license"] = description.licence
    if description.text.tokenizer is not None:
        name, contents = description.text.tokenizer
        files[name] = contents
    _check_no_unrelated(path, files)
    _write(path, files, next(name for name in WEIGHTS if name in files), description.licence)


def _check_path(path, format, file_suffix):
    if file_suffix and path.suffix != file_suffix:
        raise ValueError(f"The format {format!r} is a file that ends in {file_suffix}. Received: {os.fspath(path)!r}")
    endings = (".safetensors", ".npz", ".h5", ".bin", ".pth", ".json")
    if not file_suffix and (path.is_file() or path.suffix in endings):
        raise ValueError(f"The format {format!r} is a folder of files. Received: {os.fspath(path)!r}. Pass a folder.")


def _check_no_unrelated(path, files):
    unrelated = [name for name in _READ_TOGETHER if name not in files and (path / name).exists()]
    if unrelated:
        raise ValueError(
            f"The folder {os.fspath(path)!r} contains files of another model: {', '.join(unrelated)}. Programs "
            f"that load the saved weights would also read these files. Pass another folder, or remove the files."
        )


def _write(folder, files, main_file, licence):
    """Writes {name: contents} to a folder. A new folder is renamed after all its files are written.

    In an existing folder, files of the same names are replaced, the weights last.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        with replace_atomically(folder) as temporary:
            (temporary / folder.name).mkdir()
            _write_files(temporary / folder.name, files, licence)
        return
    weights_last = sorted(files, key=lambda name: name == main_file)
    with replace_atomically(*[folder / name for name in weights_last]) as temporary:
        _write_files(temporary, files, licence)


def _write_files(folder, files, licence=None):
    """Writes {name: contents}. Files of weights contain the licence if there is no `config.json`."""
    for name, contents in files.items():
        path = folder / name
        if isinstance(contents, bytes):
            path.write_bytes(contents)
        elif path.suffix == ".json":
            path.write_text(json.dumps(contents, indent=2), encoding="utf-8")
        elif name == CARD:
            path.write_text(contents, encoding="utf-8")
        elif path.suffix == ".npz":
            write_npz(path, contents, licence)
        elif path.suffix == ".h5":
            write_h5(path, contents)
        else:
            write_safetensors(path, contents, {"license": licence} if licence and "config.json" not in files else None)


def _describe(model, target):
    layer = preprocessing_layer(model)
    _, height, width, channels = vision_model(model).input_shape
    has_head = "predictions/kernel" in target.shapes
    image_size = (height, width) if None not in (height, width) else target.image_size or (224, 224)
    return ModelDescription(
        config=target.config,
        image_size=image_size,
        channels=channels,
        classes=target.classes,
        preprocessing=layer.pixel_settings,
        class_names=layer.class_names(target.classes),
        licence=(layer.origin or {}).get("licence"),
        output=next(iter(outputs_of(vision_model(model)).values())).kind if has_head else None,
    )
