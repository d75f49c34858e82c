"""Decoding of images to the pixels that a model expects."""

import concurrent.futures
import functools
import io
import struct

import keras
import numpy as np
import PIL.Image
import PIL.ImageCms
import PIL.ImageOps
import pytest

import keras_vit
from keras_vit.data.decoding import batch_decoder, check_decoding_cost, decode_upright, image_decoder
from keras_vit.preprocessing import input_preprocessing
from tests.pictures import FILTERS, encoded, exif_segment, noise, picture, resized_by_pillow
from tests.test_case import TENSORFLOW, rest_slow

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="TensorFlow decodes the images")


@functools.cache
def _decoder(size, channels=3, **settings):
    """Decoder for a model that only has preprocessing."""
    return image_decoder(_model((*size, channels), **({"resize": size} | settings)))


def _decode(image_bytes, size, **settings):
    return _decoder(size, **settings)(image_bytes).numpy()


_ICC_PROFILE = PIL.ImageCms.ImageCmsProfile(PIL.ImageCms.createProfile("sRGB")).tobytes()


def _kinds():
    """{name: (contents, largest difference from Pillow)}"""
    rgb, rgba, gray = noise(23, 37), picture(24, 33, "RGBA"), picture(24, 33, "L")
    palette = rgb.quantize(200)
    turned = rgb.rotate(180)
    bmp = encoded(rgba, "BMP")
    masks = b"\0\0\xff\0\0\xff\0\0\xff\0\0\0"
    bit_fields = bmp[:10] + struct.pack("<I", 66) + bmp[14:30] + b"\3\0\0\0" + bmp[34:54] + masks + bmp[54:]
    exact = {
        **{
            f"{kind} {image.mode}": encoded(image, kind)
            for kind in ("PNG", "BMP", "WEBP")
            for image in (rgb, rgba, gray)
        },
        "JPEG": encoded(rgb, "JPEG"),
        "JPEG gray": encoded(gray, "JPEG"),
        "JPEG progressive": encoded(rgb, "JPEG", progressive=True),
        "JPEG without subsampling": encoded(rgb, "JPEG", subsampling=0),
        "JPEG, ICC profile": encoded(rgb, "JPEG", icc_profile=_ICC_PROFILE),
        "JPEG of two pictures (MPO)": encoded(rgb, "MPO", save_all=True, append_images=[turned]),
        "PNG gray and alpha": encoded(PIL.Image.merge("LA", [gray, gray.rotate(180)]), "PNG"),
        "PNG palette": encoded(palette, "PNG"),
        "PNG transparent palette": encoded(palette, "PNG", transparency=3),
        "PNG 1 bit": encoded(gray.convert("1"), "PNG"),
        "PNG animation": encoded(rgb, "PNG", save_all=True, append_images=[turned]),
        "PNG animation, hidden picture": encoded(
            rgb, "PNG", save_all=True, append_images=[turned, rgb], default_image=True
        ),
        "BMP palette": encoded(palette, "BMP"),
        "BMP bit fields": bit_fields,
        "GIF": encoded(palette, "GIF"),
        "GIF transparent": encoded(palette, "GIF", transparency=3),
        "GIF animation": encoded(palette, "GIF", save_all=True, append_images=[turned.quantize(64)]),
        "WebP lossless": encoded(rgb, "WEBP", lossless=True),
        "WebP lossless, alpha": encoded(rgba, "WEBP", lossless=True),
    }
    # Pillow rounds the products of the inks differently.
    return {name: (file, 0) for name, file in exact.items()} | {"JPEG CMYK": (encoded(rgb.convert("CMYK"), "JPEG"), 1)}


@functools.cache
def _upright():
    import tensorflow as tf

    return tf.function(lambda file: decode_upright(file, 3), input_signature=[tf.TensorSpec([], tf.string)])


