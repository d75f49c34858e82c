"""Checks which classes of transformers can be read, and that their outputs are right.

For each class, transformers builds and saves a small model with random weights, and `keras_vit.from_pretrained` reads
it. The outputs of both models are compared, at the size of the model and at another size that is not square. Exits with
1 if they differ. Command: make support-matrix
"""

import argparse
import collections
import inspect
import re
import sys
import tempfile
import typing

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel  # Before keras_vit: Triton must be loaded before TensorFlow.

import keras_vit
from benchmarks.support_page import TRANSFORMERS, write_part

SIZE, OTHER_SIZE = (32, 32), (72, 24)
TOLERANCE = 1e-5
"""Relative to the largest output."""
_TINY = {
    **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 36},
    **{"patch_size": 8, "image_size": 32, "id2label": {index: f"label {index}" for index in range(7)}},
}
_TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20, "vocab_size": 11}
_DECODER = {f"decoder_{name}": value for name, value in _TEXT.items() if name != "vocab_size"}
_FOUR_OUTPUTS = {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]}
_RELATIVE = {"use_relative_position_bias": True, **_FOUR_OUTPUTS}
_RECTANGLE = {"image_size": [32, 48]}
_REGISTERS = {"num_register_tokens": 3}
# {module of transformers.models: {name of a variant: its changes of the config}}
_MODULES: dict[str, dict[str, dict[str, typing.Any]]] = {
    "vit": {"": {}, "without biases of queries, keys and values": {"qkv_bias": False}},
    "deit": {"": {}},
    "vit_mae": {"": {"mask_ratio": 0.0, **_DECODER}},
    "vit_msn": {"": {}},
    "ijepa": {"": {}},
    "dinov2": {"": {"mlp_ratio": 2}, "SwiGLU": {"mlp_ratio": 3, "use_swiglu_ffn": True}},
    "dinov2_with_registers": {"": {"mlp_ratio": 2, **_REGISTERS}},
    "dinov3_vit": {
        "": _REGISTERS,
        "SwiGLU": {**_REGISTERS, "use_gated_mlp": True, "hidden_act": "silu"},
        "without biases of queries, keys and values": {**_REGISTERS, "query_bias": False, "value_bias": False},
    },
    "siglip": {"": {}},
    "siglip2": {"": {"num_patches": 16}},
    "clip": {"": {"projection_dim": 10}},
    "metaclip_2": {"": {"projection_dim": 10}},
    "beit": {"": _RELATIVE},
    "data2vec": {"": _RELATIVE},
    "yolos": {"": _RECTANGLE},
    "vitpose": {"": {}},
    "vitpose_backbone": {"": _RECTANGLE},
}
# {class of a config: (class of its backbone's config, changes of the backbone's config)}
_BACKBONES = {"VitPoseConfig": ("VitPoseBackboneConfig", _RECTANGLE)}
_LEFT_OUT = re.compile(r".*PreTrainedModel|Data2VecAudio.*|.*Text.*")
_TOKENS = {"include_top": False, "pooling": None}
# (pattern of names of classes, output that is compared, arguments of `from_pretrained`). The first match is used.
_OUTPUTS: tuple[tuple[str, typing.Callable, dict[str, typing.Any]], ...] = (
    (r".*ForImageClassification.*", lambda model, run: run(model).logits, {}),
    (r".*ForObjectDetection", lambda model, run: run(model).logits, {}),
    (r".*WithProjection", lambda model, run: run(model).image_embeds, {}),
    (r".*Backbone", lambda model, run: run(model).feature_maps[-1].flatten(2).transpose(1, 2), _TOKENS),
    (r"(CLIP|MetaClip2|Siglip2?)VisionModel", lambda model, run: run(model).pooler_output, {}),
    (r"Siglip2?Model", lambda model, run: run(model.vision_model).pooler_output, {}),
    (
        r"(CLIP|MetaClip2)Model",
        lambda model, run: model.visual_projection(run(model.vision_model).pooler_output),
        {},
    ),
    (r".*(MaskedImageModeling|PreTraining)", lambda model, run: run(model.base_model).last_hidden_state, _TOKENS),
    (r".*", lambda model, run: run(model).last_hidden_state, _TOKENS),
)


def classes(module):
    """The public classes of models in a module of transformers.models."""
    folder = getattr(transformers.models, module)
    names = [name for name in dir(folder) if inspect.isclass(getattr(folder, name, None))]
    models = [name for name in names if issubclass(getattr(folder, name), PreTrainedModel)]
    return [name for name in models if hasattr(transformers, name) and not _LEFT_OUT.fullmatch(name)]


def build(name, changes):
    """A small model of a class, with random weights."""
    model_class = getattr(transformers, name)
    config_class = model_class.config_class
    settings = {**_TINY, **changes}
    if "vision_config" in config_class.sub_configs:
        shared = {key: settings[key] for key in ("id2label", "projection_dim") if key in settings}
        settings = {"vision_config": settings, "text_config": _TEXT, **shared}
    if config_class.__name__ in _BACKBONES:
        backbone, backbone_changes = _BACKBONES[config_class.__name__]
        settings["backbone_config"] = getattr(transformers, backbone)(**{**_TINY, **backbone_changes})
    torch.manual_seed(0)
    model = model_class(config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # Some parameters are all zeros or ones.
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.05))
    return model


