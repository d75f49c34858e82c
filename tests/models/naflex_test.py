"""NaFlex models give each image of a batch the output of a model of that image's size."""

import itertools
import math

import keras
import numpy as np
import PIL.Image
import pytest

import keras_vit
from keras_vit.layers import LearnedPositionEmbedding, NaFlexPatches
from keras_vit.layers.transformer.naflex_patches import largest_grid
from keras_vit.resampling import METHODS
from tests.models.tiny import CONFIG, tiny_model
from tests.pictures import FILTERS, encoded, picture, resized_by_pillow
from tests.test_case import TENSORFLOW, assert_close, compute, randomize, slow_except, to_numpy
from tests.text.models import random_model

SIZES = [(8, 9), (4, 18), (16, 3), (20, 9)]  # Grids of 2 x 3, 1 x 6, 4 x 1 and 5 x 3 patches.
KINDS = {
    "token": {"pooling": "token", "num_register_tokens": 2},
    "avg": {"pooling": "avg", "class_token": True, "layer_scale": 0.5},
    "map": {"pooling": "map", "class_token": False},
}


def random_vit(**changes):
    """A model of variable size, which resizes its positions in each call."""
    model = tiny_model((None, None, 3), include_preprocessing=True, **changes)
    randomize(model)
    return model


def images_of(sizes):
    return [np.array(picture(*size)) for size in sizes]


def expected_grid(height, width, patch_shape, max_patches):
    """Transcribed from the pseudocode of SigLIP 2's owners, with a loop of unknown length."""
    low, high = 1e-6, 100.0

    def grid(scale):
        sides = zip((height, width), patch_shape, strict=True)
        return tuple(max(1, math.ceil(side * scale / patch)) for side, patch in sides)

    while high - low >= 1e-5:
        middle = (low + high) / 2
        fits = math.prod(grid(middle)) <= max_patches
        low, high = (middle, high) if fits else (low, middle)
    return grid(low)


def test_grids():
    rng = np.random.default_rng(0)
    for height, width in [*rng.integers(1, 4000, (40, 2)), (1, 1), (8, 4000), (4000, 8)]:
        for shape, most in itertools.product([(16, 16), (14, 20)], [1, 7, 256]):
            found = largest_grid((height, width), shape, most)
            assert tuple(found) == expected_grid(height, width, shape, most)
            assert found.prod() <= most


@pytest.mark.parametrize("interpolation", FILTERS)
def test_patches_are_those_of_pillow(interpolation):
    layer = NaFlexPatches((4, 3), 40, interpolation)
    image = picture(37, 50)
    inputs = {name: to_numpy(value) for name, value in layer(np.array(image)).items()}
    rows, columns = inputs["grid"].astype(int)
    assert (rows, columns) == expected_grid(37, 50, (4, 3), 40)
    pixels = inputs["patches"][: rows * columns].reshape(rows, columns, 4, 3, 3).swapaxes(1, 2).reshape(4 * rows, -1, 3)
    difference = abs(pixels - np.array(resized_by_pillow(image, (4 * rows, 3 * columns), interpolation), float))
    assert difference.max() <= FILTERS[interpolation][1]
    assert not inputs["patches"][rows * columns :].any()
    batch = layer(np.array(image)[None])
    np.testing.assert_array_equal(to_numpy(batch["patches"])[0], inputs["patches"])


@pytest.mark.skipif(not TENSORFLOW, reason="tf.data")
def test_images_of_unknown_size_in_a_pipeline():
    import tensorflow as tf

    layer, images = NaFlexPatches((4, 3), 16), images_of([(30, 11), (9, 50)])
    data = tf.data.Dataset.from_generator(lambda: images, output_signature=tf.TensorSpec([None, None, 3], tf.uint8))
    batch = next(iter(data.map(layer).batch(2)))
    for index, image in enumerate(images):
        for name, value in layer(image).items():
            np.testing.assert_array_equal(batch[name][index], value)


