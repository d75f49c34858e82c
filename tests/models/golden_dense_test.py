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
from tests.test_case import TENSORFLOW, assert_close, canonical_weights, to_numpy

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "modern"
SCALE = 5
SIZES = ("", "_other")


def outputs(model, images, *layers):
    """The outputs of the layers, or of the model."""
    results = [model.get_layer(layer).output for layer in layers] or model.outputs
    return [to_numpy(each) for each in keras.tree.flatten(keras.Model(model.input, results)(images))]


@pytest.mark.parametrize("size", SIZES if TENSORFLOW else SIZES[:1])
@pytest.mark.parametrize(
    "name", ["depth_anything_hf", pytest.param("depth_anything_metric_hf", marks=pytest.mark.slow)]
)
def test_depth_anything(name, size, tmp_path):
    """As in published files, config.json does not contain settings of the encoder that have their defaults."""
    arrays = np.load(GOLDEN / name / "io.npz")
    images = arrays[f"images{size}"]
    source = shutil.copytree(GOLDEN / name, tmp_path / name)
    config = source / "config.json"
    config.write_text(config.read_text("utf-8").replace('"num_hidden_layers": 4,', ""), "utf-8")
    model = keras_vit.from_pretrained(source, input_shape=images.shape[1:])
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
@pytest.mark.parametrize(
    ("output", "layer", "name"),
    [
        ("depth", "depth", "depth"),
        pytest.param("normals", "predictions", "normals", marks=pytest.mark.slow),
        pytest.param("class_map", "predictions", "segmentation_logits", marks=pytest.mark.slow),
    ],
)
def test_tipsv2(output, layer, name, size):
    """At the second size, the grid is odd, so that maps and state differ in size."""
    arrays = np.load(GOLDEN / "tipsv2_dpt_hf" / "io.npz")
    images = arrays[f"images{size}"]
    model = keras_vit.from_pretrained(GOLDEN / "tipsv2_dpt_hf", output=output, input_shape=images.shape[1:])
    expected = arrays[f"{name}{size}"]
    found = outputs(model, images, layer)[0]
    assert_close((found[..., 0] if output == "depth" else found) / SCALE, expected / SCALE)
    assert {found.kind for found in keras_vit.describe(model).outputs.values()} == {output}


def test_what_files_do_not_show(tmp_path):
    with pytest.raises(ValueError, match="Pass output=, one of 'class_map', 'depth', 'normals'"):
        keras_vit.from_pretrained(GOLDEN / "tipsv2_dpt_hf")
    for name in ("tipsv2_dpt_hf", "depth_anything_metric_hf"):
        config = shutil.copytree(GOLDEN / name, tmp_path / name) / "config.json"
        config.write_text(config.read_text("utf-8").replace('"max_depth"', '"most"'), "utf-8")
        with pytest.raises(ValueError, match=r"config\.json must have max_depth, a depth in metres\. Received: None"):
            keras_vit.from_pretrained(config.parent, output="depth")


