"""Checks what this package does with each setting of how images are prepared.

timm and transformers save a small model. For each value of a setting, the command writes it into the saved config, and
`keras_vit.load_weights` reads it. The other project and this package then prepare the same image. The result is one of:

* obeyed: the pixels of both are equal, and differ from those without the setting;
* no effect: the setting does not change the pixels of either;
* refused, warned: the error or the `LoadReport` names the setting;
* IGNORED: the pixels differ, and nothing names the setting. The page does not list the value, and the command exits
  with 1.

Command: make support-matrix
"""

import collections
import io
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import PIL.Image
import timm
import torch  # noqa: F401  Before keras_vit: Triton must be loaded before TensorFlow.
import transformers
from timm.data import create_transform, resolve_data_config

import keras_vit
from benchmarks.support_page import SETTINGS, write_part
from keras_vit.data.decoding import image_decoder

TOLERANCE = 2
"""Largest difference of a pixel, in levels from 0 to 255."""
OBEYED, NO_EFFECT, WARNED, REFUSED, IGNORED = "obeyed", "no effect", "warned", "refused", "IGNORED"
SIDE = 32
_SIZE = {"height": SIDE, "width": SIDE}
_LARGER = {"size": {"height": 40, "width": 48}, "do_center_crop": True, "crop_size": _SIZE}
_ABSENT = object()
"""In place of a value: the setting is not in the file. `None` is written as null."""
_DEFAULTS = {"size": 40, "crop_size": SIDE, "resample": _ABSENT}
_TYPES = ("ViT", "DINOv3ViT", "Siglip", "Beit", "DeiT", "CLIP", "Bit")
# {setting of preprocessor_config.json: its values, or pairs of a value and further settings}
TRANSFORMERS: dict[str, list] = {
    "do_resize": [True, False, None],
    "size": [
        *(SIDE, _SIZE, {"height": 40, "width": SIDE}, {"shortest_edge": SIDE}, {"longest_edge": SIDE}),
        ({"shortest_edge": SIDE, "longest_edge": 36}, {"do_center_crop": True, "crop_size": SIDE}),
    ],
    "default_to_square": [(value, {**_LARGER, "size": 40}) for value in (True, False, None)],
    "resample": [0, 1, 2, 3, 4, 5],  # transformers refuses null.
    "do_center_crop": [True, *[(value, {"size": 40, "crop_size": SIDE}) for value in (True, False)]],
    "crop_size": [(value, {**_LARGER, "crop_size": value}) for value in (SIDE, {"height": 24, "width": 40}, 56)],
    "do_rescale": [True, False, None],
    "rescale_factor": [1 / 255, 1 / 127.5, 1],
    "do_normalize": [True, False, None],
    "image_mean": [[0.1, 0.2, 0.3], [0.5, 0.5, 0.5], 0.3],
    "image_std": [[0.4, 0.5, 0.6], [0.5, 0.5, 0.5], 0.3],
    "do_pad": [False, True, (True, {"pad_size": {"height": 40, "width": 40}})],
    "pad_size": [None, _SIZE, ({"height": 40, "width": 40}, {"do_pad": True})],
    "do_flip_channel_order": [(True, {"image_processor_type": "MobileViTImageProcessor"}), False, None],
    "do_convert_rgb": [True, False, None],
    "do_reduce_labels": [(value, {"image_processor_type": "BeitImageProcessor"}) for value in (True, False, None)],
    "image_processor_type": [(f"{kind}ImageProcessor", _DEFAULTS) for kind in _TYPES] + ["ConvNextImageProcessor"],
    "crop_pct": [(value, {"image_processor_type": "ConvNextImageProcessor"}) for value in (0.5, 0.875, 1.0)],
    "processor_class": ["CLIPProcessor", "SiglipProcessor", None],
    "data_format": ["channels_first", "channels_last", None],
    "input_data_format": ["channels_last", None],
    "return_tensors": ["pt", "np", None],
    "device": ["cpu", None],
    "disable_grouping": [True, False, None],
    "image_seq_length": [16, 64, None],
}
_TEXTS = ["a", "b", None]
# {setting of pretrained_cfg in config.json: values}
TIMM: dict[str, list] = {
    "interpolation": ["bilinear", "bicubic", "nearest", "box", "hamming", "lanczos", "random"],
    "crop_pct": [1.0, 0.88, 0.5, 1.1, None],
    "crop_mode": ["center", "squash", "border", "other", None],
    "mean": [[0.1, 0.2, 0.3], [0.5, 0.5, 0.5], [0.3, 0.3, 0.3]],
    "std": [[0.4, 0.5, 0.6], [0.5, 0.5, 0.5], [0.3, 0.3, 0.3]],
    "input_size": [[3, SIDE, SIDE], [3, 48, 48], [3, 64, 64]],
    "test_input_size": [[3, 40, 40], [3, 48, 48], None],
    "test_crop_pct": [0.5, 1.0, None],
    "min_input_size": [[3, 16, 16], [3, 24, 24], None],
    "fixed_input_size": [True, False],
    "pool_size": [[4, 4], [2, 2], None],
    "label_offset": [0, 1, 2],
    "num_classes": [3, 5, 1000],
    "first_conv": ["patch_embed.proj", "conv1", None],
    "classifier": ["head", "fc", None],
    "custom_load": [True, False],
    "tag": ["augreg_in1k", "in21k", None],
    "license": ["mit", "apache-2.0", None],
    **dict.fromkeys(("file", "url", "hf_hub_id", "hf_hub_filename", "source", "description", "origin_url"), _TEXTS),
    **dict.fromkeys(("paper_name", "paper_ids", "notes", "architecture"), _TEXTS),
    "test_pool_size": [[4, 4], [2, 2], None],
    "state_dict": [{}, {"a": 1}, None],
}
PROBLEM_TYPES = [None, "single_label_classification", "multi_label_classification", "regression"]
TOLERANCE_OF_SCORES = 1e-5


