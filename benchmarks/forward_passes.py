"""Measures models of transformers against ours: forward passes on the CPU in float32.

    KERAS_BACKEND=tensorflow python -m benchmarks.forward_passes eomt depth_anything clip siglip

The models are EoMT-S (640 x 640 pixels), Depth Anything-S (518 x 518), CLIP B/32 and SigLIP B/16 (224 x 224 pixels, and
texts of 77 and 64 tokens). All contenders compute the same input, with all cores: "torch" is transformers, "keras_vit"
our Keras model, "OpenVINO" our file of `keras_vit.export_model`, and "KerasHub" the encoders of KerasHub, which get
random weights. The others have the same random weights, and their outputs are compared first. The contenders have
turns; a row has the median of the ratios of all rounds, and their quartiles. It needs the extra `peers`. Use a quiet
machine.
"""

import argparse
import functools
import pathlib
import tempfile
import time

import numpy as np
import timm  # noqa: F401 (It must be imported before TensorFlow, which would crash otherwise.)
import torch
import transformers

import keras_vit
from benchmarks.runtimes import openvino_model
from keras_vit.inference import predictor

ROUNDS, THREADS = 15, torch.get_num_threads()
_SMALL = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6}
_IMAGES, _TEXTS = 8, 32
"""Number of images and texts of CLIP and SigLIP in a batch"""


def eomt(folder):
    config = transformers.EomtConfig(**_SMALL, num_blocks=3, id2label=dict(enumerate(map(str, range(133)))))
    theirs = transformers.EomtForUniversalSegmentation(config)
    theirs.attn_mask_probs.zero_()  # Published models do not mask the attention.
    names = {"masks": lambda outputs: outputs.masks_queries_logits.permute(0, 2, 3, 1)}
    return {"EoMT-S": _dense(theirs, 640, names, folder)}


def depth_anything(folder):
    indices = {"out_indices": [3, 6, 9, 12], "reshape_hidden_states": False}
    backbone = transformers.Dinov2Config(**_SMALL, image_size=518, patch_size=14, **indices)
    theirs = transformers.DepthAnythingForDepthEstimation(transformers.DepthAnythingConfig(backbone_config=backbone))
    return {"Depth Anything-S": _dense(theirs, 518, {"depth": lambda outputs: outputs.predicted_depth}, folder)}


def _dense(theirs, size, outputs, folder):
    """{contender: function that computes the main output of a random image}"""
    [(name, output_of)] = outputs.items()
    theirs.eval().save_pretrained(folder)
    model = keras_vit.from_pretrained(folder, input_shape=(size, size, 3))
    path = folder / "model.xml"
    keras_vit.export_model(model, path, "openvino", tolerance=1e-3)  # The outputs of random weights are almost equal.
    pixels = np.random.default_rng(0).uniform(0, 255, (1, size, size, 3)).astype("float32")
    images = np.asarray(keras_vit.preprocess_input(pixels, model))
    rows, compute = torch.tensor(images.transpose(0, 3, 1, 2)), predictor(model)
    compiled = openvino_model(path, THREADS, INFERENCE_PRECISION_HINT="f32")

    def ours():
        outputs = compute(images)
        return outputs["masks"] if name == "masks" else outputs[..., 0]

    return {
        "torch": lambda: output_of(theirs(pixel_values=rows)),
        "keras_vit": ours,
        "OpenVINO": lambda: compiled(pixels)[name],
    }


def clip(folder):
    from keras_hub.models import CLIPTextEncoder, CLIPVisionEncoder

    sizes = {"num_layers": 12, "intermediate_activation": "quick_gelu"}
    image = {"patch_size": 32, "hidden_dim": 768, "num_heads": 12, "intermediate_dim": 3072, **sizes}
    text = {"vocabulary_size": 49408, "embedding_dim": 512, "hidden_dim": 512, "num_heads": 8, **sizes}
    hub = CLIPVisionEncoder(**image), CLIPTextEncoder(**text, intermediate_dim=2048)
    config = transformers.CLIPConfig(text_config={"eos_token_id": 2})
    return _two_towers("CLIP B/32", transformers.CLIPModel(config), hub, 77, folder)


def siglip(folder):
    from keras_hub.models import SigLIPTextEncoder, SigLIPVisionEncoder

    sizes = {"hidden_dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072}
    hub = (
        SigLIPVisionEncoder(patch_size=16, **sizes),
        SigLIPTextEncoder(32000, 768, **sizes, max_sequence_length=64, projection_dim=768),
    )
    return _two_towers("SigLIP B/16", transformers.SiglipModel(transformers.SiglipConfig()), hub, 64, folder)


def _two_towers(title, theirs, hub, length, folder):
    """{title of an encoder: {contender: function}} for both encoders."""
    theirs.eval().save_pretrained(folder)
    model, rng = keras_vit.ImageTextModel.from_pretrained(folder), np.random.default_rng(0)
    images = rng.normal(size=(_IMAGES, 224, 224, 3)).astype("float32")
    ids = rng.integers(3, 30_000, (_TEXTS, length)).astype("int32")
    rows, tokens = torch.tensor(images.transpose(0, 3, 1, 2)), torch.tensor(ids, dtype=torch.int64)
    encoders = predictor(model.image_encoder), predictor(model.text_encoder)
    inputs = images, {"token_ids": ids}
    if title.startswith("SigLIP"):
        inputs = images, ids
    hub_image, hub_text = (functools.partial(predictor(each), given) for each, given in zip(hub, inputs, strict=True))
    return {
        f"{title}, image": {
            "torch": lambda: theirs.get_image_features(rows).pooler_output,
            "keras_vit": lambda: encoders[0](images),
            "KerasHub": hub_image,
        },
        f"{title}, text": {
            "torch": lambda: theirs.get_text_features(tokens).pooler_output,
            "keras_vit": lambda: encoders[1](ids),
            "KerasHub": hub_text,
        },
    }


MODELS = {each.__name__: each for each in (eomt, depth_anything, clip, siglip)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", choices=MODELS, default=list(MODELS))
    print("| model | contender | milliseconds | times as fast as torch |\n|---|---|--:|--:|")
    for name in parser.parse_args().models:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            for title, contenders in MODELS[name](pathlib.Path(folder)).items():
                _measure(title, contenders)


def _measure(title, contenders):
    outputs = {name: np.asarray(compute()) for name, compute in contenders.items() if name != "KerasHub"}
    for name, found in outputs.items():
        np.testing.assert_allclose(found, outputs["torch"], atol=1e-3 * np.abs(outputs["torch"]).max(), err_msg=name)
    seconds = {name: [] for name in contenders}
    for round_ in range(ROUNDS + 1):
        for name, compute in contenders.items():
            began = time.perf_counter()
            compute()
            if round_:
                seconds[name].append(time.perf_counter() - began)
            time.sleep(0.05)  # OpenVINO's threads wait actively for a while.
    for name, each in seconds.items():
        low, ratio, high = np.quantile(np.divide(seconds["torch"], each), [0.25, 0.5, 0.75])
        times = f"{1000 * np.median(each):.0f} | {ratio:.2f} ({low:.2f} to {high:.2f})"
        print(f"| {title} | {name} | {times} |", flush=True)


if __name__ == "__main__":
    main()
