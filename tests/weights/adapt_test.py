"""Weights are fitted to other sizes; the results equal SciPy, `keras_vit.resampling` and the original outputs."""

import numpy as np
import pytest
import scipy.ndimage

import keras_vit
from keras_vit.resampling import resize_grid, resize_patches
from keras_vit.weights.adapt import Target, adapt, adapt_channels, adapt_preprocessing
from keras_vit.weights.checkpoint import Checkpoint
from tests.test_case import assert_close, canonical_weights, rest_slow, to_numpy
from tests.weights.converter_case import CONFIG, make, save

POSITIONS, KERNEL, BIAS = "position_embedding/embedding", "patch_embedding/kernel", "patch_embedding/bias"
ONE_LAYER = CONFIG.replace(num_layers=1)
TIMM = ONE_LAYER.replace(mlp="gelu_exact")
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.fixture(scope="session")
def google(saved):
    """Function (pooling) that returns (weights of a model, path of its file, settings missing from the file)."""
    return lambda pooling="token": (*saved(config=ONE_LAYER, pooling=pooling), {"grid_size": (2, 3)})


def _adapted(model):
    return canonical_weights(model), keras_vit.describe(model).adaptations


def _assert_others_are_kept(found, weights, changed):
    assert found.keys() == weights.keys()
    for path in weights.keys() - set(changed):
        np.testing.assert_array_equal(found[path], weights[path], err_msg=path)


@pytest.mark.parametrize("case", rest_slow([((8, 21), "avg"), ((12, 6), "token"), ((20, 9), "token")]))
def test_positions_of_google_are_zoomed(case, google):
    size, pooling = case
    weights, path, hints = google(pooling)
    found, adaptations = _adapted(keras_vit.from_pretrained(path, input_shape=(*size, 3), **hints))
    rows, columns = size[0] // 4, size[1] // 3
    grid = weights[POSITIONS][-6:].reshape(2, 3, 12)
    zoomed = scipy.ndimage.zoom(grid, (rows / 2, columns / 3, 1), order=1).reshape(rows * columns, 12)
    assert_close(found[POSITIONS], np.concatenate([weights[POSITIONS][:-6], zoomed]))
    assert adaptations == {POSITIONS: f"2 x 3 positions resampled to {rows} x {columns} (align_corners)"}
    _assert_others_are_kept(found, weights, [POSITIONS])


@pytest.mark.slow
@pytest.mark.parametrize(("format", "method"), [("timm", "bicubic_antialias"), ("huggingface", "bicubic")])
def test_positions_of_others_are_resampled_in_their_way(format, method, saved):
    weights, path = saved(format, TIMM)
    found, adaptations = _adapted(keras_vit.from_pretrained(path, input_shape=(20, 21, 3)))
    table = weights[POSITIONS].astype("float32")
    expected = np.concatenate([table[:1], resize_grid(table[1:], (2, 3), (5, 7), method)])
    np.testing.assert_array_equal(found[POSITIONS], expected)
    assert adaptations == {POSITIONS: f"2 x 3 positions resampled to 5 x 7 ({method})"}


@pytest.mark.parametrize("patch", rest_slow([(5, 2), (4, 6)]))
def test_patches(patch, google):
    weights, path, hints = google()
    size = 2 * patch[0], 3 * patch[1]
    model = keras_vit.from_pretrained(path, patch_size=patch, input_shape=(*size, 3), **hints)
    found, adaptations = _adapted(model)
    np.testing.assert_array_equal(found[KERNEL], resize_patches(weights[KERNEL].astype("float32"), patch))
    assert adaptations == {KERNEL: f"patches of 4 x 3 pixels resized to {patch[0]} x {patch[1]} (pseudo-inverse)"}
    _assert_others_are_kept(found, weights, [KERNEL])


def test_a_grey_photograph_gives_what_its_equal_channels_gave(tmp_path):
    """The logits are also the same if each channel is normalised with its own mean and deviation."""
    saved = make(TIMM)
    saved.get_layer("preprocessing").set_preprocessing(**IMAGENET)
    path = save(saved, tmp_path / "saved", "timm")
    size = (16, 12)
    pixels = np.random.default_rng(0).integers(0, 256, (2, *size, 1)).astype("uint8")
    models = {
        channels: keras_vit.from_pretrained(
            path, input_shape=(*size, channels), classifier_activation=None, include_preprocessing=True
        )
        for channels in (3, 1, 5)
    }
    expected, *others = (to_numpy(model(np.repeat(pixels, channels, -1))) for channels, model in models.items())
    assert np.ptp(expected) > 0.1
    for logits in others:
        assert_close(logits, expected)
    assert keras_vit.describe(models[1]).pixels["mean"] == pytest.approx(0.449)
    assert keras_vit.describe(models[5]).pixels["mean"] == [0.485, 0.456, 0.406, 0.485, 0.456]


