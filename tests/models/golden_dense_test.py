"""Files of heads for pixels give models with their owners' outputs. See tests/golden/README.md.

The values reach 25, and float32 has 7 digits, so values are divided by `SCALE` before they are compared.
"""

import functools
import pathlib
import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.heads import segments
from keras_vit.weights.formats import dense
from tests.reference import vit as reference
from tests.test_case import TENSORFLOW, assert_close, canonical_weights, rest_slow, to_numpy

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "modern"
SCALE = 5
SIZES = ("", "_other")


def outputs(model, images, *layers):
    """The outputs of the layers, or of the model."""
    results = [model.get_layer(layer).output for layer in layers] or model.outputs
    return [to_numpy(each) for each in keras.tree.flatten(keras.Model(model.input, results)(images))]


@pytest.mark.parametrize("size", SIZES if TENSORFLOW else SIZES[:1])
@pytest.mark.parametrize("name", rest_slow(["depth_anything_hf", "depth_anything_metric_hf"]))
def test_depth_anything(name, size, tmp_path):
    """As in published files, config.json does not contain settings of the encoder that have their defaults."""
    arrays = np.load(GOLDEN / name / "io.npz")
    images = arrays[f"images{size}"]
    config = shutil.copytree(GOLDEN / name, tmp_path / name) / "config.json"
    config.write_text(config.read_text("utf-8").replace('"num_hidden_layers": 4,', ""), "utf-8")
    model = keras_vit.from_pretrained(config.parent, input_shape=images.shape[1:])
    assert_close(outputs(model, images)[0][..., 0] / SCALE, arrays[f"depth{size}"] / SCALE)
    units = ["metres"] if "metric" in name else None
    assert keras_vit.describe(model).outputs == {"depth": keras_vit.Output("depth", units=units)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["depth_anything_3_mono", "depth_anything_3_metric"])
def test_depth_anything_3(name, size, monkeypatch):
    """The owners take the quantile for the sky over a batch, and this package over an image."""
    monkeypatch.setitem(dense.TAPS, 5, (0, 2, 3, 4))
    arrays = np.load(GOLDEN / name / "io.npz")
    images = arrays[f"images{size}"]
    model = keras_vit.from_pretrained(GOLDEN / name, input_shape=images.shape[1:], num_heads=2, grid_size=(4, 4))
    logits, sky, depth = (each[..., 0] for each in outputs(model, images, "predictions", "sky_predictions", "depth"))
    assert_close(np.exp(logits) / SCALE**2, arrays[f"depth_raw{size}"] / SCALE**2)
    assert_close(np.maximum(sky, 0), arrays[f"sky{size}"])
    assert_close(depth / SCALE, arrays[f"depth_one_by_one{size}"] / SCALE)
    described = keras_vit.describe(model)
    assert described.config.focal_length == (300 if "metric" in name else None)
    assert described.outputs["depth"].units is None  # It depends on the focal length of the camera.


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("output", rest_slow(["depth", "normals", "class_map"]))
def test_tipsv2(output, size):
    """At the second size, the grid is odd, so that maps and state differ in size."""
    arrays = np.load(GOLDEN / "tipsv2_dpt_hf" / "io.npz")
    images = arrays[f"images{size}"]
    model = keras_vit.from_pretrained(GOLDEN / "tipsv2_dpt_hf", output=output, input_shape=images.shape[1:])
    expected = arrays[{"class_map": "segmentation_logits"}.get(output, output) + size]
    [found] = outputs(model, images, "depth" if output == "depth" else "predictions")
    assert_close(found.reshape(expected.shape) / SCALE, expected / SCALE)
    assert {found.kind for found in keras_vit.describe(model).outputs.values()} == {output}


def test_what_files_do_not_show(tmp_path):
    with pytest.raises(ValueError, match="Pass output=, one of 'class_map', 'depth', 'normals'"):
        keras_vit.from_pretrained(GOLDEN / "tipsv2_dpt_hf")
    for name in ("tipsv2_dpt_hf", "depth_anything_metric_hf"):
        config = shutil.copytree(GOLDEN / name, tmp_path / name) / "config.json"
        config.write_text(config.read_text("utf-8").replace('"max_depth"', '"most"'), "utf-8")
        with pytest.raises(ValueError, match=r"config\.json must have max_depth, a depth in metres\. Received: None"):
            keras_vit.from_pretrained(config.parent, output="depth")


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory):
    """The folder of an encoder."""
    config = keras_vit.ViTConfig(8, 32, num_layers=4, num_heads=2, mlp_dim=64, layer_scale=1.0)
    folder = tmp_path_factory.mktemp("encoders") / "dinov2"
    keras_vit.save_weights(keras_vit.ViT(config, include_top=False, input_shape=(32, 32, 3)), folder, "huggingface")
    return folder


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["linear", "linear4", "dpt"])
def test_heads_of_dinov2(kind, size, dinov2):
    """The golden has the tokens, not the encoder."""
    source, is_dpt = GOLDEN / f"dinov2_depth_{kind}", kind == "dpt"
    arrays, max_depth = np.load(source / "io.npz"), 10 if is_dpt else 80
    shape = arrays[f"map_0{size}"].shape
    images = np.zeros((1, 8 * shape[1], 8 * shape[2], 3), "float32")
    model = keras_vit.from_pretrained(source, encoder=dinov2, max_depth=max_depth, input_shape=images.shape[1:])
    names = [f"{i}{size}" for i in range(1 if kind == "linear" else 4)]
    taps = [np.hstack([arrays[f"class_{i}"][:, None], arrays[f"map_{i}"].reshape(1, -1, 32)]) for i in names]
    maps = model.get_layer("head")(np.zeros(shape, "float32"), taps, images)
    maps = model.get_layer("predictions")(model.get_layer("head_output")(maps) if is_dpt else maps)
    maps = maps if is_dpt else model.get_layer("output_upsampling")(maps, maps)
    depth = to_numpy(model.get_layer("depth")(maps))[..., 0]
    assert_close(depth / SCALE**2, np.minimum(arrays[f"depth{size}"], max_depth) / SCALE**2)
    if kind == "linear":
        for missing, given in (("encoder=", {"max_depth": 80}), ("max_depth=10 for NYU", {"encoder": dinov2})):
            with pytest.raises(ValueError, match=f"Pass {missing}"):
                keras_vit.from_pretrained(source, **given)