def image():
    """A picture of noise, 43 x 61. Its contrast is low, so that no interpolation exceeds the range of the pixels.

    The long side of a resized image is not an integer, so that its rounding is compared, too. The margins of a crop
    are not 3 or 7 pixels, for which transformers' centre is one pixel away from that of torchvision.
    """
    return np.random.default_rng(0).integers(64, 192, (43, 61, 3)).astype("uint8")


class Project:
    """A small model that another project saved.

    Args:
        folder: Folder of the saved model.
        file: Name of the file with the settings.
    """

    def __init__(self, folder, file):
        self.folder, self.file = pathlib.Path(folder), file
        self.contents = json.loads((self.folder / file).read_text())
        self.model = keras_vit.from_pretrained(folder, input_shape=(None, None, 3))

    def changed(self, changes):
        """The contents of the file with other settings."""
        return _present({**self.contents, **changes})

    def result(self, name, value, others):
        """What this package does with a value of a setting."""
        expected = self.pixels(self.changed({**others, name: value}))
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "model"
            shutil.copytree(self.folder, copy)
            (copy / self.file).write_text(json.dumps(self.changed({**others, name: value})))
            try:
                report = keras_vit.load_weights(self.model, copy)
            except ValueError as error:
                return REFUSED if name in str(error).replace(str(copy), "") else IGNORED
        if name in report.ignored:
            return WARNED
        if expected is None or difference(self.model, expected) > TOLERANCE:
            return IGNORED
        without = self.pixels(self.changed({**others, name: _ABSENT}))
        is_same = without is not None and without.shape == expected.shape and np.array_equal(without, expected)
        return NO_EFFECT if is_same else OBEYED


class Transformers(Project):
    """A model with the layout of transformers. The settings are in `preprocessor_config.json`."""

    def __init__(self, folder):
        config = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 36}
        config |= {"patch_size": 8, "image_size": SIDE, "num_labels": 3}
        transformers.ViTForImageClassification(transformers.ViTConfig(**config)).save_pretrained(folder)
        transformers.ViTImageProcessor(size=_SIZE, image_mean=[0.3, 0.4, 0.5]).save_pretrained(folder)
        super().__init__(folder, "preprocessor_config.json")

    def pixels(self, settings):
        """The pixels that transformers makes of the image. `None`: transformers refuses the settings."""
        settings = dict(settings)
        kind = settings.pop("image_processor_type", "ViTImageProcessor")
        try:
            # Pillow resizes the image. The torch processor differs from it by some levels.
            processor = getattr(transformers, f"{kind}Pil", None) or getattr(transformers, kind)
            pixels = processor(**settings)(PIL.Image.fromarray(image()), return_tensors="np")["pixel_values"][0]
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels


class Timm(Project):
    """A model with timm's layout. The settings are in `pretrained_cfg` of `config.json`."""

    def __init__(self, folder):
        size = {"img_size": SIDE, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 3, "num_classes": 3}
        model = timm.create_model("vit_tiny_patch16_224", **size)
        data = {"crop_pct": 0.88}
        timm.models.save_for_hf(model, folder, model_args=size, data_config=data, safe_serialization=True)
        super().__init__(folder, "config.json")

    def changed(self, changes):
        config = {name: value for name, value in self.contents.items() if name != "num_classes"}
        return {**config, "pretrained_cfg": _present({**config["pretrained_cfg"], **changes})}

    def pixels(self, settings):
        """The pixels that timm makes of the image. `None`: timm refuses the settings."""
        data = resolve_data_config(pretrained_cfg=settings["pretrained_cfg"])
        try:
            return create_transform(**data)(PIL.Image.fromarray(image())).numpy().transpose(1, 2, 0)
        except (ValueError, TypeError, KeyError):
            return None