@pytest.mark.combination(
    "JPEG: gray, CMYK, progressive, with an ICC profile, of two pictures (MPO)",
    "the pixels of Pillow; CMYK within 1 level",
)
@pytest.mark.combination(
    "PNG with a palette, transparency, alpha, 1 bit or an animation",
    "the pixels of Pillow, without alpha; the first picture of an animation",
)
@pytest.mark.combination(
    "GIF with transparency or animation, BMP, WebP with alpha",
    "the pixels of Pillow, without alpha; the first picture of an animation",
)
@pytest.mark.parametrize(("file", "tolerance"), _kinds().values(), ids=_kinds())
def test_decodes_as_pillow_does(file, tolerance):
    image = PIL.Image.open(io.BytesIO(file))
    if image.mode not in ("RGBA", "LA"):
        image = image.convert("RGB")
    elif image.mode == "LA":
        image = image.getchannel("L").convert("RGB")
    expected = np.asarray(image)[..., :3].astype(int)
    decoded = _upright()(file).numpy()
    assert decoded.dtype == "uint8"
    assert decoded.shape == expected.shape
    assert np.abs(decoded - expected).max() <= tolerance


@pytest.mark.combination("16-bit PNG", "the upper 8 bits, so an image of 12-bit values is nearly black")
def test_takes_the_upper_8_of_16_bits():
    levels = np.random.default_rng(0).integers(0, 2**16, (8, 12)).astype("uint16")
    decoded = _decode(encoded(PIL.Image.fromarray(levels), "PNG"), (8, 12))
    np.testing.assert_array_equal(decoded, np.repeat(levels[..., None] // 256, 3, axis=-1))


def test_frame_that_does_not_cover_the_picture():
    image = noise(23, 37).quantize(256)
    file = encoded(image, "GIF")
    place = file.index(b",\0\0\0\0")
    file = file[:6] + struct.pack("<HH", 50, 40) + file[10 : place + 1] + struct.pack("<HH", 5, 3) + file[place + 5 :]
    expected = np.zeros((40, 50, 3), "uint8")
    expected[3:26, 5:42] = image.convert("RGB")
    np.testing.assert_array_equal(decode_upright(file, 3), expected)


def test_decodes_to_gray():
    for mode in ("RGB", "L"):
        image = picture(24, 33, mode)
        decoded = _decode(encoded(image, "PNG"), (24, 33), channels=1)
        assert decoded.shape == (24, 33, 1)
        assert np.abs(decoded[..., 0].astype(int) - np.asarray(image.convert("L"))).max() <= (mode == "RGB")


def test_decoder_resizes():
    image = noise(61, 97)
    expected = np.asarray(resized_by_pillow(image, (22, 30), "bicubic")).astype(int)
    decoded = _decode(encoded(image, "PNG"), (22, 30), interpolation="bicubic")
    assert np.abs(decoded - expected).max() <= FILTERS["bicubic"][1]


@pytest.mark.combination("resize and crop of images that are not square, such as 1 x 500", "as Pillow, within 1 level")
@pytest.mark.parametrize(
    "size",
    [
        *((61, 97), (97, 61), (32, 32), (29, 40)),
        *(pytest.param(size, marks=pytest.mark.slow) for size in ((1, 500), (500, 1))),
    ],
)
def test_resizes_the_short_side_and_crops_the_centre(size):
    image = noise(*size)
    short = min(size)
    height, width = (side * 32 // short for side in size)  # As in torchvision, also the next line.
    top, left = round((height - 24) / 2), round((width - 30) / 2)
    resized = resized_by_pillow(image, (height, width), "bilinear")
    expected = np.asarray(resized.crop((left, top, left + 30, top + 24))).astype(int)
    decoded = _decode(encoded(image, "PNG"), (24, 30), resize=32, crop=(24, 30))
    assert np.abs(decoded - expected).max() <= 1


@pytest.mark.combination("JPEG in color or gray, PNG and WebP with an EXIF orientation", "turned as by Pillow")
def test_applies_the_exif_orientation():
    kinds = ("RGB", "JPEG", {}), ("RGB", "PNG", {}), ("RGBA", "WEBP", {"lossless": True}), ("L", "JPEG", {})
    for orientation in range(1, 9):
        mode, file_format, options = kinds[orientation % 4]
        exif = exif_segment(orientation, "<>"[orientation % 2], [(0x0100, 33), (0x0101, 24)])
        file = encoded(picture(24, 33, mode), file_format, exif=exif, **options)
        expected = np.asarray(PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(file))).convert("RGB"))
        assert expected.shape[:2] == ((24, 33) if orientation < 5 else (33, 24))
        np.testing.assert_array_equal(_decode(file, expected.shape[:2]), expected)


def test_exif_behind_another_segment():
    jpeg = encoded(picture(24, 33), "JPEG", exif=exif_segment(6, ">"))
    comment = b"\xff\xfe" + struct.pack(">H", 300) + bytes(298)
    expected = _decode(jpeg, (33, 24))
    np.testing.assert_array_equal(_decode(jpeg[:2] + comment + jpeg[2:], (33, 24)), expected)


@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0",
        b"Exif\0\0II",
        b"Exif\0\0XX" + bytes(40),
        b"Exif\0\0MM\0*" + b"\xff" * 8,
        b"Exif\0\0II*\0" + b"\xff\xff\xff\x7f" + b"\xff" * 30,
        b"Exif\0\0II*\0\x08\0\0\0" + b"\xff\xff" + b"\xff" * 12,
        exif_segment(0, "<"),
        exif_segment(9, ">"),
        exif_segment(65535, "<"),
        exif_segment(6, "<")[:20],
    ],
)
def test_damaged_exif_is_ignored(exif):
    plain = encoded(picture(24, 33), "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    np.testing.assert_array_equal(_decode(plain[:2] + segment + plain[2:], (24, 33)), _decode(plain, (24, 33)))


def _model(shape, **settings):
    return keras.Sequential([keras.Input(shape), keras_vit.Preprocessing(**settings)])


@pytest.mark.parametrize(
    ("shape", "settings", "message"),
    [
        ((8, 12, 4), {"resize": (8, 12)}, "have 1 or 3 channels. Received: a model for images of 4 channels"),
        ((8, 12, 3), {}, "does not lead to that size: resize=None, crop=None"),
        ((8, 12, 3), {"resize": 8, "crop": (8, 12)}, r"does not lead to that size: resize=8, crop=\[8, 12\]"),
        ((8, 12, 3), {"resize": (12, 8)}, r"8 x 12 pixels.*resize=\[12, 8\]"),
        ((8, 12, 3), {"resize": (8, 12), "crop": (4, 4)}, r"crop=\[4, 4\]"),
        ((None, None, 3), {"resize": 8}, r"resize=8, crop=None. Give image_size=\(height, width\)"),
        ((None, 12, 3), {"resize": (8, 8)}, r"images of any x 12 pixels. Received: size=\(8, 8\)"),
    ],
)
def test_decoder_needs_a_size_and_one_or_three_channels(shape, settings, message):
    with pytest.raises(ValueError, match=message):
        image_decoder(_model(shape, **settings))


@pytest.mark.combination("a model with do_resize=False, exported or decoded", "refused")
def test_advice_for_a_model_that_does_not_resize():
    model = _model((8, 12, 3), mean=0.3)
    with pytest.raises(ValueError, match=r"layer = model.get_layer") as refused:
        image_decoder(model)
    exec(str(refused.value).rsplit("resize whole images: ")[1], {"model": model})
    assert image_decoder(model)(encoded(picture(24, 33), "PNG")).shape == (8, 12, 3)
    assert model.layers[0].mean == 0.3


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((12, 8), r"images of 8 x 12 pixels. Received: size=\(12, 8\)"),
        ((8, 12, 3), r"images of 8 x 12 pixels. Received: size=\(8, 12, 3\)"),
        ((8, 0), "size must be a positive integer. Received: 0"),
    ],
)
def test_a_model_of_fixed_size_refuses_another(size, message):
    model = _model((8, 12, 3), resize=(8, 12))
    assert input_preprocessing(model, (8, 12))[0] is model.layers[0]
    with pytest.raises(ValueError, match=message):
        batch_decoder(model, size)