@pytest.mark.parametrize("num_taps", [1, 4])
def test_segmentation_heads_of_dinov2(num_taps, dinov2, tmp_path):
    """`BNHead` in NumPy: the normalised patches of the last blocks, a batch norm, and a linear layer."""
    rng = np.random.default_rng(num_taps)
    w = {f"bn.{name}": rng.normal(size=32 * num_taps) for name in ("weight", "bias", "running_mean")}
    w |= {"bn.running_var": rng.uniform(0.5, 2, 32 * num_taps), "bn.num_batches_tracked": np.array([7.0])}
    w |= {"conv_seg.weight": rng.normal(size=(5, 32 * num_taps, 1, 1)), "conv_seg.bias": rng.normal(size=5)}
    arrays = {f"decode_head.{name}": array.astype("float32") for name, array in w.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "head.safetensors")
    model = keras_vit.from_pretrained(tmp_path / "head.safetensors", encoder=dinov2, input_shape=(24, 40, 3))
    images, weights = rng.normal(size=(2, 24, 40, 3)).astype("float32"), canonical_weights(model)
    blocks = np.float64(outputs(model, images, *(f"encoder_block_{i}" for i in range(4 - num_taps, 4))))
    maps = np.concatenate([*reference.norm(blocks, weights, "encoder_norm")[:, :, 1:]], axis=-1)
    maps = (maps - w["bn.running_mean"]) / np.sqrt(w["bn.running_var"] + 1e-5) * w["bn.weight"] + w["bn.bias"]
    logits = maps @ w["conv_seg.weight"][:, :, 0, 0].T + w["conv_seg.bias"]
    [found] = outputs(model, images, "predictions")
    assert_close(found.reshape(logits.shape) / SCALE**2, logits / SCALE**2)
    assert model(images).shape == (2, 24, 40, 5)


@functools.cache
def eomt():
    return keras_vit.from_pretrained(GOLDEN / "eomt_hf"), dict(np.load(GOLDEN / "eomt_hf" / "io.npz"))


@pytest.mark.each_backend
def test_eomt():
    model, arrays = eomt()
    masks, objects = outputs(model, arrays["images"])
    assert_close(objects, arrays["classes"])
    assert_close(masks / SCALE**2, arrays["masks"].transpose(0, 2, 3, 1) / SCALE**2)
    kinds = {name: output.kind for name, output in keras_vit.describe(model).outputs.items()}
    assert kinds == {"masks": "masks", "predictions": "objects"}


@pytest.mark.each_backend
def test_masked_attention():
    """In training, the attention is masked until it is annealed, and the predictions of all blocks are returned."""
    model, arrays = eomt()
    head = model.get_layer("head")
    head.annealing_steps = 1000
    found = {name: to_numpy(each) for name, each in model(arrays["images"], training=True).items()}
    assert found["objects"].shape == (2, 18, 6)
    assert_close(found["objects"][:, -6:], arrays["classes_masked"])
    assert_close(found["masks"][..., -6:] / SCALE**2, arrays["masks_masked"].transpose(0, 2, 3, 1) / SCALE**2)
    head._num_calls.assign(1000)
    assert_close(to_numpy(model(arrays["images"], training=True)["objects"])[:, -6:], arrays["classes"])
    head.annealing_steps = None


def test_segments():
    """transformers crops the padding, which is at the right, from the masks of these images of 64 x 37 pixels."""
    _, arrays = eomt()
    masks, objects, size = arrays["masks"].transpose(0, 2, 3, 1), arrays["classes"], (64, 37)
    full = segments.resized(masks, (32, 32))
    semantic = segments.resized(segments.semantic_scores(full, objects), size)
    assert (to_numpy(semantic).argmax(axis=-1) == arrays["semantic"]).all()
    full = segments.resized(full[:, :, :18], size)
    inside, classes, scores = map(np.asarray, segments.instances(full, objects))
    found = segments.panoptic(full, objects, threshold=0.2, overlap=0.1)
    regions, region_classes, region_scores = map(np.asarray, found)
    for i in range(2):
        last = (inside[i] * np.arange(1, 7)).max(axis=-1) - 1  # Later queries are painted over earlier ones.
        assert (last == arrays[f"instance_{i}"]).all()
        assert (classes[i] == arrays[f"instance_labels_{i}"]).all()
        assert_close(scores[i], arrays[f"instance_scores_{i}"])
        # Classes 1 to 3 are stuff: transformers joins their segments with the first one.
        valid, labels = np.flatnonzero(region_scores[i]), region_classes[i]
        joined = {q: next(p for p in valid if p == q or 1 <= labels[p] == labels[q] <= 3) for q in valid}
        order = sorted({*joined.values()})
        expected = np.array([order.index(joined[q]) if q in joined else -1 for q in [*range(6), -1]])
        assert (expected[regions[i]] == arrays[f"panoptic_{i}"]).all()
        assert labels[order].tolist() == arrays[f"panoptic_labels_{i}"].tolist()
        assert_close(region_scores[i, order], arrays[f"panoptic_scores_{i}"])