def difference(model, expected):
    """The largest difference between the pixels of this package and the expected ones, in levels from 0 to 255."""
    protocol, pixels = keras_vit.describe(model).pixels, image()
    if protocol["resize"] is not None:
        buffer = io.BytesIO()
        PIL.Image.fromarray(pixels).save(buffer, "PNG")
        pixels = np.asarray(image_decoder(model, expected.shape[:2])(buffer.getvalue()))
    found = keras_vit.preprocess_input(pixels, model)
    if found.shape != expected.shape:
        return np.inf
    return np.abs((found - expected) * np.asarray(protocol["std"])).max() * 255


def _present(settings):
    return {name: value for name, value in settings.items() if value is not _ABSENT}


def check(project, values):
    """{setting: [(text of a value, result)]}"""
    rows = collections.defaultdict(list)
    for name, choices in values.items():
        for choice in choices:
            value, others = choice if isinstance(choice, tuple) else (choice, {})
            is_repeated = any(shown == json.dumps(value) for shown, _ in rows[name])
            shown = f"{json.dumps(value)} with {json.dumps(others)}" if is_repeated and others else json.dumps(value)
            rows[name].append((shown, project.result(name, value, others)))
            print(f"{name}={shown}: {rows[name][-1][1]}", flush=True)
    return dict(rows)


def check_problem_types(project):
    """As `check`, for `problem_type` in config.json. The scores are compared with those of transformers' pipeline."""
    config = json.loads((project.folder / "config.json").read_text())
    picture = image()[:SIDE, :SIDE]
    cells, without = [], None
    for kind in PROBLEM_TYPES:
        (project.folder / "config.json").write_text(json.dumps({**config, "problem_type": kind}))
        pipeline = transformers.pipeline("image-classification", str(project.folder), top_k=3)
        scores = {answer["label"]: answer["score"] for answer in pipeline(PIL.Image.fromarray(picture))}
        expected = np.array([scores[name] for name in sorted(scores)])
        without = expected if without is None else without
        model = keras_vit.from_pretrained(project.folder)
        found = np.asarray(model(keras_vit.preprocess_input(picture[None], model)))[0]
        result = NO_EFFECT if np.array_equal(expected, without) else OBEYED
        is_right = np.abs(found - expected).max() < TOLERANCE_OF_SCORES
        cells.append((json.dumps(kind), result if is_right else IGNORED))
        print(f"problem_type={kind}: {cells[-1][1]}", flush=True)
    return {"problem_type": cells}


def markdown(title, rows):
    """A table with one row for each setting, and one column for each result."""
    results = (OBEYED, NO_EFFECT, WARNED, REFUSED)
    lines = [f"### {title}\n", f"| setting | {' | '.join(results)} |", f"|---|{'---|' * len(results)}"]
    for name, cells in rows.items():
        texts = [", ".join(f"`{value}`" for value, found in cells if found == result) for result in results]
        lines.append(f"| `{name}` | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def matrix():
    """{title of a table: {setting: [(value, result)]}}"""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        processor, timms = Transformers(folder), Timm(other)
        return {
            "transformers: preprocessor_config.json": check(processor, TRANSFORMERS),
            "transformers: config.json": check_problem_types(processor),
            "timm: pretrained_cfg in config.json": check(timms, TIMM),
        }


def ignored(tables):
    """The settings that are ignored without a word: [(title of a table, setting, value)]"""
    cells = [(title, name, cell) for title, rows in tables.items() for name, cells in rows.items() for cell in cells]
    return [(title, name, value) for title, name, (value, result) in cells if result == IGNORED]


def document(tables):
    """The part of the page."""
    lines = [
        "## Settings of the preparation of images\n",
        f"This part was written with transformers {transformers.__version__} and timm {timm.__version__}. For each "
        f"value of a setting, the command writes the value into the config of a small model, and loads the model. It "
        f"then prepares an RGB image of random pixels with this package and with the other project. A setting is "
        f"*obeyed* if the pixels of both differ by at most {TOLERANCE} of 255 levels, and the setting changes them. It "
        f"has *no effect* if the pixels of the other project are the same without it, for example because it is the "
        f"default, or because it only changes images that are not RGB, as `do_convert_rgb` does. A *warned* setting "
        f"has no effect in this package: a logged warning and `LoadReport.ignored` name it. A "
        f"*refused* value raises an error that names the setting. For `problem_type`, the scores are compared instead "
        f"of the pixels.\n",
        *(markdown(title, rows) for title, rows in tables.items()),
    ]
    return "\n".join(lines)


def main():
    """Writes the part of docs/support.md. Returns the process's exit status."""
    tables = matrix()
    write_part(SETTINGS, document(tables))
    wrong = ignored(tables)
    print(f"Ignored without a word: {wrong or 'none'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