@pytest.mark.parametrize("kind", slow_except(["map"], KINDS))
def test_outputs_are_those_of_models_of_the_images_sizes(kind, tmp_path):
    model = random_vit(**KINDS[kind])
    naflex = keras_vit.naflex_model(model, 20)
    # Images that have the size of their grid are not resized.
    inputs = {"patches": np.zeros((4, 20, 4, 3, 3), "float32"), "grid": np.zeros((4, 2), "int32")}
    for index, (image, (height, width)) in enumerate(zip(images_of(SIZES), SIZES, strict=True)):
        rows, columns = height // 4, width // 3
        patches = image.reshape(rows, 4, columns, 3, 3).swapaxes(1, 2).reshape(-1, 4, 3, 3)
        inputs["patches"][index, : len(patches)] = patches
        inputs["patches"][index, len(patches) :] = 77.0  # Padding is not seen.
        inputs["grid"][index] = rows, columns
    outputs = naflex.predict_on_batch(inputs)
    for output, image in zip(outputs, images_of(SIZES), strict=True):
        assert_close(output[None], compute(model, [image[None].astype("float32")]))
    assert np.ptp(outputs, axis=0).max() > 0.01
    naflex.save(tmp_path / "naflex.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "naflex.keras").predict_on_batch(inputs), outputs)


@pytest.mark.parametrize("method", slow_except(["bilinear_antialias", "bicubic_offset"], METHODS))
def test_positions_of_each_method(method):
    """Rows of other grids, and of the grid of the table itself."""
    layer = LearnedPositionEmbedding((2, 3), 1, method)
    sizes = [(2, 3), (4, 1), (1, 5)]
    tokens = np.zeros((3, 7, 6), "float32")
    layer.build(tokens.shape)
    randomize(layer)
    found = to_numpy(layer(tokens, patches=np.zeros((3, 6, 1, 6), "float32"), grids=np.array(sizes)))
    for rows, (height, width) in zip(found, sizes, strict=True):
        count = height * width
        one = np.zeros((1, 1 + count, 6), "float32")
        expected = to_numpy(layer(one, patches=np.zeros((1, height, width, 6), "float32")))[0]
        assert_close(rows[: 1 + count], expected)


def test_training_and_costs():
    model = random_vit(num_layers=1)
    naflex = keras_vit.naflex_model(model, 6)
    inputs = keras_vit.naflex_inputs(images_of([(30, 20), (7, 50)]), naflex)
    naflex.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = [to_numpy(weight) for weight in model.trainable_weights]
    naflex.fit(inputs, np.array([1, 2]), verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.isfinite(to_numpy(weight)).all()
        # A bias of the keys changes no attention.
        assert weight.path.endswith("key/bias") or abs(to_numpy(weight) - old).max() > 0, weight.path
    of_size = tiny_model((8, 9, 3), num_layers=1)  # It has 6 patches, too.
    assert keras_vit.profile(naflex).macs == keras_vit.profile(of_size).macs


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"position_embedding": "sincos_2d"}, "position_embedding='sincos_2d'"),
        (
            {"axial": True, "pooling": "avg", "position_placement": "every_layer"},
            "position_placement='every_layer', axial",
        ),
    ],
)
def test_other_architectures_are_refused(changes, reason):
    with pytest.raises(ValueError, match=f"learned positions, .* The model has {reason}\\."):
        keras_vit.naflex_model(keras_vit.ViT(CONFIG.replace(hidden_dim=24), input_shape=(8, 9, 3), **changes))


def test_what_else_is_refused(tmp_path):
    with pytest.raises(ValueError, match="A Vision Transformer is needed"):
        keras_vit.naflex_model(keras_vit.BiTResNet((1,), 32, input_shape=(32, 32, 3)))
    model = tiny_model()
    naflex = keras_vit.naflex_model(model, 6)
    with pytest.raises(ValueError, match=r"model from keras_vit\.naflex_model is needed"):
        keras_vit.naflex_inputs([], model)
    with pytest.raises(ValueError, match=r"must be arrays \(H, W, 3\).* \(5, 7\)"):
        keras_vit.naflex_inputs([np.zeros((5, 7))], naflex)
    with pytest.raises(ValueError, match=r"load_img\(path\)\)\. Received: 'photo.jpg'"):
        keras_vit.naflex_inputs(["photo.jpg"], naflex)
    with pytest.raises(ValueError, match=r"shapes \(5, 5, 3\), \(5, 7, 3\)\. Resize them"):
        random_model().image_embeddings([np.zeros((5, 7, 3)), np.zeros((5, 5, 3))])
    with pytest.raises(ValueError, match="has 2 inputs"):
        keras_vit.export_saved_model(naflex, tmp_path)
    for other in (naflex, keras.Sequential([model, keras.layers.Dense(2)])):
        with pytest.raises(ValueError, match="with one input, the images, is needed"):
            keras_vit.naflex_model(other)


@pytest.mark.skipif(not TENSORFLOW, reason="decoding uses TensorFlow")
def test_files_are_decoded_to_the_same_patches():
    from keras_vit.data.decoding import naflex_decoder

    model = random_vit()
    pictures = [picture(37, 50), picture(8, 90)]
    turned = PIL.Image.Exif()
    turned[0x0112] = 6
    files = [encoded(each, "PNG") for each in pictures]
    files[1:1] = [b"no image", encoded(pictures[0], "PNG", exif=turned)]
    patches, valid, grids = naflex_decoder(model, 20)(np.array(files, dtype=object))
    assert valid.numpy().tolist() == [True, False, True, True]
    upright = [pictures[0], pictures[0].transpose(PIL.Image.Transpose.ROTATE_270), pictures[1]]
    expected = keras_vit.naflex_inputs([np.array(each) for each in upright], keras_vit.naflex_model(model, 20))
    np.testing.assert_array_equal(np.delete(grids, 1, axis=0), expected["grid"])
    assert abs(np.delete(patches, 1, axis=0) - expected["patches"]).max() <= 1
    assert not patches[1].numpy().any()


@pytest.mark.slow
def test_embeddings_of_images_of_different_sizes():
    model = random_model("sigmoid")
    images = images_of([(30, 20), (7, 50), (40, 40)])
    rows = model.image_embeddings(images, max_patches=9)
    naflex = keras_vit.naflex_model(model.image_encoder, 9)
    expected = naflex.predict_on_batch(keras_vit.naflex_inputs(images, naflex))
    assert_close(rows, expected / np.linalg.norm(expected, axis=1, keepdims=True))
    assert_close(model.image_embeddings(images, 1, max_patches=9), rows)
    model.image_encoder.layers[1].set_preprocessing(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    assert abs(model.image_embeddings(images, max_patches=9) - rows).max() > 0.01