@pytest.mark.parametrize(
    ("settings", "size", "resized", "crop"),
    [
        ({"resize": 40, "crop": (30, 30)}, None, 40, [30, 30]),
        ({"resize": 248, "crop": (224, 224)}, (320, 320), 354, [320, 320]),
        ({"resize": 40, "crop": (20, 32)}, (30, 40), 60, [30, 40]),
        ({"resize": (24, 40), "crop": (20, 32)}, (30, 40), [36, 50], [30, 40]),
        ({"resize": (8, 12)}, None, [8, 12], None),
        ({"resize": (8, 12)}, (9, 11), [9, 11], None),
        ({"resize": 8}, (9, 11), 11, [9, 11]),
        ({}, (9, 11), [9, 11], None),
    ],
)
def test_a_model_of_any_size_is_scaled(settings, size, resized, crop):
    model = _model((None, None, 3), interpolation="bicubic", **settings)
    found, found_size, channels = input_preprocessing(model, size)
    assert (found.resize, found.crop, found_size, channels) == (resized, crop, crop or resized, 3)
    assert found.interpolation == "bicubic"
    file = encoded(noise(61, 97), "PNG")
    alike = image_decoder(_model((*found_size, 3), interpolation="bicubic", resize=resized, crop=crop))
    np.testing.assert_array_equal(image_decoder(model, size)(file), alike(file))