def compare(model):
    """Returns the largest difference of the outputs, divided by the largest output, or why the class was refused."""
    name = type(model).__name__
    output, arguments = next(rest for pattern, *rest in _OUTPUTS if re.fullmatch(pattern, name))
    arguments = {"classifier_activation": None, "family": "google", **arguments}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        try:
            return max(_difference(model, output, folder, size, arguments) for size in (SIZE, OTHER_SIZE))
        except ValueError as error:
            return str(error).replace(f"{folder}: ", "").replace(folder, "the model")


def _difference(model, output, folder, size, arguments):
    ours = keras_vit.from_pretrained(folder, input_shape=(*size, 3), **arguments)
    images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    with torch.no_grad():
        expected = output(model, lambda part: _run(part, images)).numpy()
    outputs = ours(images)
    found = np.asarray(outputs["objects"] if isinstance(outputs, dict) else outputs)
    if expected.ndim == 3:
        found = found[:, -expected.shape[1] :]  # A backbone returns the patches only.
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _run(model, images):
    """Outputs of a part of a model of transformers. No patch is masked, and positions are interpolated."""
    parameters = inspect.signature(model.forward).parameters
    options: dict[str, typing.Any] = {}
    if "interpolate_pos_encoding" in parameters and images.shape[1:3] != SIZE:
        options["interpolate_pos_encoding"] = True
    if "noise" in parameters:
        options["noise"] = torch.arange(images.shape[1] * images.shape[2] // 64).tile(2, 1)
    if "spatial_shapes" in parameters:
        return model(**patches(images, _TINY["patch_size"]))
    return model(pixel_values=torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), **options)


def patches(images, side):
    """Inputs of SigLIP 2 NaFlex for images (B, H, W, C): the pixels of each patch, a mask, and the grid of patches."""
    count, height, width, channels = images.shape
    rows, columns = height // side, width // side
    pixels = images.reshape(count, rows, side, columns, side, channels).transpose(0, 1, 3, 2, 4, 5)
    return {
        "pixel_values": torch.from_numpy(pixels.reshape(count, rows * columns, -1).copy()),
        "pixel_attention_mask": torch.ones((count, rows * columns), dtype=torch.int32),
        "spatial_shapes": torch.tensor([[rows, columns]] * count),
    }


def markdown(rows):
    """The part of the page. `rows` is {name of a class and its variant: difference or reason of the refusal}."""
    read = {title: result for title, result in rows.items() if not isinstance(result, str)}
    by_reason = collections.defaultdict(list)
    for title, reason in rows.items():
        if isinstance(reason, str):
            by_reason[re.split(r"(?<=\.) (?=[A-Z])", reason)[0]].append(title)
    lines = [
        "## Classes of transformers\n",
        f"This part was written with transformers {transformers.__version__}. For each class, the command builds a "
        f"small model with random weights. It compares the outputs at {SIZE[0]} x {SIZE[1]} pixels, the size of the "
        f"model, and at {OTHER_SIZE[0]} x {OTHER_SIZE[1]} pixels. The difference is the largest one, divided by the "
        f"largest output. Of a model with a text encoder or a decoder, the image encoder is loaded. EoMT, Depth "
        "Anything, TIPSv2-DPT, OWL-ViT and OWLv2 can be loaded, too: tests/peers/dense_test.py and "
        "tests/models/golden_dense_test.py compare them.\n",
        "| class | difference |\n|---|--:|",
        *(f"| {title} | {error:.0e} |" for title, error in read.items()),
        "\nThese classes cannot be loaded. If the reason is the classifier, the encoder can be loaded with "
        "`include_top=False`.\n",
        "| error | classes |\n|---|---|",
        *(f"| {reason} | {', '.join(titles)} |" for reason, titles in sorted(by_reason.items())),
    ]
    return "\n".join(lines) + "\n"


def main(arguments=None):
    """Returns the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.support_matrix_transformers", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--document", action="store_true", help="write the part of docs/support.md")
    options = parser.parse_args(arguments)
    rows: dict[str, float | str] = {}
    for module, variants in _MODULES.items():
        for variant, changes in variants.items():
            for name in classes(module):
                title = f"{name} ({variant})" if variant else name
                rows[title] = compare(build(name, changes))
                print(f"{title}: {rows[title]}", flush=True)
    if options.document:
        write_part(TRANSFORMERS, markdown(rows))
    wrong = [title for title, result in rows.items() if not isinstance(result, str) and not result <= TOLERANCE]
    refused = sum(isinstance(result, str) for result in rows.values())
    print(f"{len(rows) - refused} models can be loaded, {refused} are refused.")
    print(f"Loaded with wrong outputs: {', '.join(wrong) or 'none'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