@functools.cache
def dinov2(folder):
    config = keras_vit.ViTConfig(8, 32, num_layers=4, num_heads=2, mlp_dim=64, layer_scale=1.0)
    keras_vit.save_weights(keras_vit.ViT(config, include_top=False, input_shape=(32, 32, 3)), folder, "huggingface")
    return folder


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["linear", "linear4", "dpt"])
def test_heads_of_dinov2(kind, size, tmp_path_factory):
    """The golden has the tokens, not the encoder."""
    encoder = dinov2(tmp_path_factory.getbasetemp() / "dinov2")
    arrays = np.load(GOLDEN / f"dinov2_depth_{kind}" / "io.npz")
    height, width = arrays[f"map_0{size}"].shape[1:3]
    images = np.zeros((1, 8 * height, 8 * width, 3), "float32")
    max_depth = 10 if kind == "dpt" else 80
    source = GOLDEN / f"dinov2_depth_{kind}"
    model = keras_vit.from_pretrained(source, encoder=encoder, max_depth=max_depth, input_shape=images.shape[1:])
    taps = [
        np.concatenate([arrays[f"class_{i}{size}"][:, None], arrays[f"map_{i}{size}"].reshape(1, -1, 32)], axis=1)
        for i in range(1 if kind == "linear" else 4)
    ]
    maps = model.get_layer("head")(images[:, ::8, ::8, :1].repeat(32, axis=-1), taps, images)
    after = ["head_output", "predictions"] if kind == "dpt" else ["predictions"]
    for layer in after:
        maps = model.get_layer(layer)(maps)
    if kind != "dpt":
        maps = model.get_layer("output_upsampling")(maps, maps)
    depth = to_numpy(model.get_layer("depth")(maps))[..., 0]
    assert_close(depth / SCALE**2, np.minimum(arrays[f"depth{size}"], max_depth) / SCALE**2)
    if kind == "linear":
        with pytest.raises(ValueError, match="Pass encoder="):
            keras_vit.from_pretrained(source, max_depth=80)
        with pytest.raises(ValueError, match="Pass max_depth=10 for NYU"):
            keras_vit.from_pretrained(source, encoder=encoder)


@pytest.mark.parametrize("num_taps", [1, 4])
def test_segmentation_heads_of_dinov2(num_taps, tmp_path, tmp_path_factory):
    """`BNHead` in NumPy: the normalised patches of the last blocks, a batch norm, and a linear layer."""
    encoder, rng = dinov2(tmp_path_factory.getbasetemp() / "dinov2"), np.random.default_rng(num_taps)
    w = {f"bn.{name}": rng.normal(size=32 * num_taps) for name in ("weight", "bias", "running_mean")}
    w |= {"bn.running_var": rng.uniform(0.5, 2, 32 * num_taps), "bn.num_batches_tracked": np.array([7.0])}
    w |= {"conv_seg.weight": rng.normal(size=(5, 32 * num_taps, 1, 1)), "conv_seg.bias": rng.normal(size=5)}
    arrays = {f"decode_head.{name}": array.astype("float32") for name, array in w.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "head.safetensors")
    model = keras_vit.from_pretrained(tmp_path / "head.safetensors", encoder=encoder, input_shape=(24, 40, 3))
    images, weights = rng.normal(size=(2, 24, 40, 3)).astype("float32"), canonical_weights(model)
    blocks = outputs(model, images, *(f"encoder_block_{i}" for i in range(4 - num_taps, 4)))
    maps = np.concatenate(
        [reference.norm(x.astype("float64"), weights, "encoder_norm")[:, 1:] for x in blocks], axis=-1
    )
    maps = (maps - w["bn.running_mean"]) / np.sqrt(w["bn.running_var"] + 1e-5) * w["bn.weight"] + w["bn.bias"]
    logits = maps @ w["conv_seg.weight"][:, :, 0, 0].T + w["conv_seg.bias"]
    found = outputs(model, images, "predictions")[0]
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
        painted = np.full(size, -1)
        for query in range(6):
            painted[inside[i, ..., query]] = query
        assert (painted == arrays[f"instance_{i}"]).all()
        assert (classes[i] == arrays[f"instance_labels_{i}"]).all()
        assert_close(scores[i], arrays[f"instance_scores_{i}"])
        # Classes 1 to 3 are stuff: transformers joins their segments.
        valid = np.flatnonzero(region_scores[i])
        stuff = {
            label: next(q for q in valid if region_classes[i, q] == label)
            for label in (1, 2, 3)
            if label in region_classes[i, valid]
        }
        joined = [stuff.get(region_classes[i, query], query) for query in range(6)]
        order = sorted({joined[query] for query in valid})
        expected = np.array([*(order.index(joined[query]) if query in valid else -1 for query in range(6)), -1])
        assert (expected[regions[i]] == arrays[f"panoptic_{i}"]).all()
        assert [region_classes[i, query] for query in order] == arrays[f"panoptic_labels_{i}"].tolist()
        assert_close(region_scores[i, order], arrays[f"panoptic_scores_{i}"])
