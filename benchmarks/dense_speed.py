"""Measures EoMT-S and Depth Anything-S against transformers on torch: forward passes of an image in float32.

    KERAS_BACKEND=tensorflow python -m benchmarks.dense_speed

All contenders have the same random weights and the same image, 640 x 640 pixels for EoMT and 518 x 518 for Depth
Anything, and use all cores. "keras_vit" is the Keras model in a compiled graph, and "OpenVINO" is its file of
`keras_vit.export_model` in float32. The outputs are compared first. The contenders have turns; each row has the median
of the ratios of all rounds, and their quartiles. It needs the extra `peers`. Use a quiet machine.
"""

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


def eomt():
    config = transformers.EomtConfig(**_SMALL, num_blocks=3, id2label=dict(enumerate(map(str, range(133)))))
    return transformers.EomtForUniversalSegmentation(config), 640


def depth_anything():
    indices = {"out_indices": [3, 6, 9, 12], "reshape_hidden_states": False}
    backbone = transformers.Dinov2Config(**_SMALL, image_size=518, patch_size=14, **indices)
    return transformers.DepthAnythingForDepthEstimation(transformers.DepthAnythingConfig(backbone_config=backbone)), 518


def contenders(make, folder):
    """{name: function that computes the main output of a random image}"""
    torch.manual_seed(0)
    theirs, size = make()
    if hasattr(theirs, "attn_mask_probs"):
        theirs.attn_mask_probs.zero_()  # Published models do not mask the attention.
    theirs.eval().save_pretrained(folder / "theirs")
    model = keras_vit.from_pretrained(folder / "theirs", input_shape=(size, size, 3))
    name = "masks" if "masks" in model.output_names else "depth"
    path = folder / "model.xml"
    keras_vit.export_model(model, path, "openvino", tolerance=1e-3)  # The outputs of random weights are almost equal.
    pixels = np.random.default_rng(0).uniform(0, 255, (1, size, size, 3)).astype("float32")
    images = np.asarray(keras_vit.preprocess_input(pixels, model))
    rows, compute = torch.tensor(images.transpose(0, 3, 1, 2)), predictor(model)
    compiled = openvino_model(path, THREADS, INFERENCE_PRECISION_HINT="f32")

    def torch_output():
        with torch.inference_mode():
            outputs = theirs(pixel_values=rows)
        return outputs.masks_queries_logits.permute(0, 2, 3, 1) if name == "masks" else outputs.predicted_depth

    def keras_output():
        outputs = compute(images)
        return outputs["masks"] if name == "masks" else outputs[..., 0]

    return {"torch": torch_output, "keras_vit": keras_output, "OpenVINO": lambda: compiled(pixels)[name]}


def main():
    print("| model | contender | milliseconds | times as fast as torch |\n|---|---|--:|--:|")
    for make in (eomt, depth_anything):
        with tempfile.TemporaryDirectory() as folder:
            functions = contenders(make, pathlib.Path(folder))
        outputs = {name: np.asarray(compute()) for name, compute in functions.items()}
        for name, found in outputs.items():
            np.testing.assert_allclose(
                found, outputs["torch"], atol=1e-3 * np.abs(outputs["torch"]).max(), err_msg=name
            )
        seconds = {name: [] for name in functions}
        for _ in range(ROUNDS):
            for name, compute in functions.items():
                began = time.perf_counter()
                compute()
                seconds[name].append(time.perf_counter() - began)
                time.sleep(0.05)  # OpenVINO's threads wait actively for a while.
        for name, each in seconds.items():
            low, ratio, high = np.quantile(np.divide(seconds["torch"], each), [0.25, 0.5, 0.75])
            print(
                f"| {make.__name__} | {name} | {1000 * np.median(each):.0f} | {ratio:.2f} ({low:.2f} to {high:.2f}) |"
            )


if __name__ == "__main__":
    main()