def test_channels_positions_and_patches_at_once(google):
    weights, path, hints = google()
    model = keras_vit.from_pretrained(path, patch_size=6, input_shape=(18, 12, 1), **hints)
    found, adaptations = _adapted(model)
    resized = resize_patches(weights[KERNEL].astype("float32"), (6, 6)).sum(axis=2, keepdims=True)
    assert_close(found[KERNEL], resized)
    assert adaptations == {
        POSITIONS: "2 x 3 positions resampled to 3 x 2 (align_corners)",
        KERNEL: "patches of 4 x 3 pixels resized to 6 x 6 (pseudo-inverse), 3 input channels made 1",
    }
    _assert_others_are_kept(found, weights, [KERNEL, POSITIONS])


def test_a_stem_of_another_kind_is_refused(google):
    _, path, hints = google()
    with pytest.raises(ValueError, match=r"trained with stem=None, but the model has stem=Stem.* scratch\.$"):
        keras_vit.from_pretrained(path, stem=keras_vit.StemConfig((), 32), patch_size=1, **hints)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stem", "kernel"),
    [(keras_vit.StemConfig((), 32), "stem_conv/kernel"), (keras_vit.ConvStemConfig((4, 6)), "stem_conv_0/kernel")],
)
def test_channels_of_a_stem(stem, kernel, tmp_path):
    model = make(ONE_LAYER.replace(stem=stem, patch_size=(3, 4)), input_shape=(21, 30, 3))
    model.save(tmp_path / "model.keras")
    found, adaptations = _adapted(keras_vit.from_pretrained(tmp_path / "model.keras", input_shape=(21, 30, 1)))
    weights = canonical_weights(model)
    assert_close(found[kernel], weights[kernel].sum(axis=2, keepdims=True))
    assert adaptations == {kernel: "3 input channels made 1"}
    _assert_others_are_kept(found, weights, [kernel])


def test_adapt_channels_uses_every_channel_once():
    kernel = np.random.default_rng(0).normal(size=(2, 3, 3, 5)).astype("float32")
    red, green, blue = (kernel[:, :, i] for i in range(3))
    for channels, expected in (
        (1, [red + green + blue]),
        (2, [red + blue, green]),
        (4, [red / 2, green, blue, red / 2]),
        (6, [red / 2, green / 2, blue / 2] * 2),
    ):
        adapted = adapt_channels(kernel, channels)
        assert adapted.dtype == "float32"
        assert_close(adapted, np.stack(expected, axis=2))
    np.testing.assert_array_equal(adapt_channels(kernel, 3), kernel)


@pytest.mark.parametrize(
    ("size", "file_size", "resize", "crop", "expected"),
    [
        ((224, 224), (224, 224), 256, (224, 224), (256, (224, 224))),
        ((384, 384), (224, 224), 256, (224, 224), (439, (384, 384))),
        ((112, 112), (224, 224), 248, (224, 224), (124, (112, 112))),
        ((None, None), (224, 224), 256, (224, 224), (256, (224, 224))),
        ((384, 512), (224, 224), 256, (224, 224), ((439, 585), (384, 512))),
        ((384, 512), (224, 224), (224, 224), None, ((384, 512), None)),
        ((100, 60), (50, 40), (60, 44), (50, 40), ((120, 66), (100, 60))),
    ],
)
def test_adapt_preprocessing(size, file_size, resize, crop, expected):
    pixels = {**IMAGENET, "resize": resize, "crop": crop, "interpolation": "bicubic", "label_space": "imagenet1k"}
    found = adapt_preprocessing(pixels, size, file_size, 3)
    assert (found.pop("resize"), found.pop("crop")) == expected
    assert found == {**IMAGENET, "interpolation": "bicubic", "label_space": "imagenet1k"}


@pytest.mark.parametrize(
    ("channels", "mean"),
    [(1, pytest.approx(0.2)), (2, (0.1, 0.2)), (3, (0.1, 0.2, 0.3)), (5, (0.1, 0.2, 0.3, 0.1, 0.2))],
)
def test_adapt_preprocessing_to_channels(channels, mean):
    pixels = {"mean": (0.1, 0.2, 0.3), "std": 0.5, "resize": (8, 9), "crop": None}
    found = adapt_preprocessing(pixels, (8, 9), (8, 9), channels)
    assert found == {**pixels, "mean": mean}


