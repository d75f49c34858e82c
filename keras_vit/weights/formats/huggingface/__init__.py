"""transformers' layout, `.safetensors` with `config.json`: encoders, EoMT, Depth Anything, YOLOS and TIPSv2."""

import dataclasses
import re

from keras_vit.architectures.dense import DenseConfig, DetectorConfig
from keras_vit.outputs import Output
from keras_vit.weights.formats.format import OWN_FOLDER, CardFormat, Format
from keras_vit.weights.formats.huggingface import dense, detection, encoder, writing


def _recognises(file):
    is_encoder = any(re.search(r"embeddings\.patch_embeddings?\.(projection\.)?weight$", name) for name in file)
    return is_encoder or dense.kind_of(file) is not None or _is_tipsv2(file)


def _is_tipsv2(file):
    return "vision_encoder.register_tokens" in file and "text_encoder.token_embedding.weight" in file


def _describe(file, hints):
    if _is_tipsv2(file):
        settings = hints.settings["config.json"].get("vision_config") or {}
        return dataclasses.replace(dense.tipsv2_encoder(file, hints, settings), output=Output("embedding"))
    return encoder.describe(file, hints) if dense.kind_of(file) is None else dense.describe(file, hints)


def _write(weights, description):
    if isinstance(description.config, DetectorConfig):
        return detection.write(weights, description)
    is_dense = isinstance(description.config, DenseConfig)
    return (dense if is_dense else writing).write(weights, description)


_CODE = """
from transformers import AutoImageProcessor, {transformers_class}

model = {transformers_class}.from_pretrained(".")
processor = AutoImageProcessor.from_pretrained(".")
"""
FORMAT = Format(
    title="the Vision Transformers of transformers",
    recognises=_recognises,
    describe=_describe,
    settings_files=("config.json", "preprocessor_config.json", "processor_config.json"),
    write=_write,
    card=lambda config: CardFormat("transformers", "transformers", _CODE, OWN_FOLDER),
    outputs=("classes", "labels", "values", "masks", "depth", "boxes"),
)
