"""transformers' layout, `.safetensors` with `config.json`: encoders, EoMT, Depth Anything and TIPSv2-DPT."""

import re

from keras_vit.architectures.dense import DenseConfig
from keras_vit.weights.formats.format import OWN_FOLDER, CardFormat, Format
from keras_vit.weights.formats.huggingface import dense, encoder, writing


def _recognises(file):
    is_encoder = any(re.search(r"embeddings\.patch_embeddings?\.(projection\.)?weight$", name) for name in file)
    return is_encoder or dense.kind_of(file) is not None


def _describe(file, hints):
    return encoder.describe(file, hints) if dense.kind_of(file) is None else dense.describe(file, hints)


def _write(weights, description):
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
    outputs=("classes", "labels", "values", "masks", "depth"),
)