def test_weights_of_impossible_shapes_are_left_for_others_to_name():
    weights = {POSITIONS: np.ones((7, 13)), KERNEL: np.ones((4, 3, 12)), BIAS: np.ones(13)}
    checkpoint = Checkpoint(CONFIG, (2, 3), None, (8, 9), 3, {"mean": 0.5, "std": 0.5}, dict)
    target = Target(CONFIG, {KERNEL: (8, 6, 1, 12), POSITIONS: (13, 12), BIAS: (12,)}, (3, 4))
    adaptation = adapt(weights, checkpoint, target, "keep")
    assert {path: array.shape for path, array in adaptation.weights.items()} == {
        POSITIONS: (13, 13),
        KERNEL: (4, 3, 12),
        BIAS: (13,),
    }
    assert not adaptation.skipped


def _adapt(weights, file, model, num_rows=0):
    """Adapts weights. The configs of their file and of the model are `CONFIG` with the changes `file` and `model`."""
    source, config = CONFIG.replace(**file), CONFIG.replace(**model)
    checkpoint = Checkpoint(source, (2, 3), None, (8, 9), 3, {"mean": 0.5, "std": 0.5}, dict)
    target = Target(config, {KERNEL: (4, 3, 3, 12), POSITIONS: (num_rows + 20, 12)}, (4, 5))
    return adapt(weights, checkpoint, target, "keep")


@pytest.mark.parametrize(
    ("field", "file", "model"),
    [
        ("rotary", {"rotary": keras_vit.RotaryConfig()}, {"rotary": None}),
        ("rotary", {"rotary": keras_vit.RotaryConfig()}, {"rotary": keras_vit.RotaryConfig(layout="interleaved")}),
        ("block_norm", {}, {"block_norm": "post"}),
        ("layer_norm_epsilon", {}, {"layer_norm_epsilon": 1e-3}),
        ("pool_prefix_tokens", {"pooling": "map", "class_token": True}, {"pool_prefix_tokens": True}),
        ("position_embedding", {"position_embedding": "sincos_2d"}, {"position_embedding": "none"}),
        ("pooling", {"pooling": "map", "class_token": True, "pool_prefix_tokens": True}, {"pooling": "token"}),
        (None, {"pooling": "map", "class_token": True, "pool_prefix_tokens": True}, {"pooling": None}),
    ],
)
def test_settings_that_no_weight_shows_are_reported(field, file, model):
    model = {**file, **({"pool_prefix_tokens": False} if "pooling" in model else {}), **model}
    assert _adapt({}, file, file).adapted == {}
    for one, other in ((file, model), (model, file)) if field else ((file, model),):
        values = [getattr(CONFIG.replace(**changes), field) for changes in (one, other)] if field else []
        expected = {field: "the weights were made for {!r}, the model has {!r}".format(*values)} if field else {}
        assert _adapt({}, one, other).adapted == expected


def test_other_strides_of_a_stem_are_reported():
    stems = [
        {"stem": keras_vit.ConvStemConfig((4, 6), strides=strides), "patch_size": 1} for strides in ((2, 2), (2, 1))
    ]
    message = "the weights were made for ((4, 2), (6, 2)), the model has ((4, 2), (6, 1))"
    assert _adapt({}, *stems).adapted == {"convolutions": message}


@pytest.mark.parametrize(
    ("num_rows", "class_tokens", "rows"),
    [(3, {}, [1, 2]), (4, {"distillation_token": True}, [2, 3]), (1, {}, []), (2, {"class_token": False}, [0, 1])],
)
def test_rows_of_registers_are_kept_without_a_class_token(num_rows, class_tokens, rows):
    """A table has rows for class tokens, registers and patches, in this order."""
    table = np.random.default_rng(0).normal(size=(num_rows + 6, 12)).astype("float32")
    file = {"pooling": None, "num_register_tokens": 2, "num_position_prefix_rows": num_rows, **class_tokens}
    model = {"pooling": "avg", "num_register_tokens": 2, "num_position_prefix_rows": len(rows)}
    adaptation = _adapt({POSITIONS: table}, file, model, len(rows))
    grid = resize_grid(table[num_rows:], (2, 3), (4, 5), "align_corners")
    np.testing.assert_array_equal(adaptation.weights[POSITIONS], np.concatenate([table[rows], grid]))
    dropped = "row of the class token left out, " if len(rows) < num_rows else ""
    assert adaptation.adapted[POSITIONS] == f"{dropped}2 x 3 positions resampled to 4 x 5 (align_corners)"