MODEL = {"shape": (22, 30, 3), "resize": 32, "crop": (22, 30), "interpolation": "bicubic"}
GOOD = {
    "PNG": encoded(noise(61, 97), "PNG"),
    "turned JPEG": encoded(noise(40, 61), "JPEG", exif=exif_segment(6, "<")),
    "JPEG": encoded(noise(61, 40), "JPEG"),
    "GIF": encoded(noise(61, 97).quantize(64), "GIF"),
    "WebP": encoded(picture(61, 97, "RGBA"), "WEBP"),
    "BMP": encoded(noise(61, 97), "BMP"),
}
JPEG = GOOD["JPEG"]
BAD = {
    "empty": b"",
    "text": b"Not an image.",
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
    "zeros": bytes(1000),
    "cut JPEG": JPEG[: len(JPEG) // 2],
    "JPEG without its last bytes": JPEG[:-40],
    "JPEG's header": JPEG[:300],
    "cut PNG": GOOD["PNG"][:900],
    "changed PNG": GOOD["PNG"][:500] + b"?" + GOOD["PNG"][501:],
    "cut GIF": GOOD["GIF"][:-100],
    "cut BMP": GOOD["BMP"][:-1],
    "cut WebP": GOOD["WebP"][:-200],
    "animated WebP": encoded(noise(61, 97), "WEBP", save_all=True, append_images=[noise(61, 97).rotate(180)]),
    # 30,000 x 30,000 pixels, and a screen of 60,000 x 60,000 pixels.
    "PNG bomb": GOOD["PNG"][:16] + struct.pack(">II", 30_000, 30_000) + GOOD["PNG"][24:],
    "GIF bomb": GOOD["GIF"][:6] + struct.pack("<HH", 60_000, 60_000) + GOOD["GIF"][10:],
    "many scans": encoded(noise(61, 40), "JPEG", progressive=True)[:-2] + 101 * b"\xff\xda\0\x08\1\1\0\0\x3f\0",
}


@pytest.mark.combination("animated WebP", "refused")
def test_an_animated_webp_is_refused_before_it_is_decoded():
    """TensorFlow 2.21 would write beyond its buffer."""
    import tensorflow as tf

    decode = image_decoder(_model(**MODEL))
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode(BAD["animated WebP"])


@pytest.fixture(scope="module")
def decode_batch():
    return batch_decoder(_model(**MODEL))


@pytest.fixture(scope="module")
def alone():
    """{name: pixels of an image that is decoded alone}"""
    decode = image_decoder(_model(**MODEL))
    return {name: decode(file).numpy() for name, file in GOOD.items()}


@pytest.mark.parametrize("names", rest_slow([[*GOOD, *BAD], [], list(BAD), ["JPEG"], ["cut JPEG"]]), ids=len)
def test_one_bad_image_does_not_fail_its_neighbours(decode_batch, alone, names):
    pixels, valid = decode_batch(np.array([(GOOD | BAD)[name] for name in names], object))
    assert pixels.shape == (len(names), 22, 30, 3)
    assert (pixels.dtype, valid.dtype) == ("uint8", "bool")
    assert [name for name, good in zip(names, valid.numpy(), strict=True) if good] == [n for n in names if n in GOOD]
    for name, image in zip(names, pixels.numpy(), strict=True):
        np.testing.assert_array_equal(image, alone.get(name, np.zeros((22, 30, 3))), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "resized", "sizes"),
    [
        # Resizing gives 32 x 93 pixels for 20 x 58, 32 x 96 for 20 x 60, and 32 x 1,920,000 for 1 x 60,000.
        (3, 32, {(60, 50): True, (61, 50): False, (20, 58): True, (20, 60): False, (1, 60_000): False}),
        # The intermediate images have one side of 40 and one of 75 or 76 pixels.
        (1, (32, 40), {(60, 50): True, (50, 61): False, (1, 75): True, (75, 1): True, (1, 76): False, (76, 1): False}),
    ],
)
def test_an_image_of_too_many_pixels_is_not_decoded(channels, resized, sizes):
    model = _model((22, 30, channels), crop=(22, 30), resize=resized, interpolation="bicubic")
    files = [encoded(noise(*size), "PNG") for size in sizes]
    pixels, valid = batch_decoder(model, max_pixels=3000)(files)
    assert dict(zip(sizes, valid.numpy().tolist(), strict=True)) == sizes
    np.testing.assert_array_equal(pixels[0], image_decoder(model)(files[0]))


@pytest.mark.slow
def test_scans_and_pixels_are_bounded_together():
    """At most 12 scans of the largest image are decoded, and 100 scans of an image with a tenth of its pixels."""
    file = encoded(picture(60, 50), "JPEG", progressive=True)
    scan = file[file.rindex(b"\xff\xda") : -2]
    files = [file[:-2] + count * scan + file[-2:] for count in (0, 2, 3, 91)]
    assert batch_decoder(_model(**MODEL), max_pixels=3000)(files)[1].numpy().tolist() == [True, True, False, False]
    assert batch_decoder(_model(**MODEL), max_pixels=30_000)(files)[1].numpy().tolist() == [True, True, True, False]


def _png_of(height, width):
    return GOOD["PNG"][:16] + struct.pack(">II", width, height) + GOOD["PNG"][24:]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", "Input is empty"),
        (b"no image", "Unknown image file format"),
        (BAD["animated WebP"], "animated WebP"),
        (_png_of(20_000, 20_001), "has 20,001 x 20,000 pixels. It must have at most 89,478,485"),
        (_png_of(1, 60_000), "resized to 512"),
        (BAD["many scans"], "more scans"),
    ],
)
def test_what_would_cost_much_is_refused_by_its_headers(file, message):
    with pytest.raises(ValueError, match=message):
        check_decoding_cost(file)


def test_what_costs_little_passes():
    for file in [*GOOD.values(), BAD["cut JPEG"]]:
        check_decoding_cost(file)


def test_max_pixels_is_checked():
    with pytest.raises(ValueError, match=r"max_pixels must be a positive integer\. Received: 0"):
        batch_decoder(_model(**MODEL), max_pixels=0)


@pytest.mark.slow
def test_many_threads(decode_batch):
    batches = [[GOOD["JPEG"], b"", GOOD["PNG"]], [BAD["cut JPEG"], GOOD["GIF"]], [GOOD["WebP"]]]
    expected = [decode_batch(files)[0].numpy() for files in batches]

    def differs(i):
        return not np.array_equal(decode_batch(batches[i % 3])[0], expected[i % 3])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(differs, range(60)))
