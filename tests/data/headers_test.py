"""Sizes, orientations and frames read from headers equal those of Pillow and of the decoded image."""

import contextlib
import functools
import io
import struct
import zlib

import numpy as np
import PIL.Image
import pytest

from keras_vit.data.decoding import decode_upright
from keras_vit.data.headers import encoded_size, exif_orientation, first_frame, has_too_many_scans
from tests.pictures import encoded, exif_segment, noise, picture
from tests.test_case import TENSORFLOW

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="TensorFlow decodes the images")

JPEG = encoded(noise(23, 37), "JPEG")
THUMBNAIL = encoded(noise(9, 7), "JPEG")


@functools.cache
def _compiled(rank):
    import tensorflow as tf

    return tf.function(encoded_size, input_signature=[tf.TensorSpec([None] * rank, tf.string)])


def _size(files):
    return _compiled(np.ndim(files))(files).numpy()


def _segment(marker, content):
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def _with(*parts):
    """The JPEG file with segments inserted after its first marker."""
    return JPEG[:2] + b"".join(parts) + JPEG[2:]


def _top_down(bmp):
    [height] = struct.unpack("<i", bmp[22:26])
    return bmp[:22] + struct.pack("<i", -height) + bmp[26:]


def _gif(screen, *frames, extension=b""):
    """A GIF file with images at (left, top), each with its own colour table."""
    parts = []
    for left, top, image in frames:
        file = encoded(image, "GIF", optimize=False)
        size, flags = file[6:10], file[10]
        colors = file[13 : 13 + 3 * 2 ** (flags % 8 + 1)]
        start = file.index(b",\0\0\0\0" + size)
        flags = 0x80 | flags % 8 | file[start + 9]
        parts.append(b"," + struct.pack("<HH", left, top) + size + bytes([flags]) + colors + file[start + 10 : -1])
    return b"GIF89a" + struct.pack("<HH", *screen) + b"\0\0\0" + extension + b"".join(parts) + b";"


def _palette(height, width):
    return noise(height, width).quantize(256)


def _files():
    """{name: contents} of files that Pillow and TensorFlow can read."""
    rgb, rgba, gray = noise(23, 37), picture(24, 33, "RGBA"), picture(61, 1, "L")
    comment = b"!\xfe" + b"\5hello" * 300 + b"\0"
    files = {
        f"{kind} {image.mode} {image.size}": encoded(image, kind)
        for kind in ("PNG", "BMP", "WEBP")
        for image in (rgb, rgba, gray, picture(1, 1))
    }
    return files | {
        "PNG palette": encoded(_palette(23, 37), "PNG", transparency=3),
        "BMP palette": encoded(_palette(23, 37), "BMP"),
        "BMP top down": _top_down(encoded(rgb, "BMP")),
        "WebP lossless": encoded(rgb, "WEBP", lossless=True),
        "WebP lossless, alpha": encoded(rgba, "WEBP", lossless=True),
        "WebP extended": encoded(rgb, "WEBP", exif=exif_segment(6, "<")),
        "GIF": encoded(_palette(23, 37), "GIF"),
        "GIF gray": encoded(gray, "GIF"),
        "GIF interlaced": encoded(_palette(23, 37), "GIF", interlace=1),
        "GIF animation": encoded(_palette(23, 37), "GIF", save_all=True, append_images=[_palette(23, 37).rotate(180)]),
        "GIF comment": _gif((37, 23), (0, 0, _palette(23, 37)), extension=comment),
        "GIF small frame": _gif((50, 40), (5, 3, _palette(23, 37))),
        "GIF two colors": encoded(_palette(23, 37).point(lambda index: index % 2), "GIF", optimize=True),
        "GIF blocks of one byte": _gif((37, 23), (0, 0, _palette(23, 37)), extension=b"!\xfe" + 3 * b"\1x" + b"\0"),
        "GIF large frame": _gif((10, 10), (5, 3, _palette(23, 37))),
        "GIF growing": _gif((37, 23), (0, 0, _palette(23, 37)), (0, 0, _palette(50, 60))),
        "GIF without screen": _gif((0, 0), (0, 0, _palette(23, 37))),
        "JPEG": JPEG,
        "JPEG gray": encoded(gray, "JPEG"),
        "JPEG pixel": encoded(picture(1, 1), "JPEG"),
        "JPEG CMYK": encoded(rgb.convert("CMYK"), "JPEG"),
        "JPEG progressive": encoded(rgb, "JPEG", progressive=True),
        "JPEG restarts": encoded(rgb, "JPEG", restart_marker_blocks=1),
        "JPEG thumbnail": encoded(rgb, "JPEG", exif=exif_segment(6, "<") + THUMBNAIL),
        "JPEG JFIF thumbnail": _with(_segment(0xE0, b"JFXX\0\x10" + THUMBNAIL)),
        "JPEG fill bytes": _with(b"\xff\xff\xff", _segment(0xFE, b"comment")),
        "JPEG bytes between": _with(_segment(0xFE, b"comment"), b"\0\1\2\xff\0\3"),
        "JPEG large segments": _with(*[_segment(0xE2, bytes(65533))] * 20),
        "JPEG many segments": _with(*[_segment(0xFE, b"")] * 1900),
    }  # fmt: skip


def test_sizes_are_those_of_pillow():
    files = _files()
    sizes = _size(list(files.values()))
    expected = [PIL.Image.open(io.BytesIO(file)).size[::-1] for file in files.values()]
    assert dict(zip(files, map(tuple, sizes), strict=True)) == dict(zip(files, expected, strict=True))


@pytest.mark.slow
def test_files_in_any_shape():
    # Pillow fails at these markers without a length, TensorFlow's decoder does not.
    file = _with(b"\xff\x01\xff\xd0\xff\xd7")
    np.testing.assert_array_equal(decode_upright(file, 3), PIL.Image.open(io.BytesIO(JPEG)))
    assert _size(file).tolist() == [23, 37]
    assert _size([[file, PNG], [b"", JPEG]]).tolist() == [[[23, 37], [8, 12]], [[0, 0], [23, 37]]]
    assert _size(np.zeros((0, 2), "S")).shape == (0, 2, 2)


PNG = encoded(noise(8, 12), "PNG")
BMP = encoded(noise(8, 12), "BMP")
GIF = encoded(_palette(8, 12), "GIF")
REFUSED = {
    "empty": b"",
    "text": b"<svg xmlns='http://www.w3.org/2000/svg'/>" * 3,
    "TIFF": encoded(noise(8, 12), "TIFF"),
    "JPEG XL": b"\xff\x0a" + bytes(100),
    "JPEG without a frame": JPEG[:2] + b"\xff\xd9",
    "JPEG pixels before the frame": _with(b"\xff\xda\0\2"),
    "JPEG second start": _with(b"\xff\xd8"),
    "JPEG unknown marker": _with(_segment(0xF0, b"")),
    "JPEG too many segments": _with(*[_segment(0xFE, b"")] * 2001),
    "JPEG segment beyond the end": _with(_segment(0xE2, bytes(65533))[:100]),
    "PNG other chunk first": PNG[:8] + b"\0\0\0\0tEXt\0\0\0\0" + PNG[8:],
    "PNG no width": PNG[:16] + bytes(4) + PNG[20:],
    "PNG negative height": PNG[:20] + b"\xff" + PNG[21:],
    "BMP of 1 bit": encoded(picture(8, 12, "L").convert("1"), "BMP"),
    "BMP of 16 bits": BMP[:28] + b"\x10" + BMP[29:],
    "BMP compressed": BMP[:30] + b"\1" + BMP[31:],
    "BMP of OS/2": BMP[:14] + b"\x0c" + BMP[15:],
    "GIF without a frame": _gif((12, 8)),
    "GIF empty frame": GIF[: GIF.index(b",\0\0\0\0") + 5] + bytes(4) + GIF[GIF.index(b",\0\0\0\0") + 9 :],
    "GIF unknown block": _gif((12, 8), (0, 0, _palette(8, 12)), extension=b"?"),
    "GIF too many blocks": _gif((12, 8), (0, 0, _palette(8, 12)), extension=b"!\xfe\0" * 1001),
    "WebP animation": encoded(noise(8, 12), "WEBP", save_all=True, append_images=[picture(8, 12)]),
    "WebP unknown chunk": encoded(noise(8, 12), "WEBP").replace(b"VP8 ", b"VP9 "),
}


def test_what_is_refused():
    sizes = _size(list(REFUSED.values()))
    assert {name: size.tolist() for name, size in zip(REFUSED, sizes, strict=True) if size.any()} == {}


@pytest.mark.slow
def test_incomplete_headers():
    for name, file in _files().items():
        if len(file) < 5000:
            # All lengths near the beginning, where the header is.
            ends = np.r_[0:700, 700 : len(file) : 41, len(file)]
            ends = np.unique(ends[ends <= len(file)])
            sizes = _size([file[:end] for end in ends])
            known = sizes.all(axis=1)
            # Once the file is long enough, the result no longer changes.
            assert (np.diff(known.astype(int)) >= 0).all(), name
            assert 14 <= ends[known.argmax()] < len(file), name
            assert (sizes[known] == sizes[-1]).all(), name
            assert not sizes[~known].any(), name


def _damaged(file, rng):
    """A truncated file, or one with bytes changed (mostly near the beginning) and sometimes inserted."""
    if rng.random() < 0.2:
        return file[: rng.integers(len(file))]
    damaged = bytearray(file)
    for place in rng.integers(0, min(len(file), rng.choice([64, 700, len(file)])), rng.integers(1, 4)):
        damaged[place] = rng.integers(256)
    if rng.random() < 0.1:
        damaged[place:place] = rng.bytes(3)
    return bytes(damaged)


@pytest.mark.slow
def test_damaged_files_have_the_size_that_they_are_decoded_to():
    import tensorflow as tf

    rng = np.random.default_rng(0)
    files = [file for file in _files().values() if len(file) < 5000]
    damaged = [_damaged(files[i % len(files)], rng) for i in range(500)]
    decode = tf.function(lambda file: tf.shape(decode_upright(file, 3)))
    decode = decode.get_concrete_function(tf.TensorSpec([], tf.string))
    decoded = 0
    for file, size in zip(damaged, _size(damaged), strict=True):
        if 0 < size.prod() < 10**6:
            try:
                shape = decode(tf.constant(file)).numpy()
            except (tf.errors.InvalidArgumentError, tf.errors.CancelledError):
                continue  # TensorFlow may report a cancelled loop instead.
            # Rotated images have their sides swapped.
            assert sorted(shape[:2]) == sorted(size)
            decoded += 1
    assert 100 < decoded < 400


def test_orientations():
    plain = [JPEG, PNG, b"", JPEG[:50], encoded(noise(8, 12), "GIF"), encoded(noise(8, 12), "WEBP")]
    turned = [
        encoded(noise(8, 12), ("JPEG", "PNG", "WEBP")[i % 3], exif=exif_segment(i, order))
        for i in range(1, 9)
        for order in "<>"
    ]
    behind = _with(_segment(0xFE, bytes(300)), b"\xff", _segment(0xE1, exif_segment(6, ">", [(0x0100, 8)] * 900)))
    first = _with(_segment(0xE1, exif_segment(3, ">")), _segment(0xE1, exif_segment(5, ">")))
    files = [*plain, *turned, behind, first]
    expected = [1] * len(plain) + [i for i in range(1, 9) for _ in "<>"] + [6, 3]
    assert exif_orientation(files).numpy().tolist() == expected
    assert exif_orientation(behind).numpy() == 6


def _chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@pytest.mark.combination("EXIF at both ends of a PNG or WebP file, damaged EXIF in it", "as Pillow; ignored")
def test_positions_of_exif_in_png_and_webp():
    exif = exif_segment(6, "<")
    parts = PNG[:33], PNG[33:-12], PNG[-12:]  # The last chunk, IEND, has 12 bytes.
    chunk, large = _chunk(b"eXIf", exif[6:]), _chunk(b"teXt", bytes(2**16))
    files = {
        parts[0] + chunk + parts[1] + parts[2]: 6,
        parts[0] + parts[1] + chunk + parts[2]: 6,
        parts[0] + _chunk(b"eXIf", exif) + parts[1] + parts[2]: 6,
        parts[0] + large + large + parts[1] + chunk + parts[2]: 6,
        parts[0] + chunk + large + large + parts[1] + parts[2]: 6,
        parts[0] + chunk[:8] + b"XX" + chunk[10:] + parts[1] + parts[2]: 1,  # This is neither "II" nor "MM".
        (parts[0] + chunk)[:-20]: 1,
        PNG + b"eXIf": 1,
    }
    webp = encoded(noise(8, 12), "WEBP", exif=exif_segment(5, ">"), xmp=bytes(2**15))
    without_flag = webp[:20] + bytes([webp[20] & ~8]) + webp[21:]
    files |= {webp: 5, without_flag: 1, webp[: webp.index(b"EXIF") + 20]: 1}
    for file, expected in files.items():
        with contextlib.suppress(OSError, SyntaxError):  # Pillow raises an error for some damaged files.
            assert PIL.Image.open(io.BytesIO(file)).getexif().get(0x0112, 1) == expected
    assert exif_orientation(list(files)).numpy().tolist() == list(files.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("screen", "corner", "size"),
    [((37, 23), (0, 0), (23, 37)), ((50, 40), (3, 5), (40, 50)), ((10, 10), (3, 5), (26, 42))],
)
def test_first_frame(screen, corner, size):
    image = _palette(23, 37)
    later = [(0, 0, _palette(90, 80))] * 3
    file = _gif(screen, (*corner[::-1], image), *later, extension=b"!\xfe\5hello\0")
    frame, found_corner, found_size = first_frame(file)
    assert (tuple(found_corner.numpy()), tuple(found_size.numpy())) == (corner, size)
    with PIL.Image.open(io.BytesIO(frame.numpy())) as alone:
        assert alone.n_frames == 1
        np.testing.assert_array_equal(alone.convert("RGB").crop((0, 0, 37, 23)), image.convert("RGB"))
    # All later frames may be missing, but the first must be complete.
    end = len(file) - len(_gif(screen, *later)) + 13
    assert first_frame(file[:end])[0].numpy() == frame.numpy()
    for cut in (0, 5, 13, 30, end // 2, end - 1):
        assert first_frame(file[:cut])[0].numpy() == b""


def test_frame_in_blocks_of_any_length():
    file = _gif((37, 23), (0, 0, _palette(23, 37)))
    start = 13 + 10 + 768 + 1
    data, position = b"", start
    while file[position]:
        data += file[position + 1 : position + 1 + file[position]]
        position += 1 + file[position]
    frames = set()
    for lengths in ([255], [1], [7, 200, 3]):
        blocks, rest, i = b"", data, 0
        while rest:
            block, rest = rest[: lengths[i % len(lengths)]], rest[lengths[i % len(lengths)] :]
            blocks, i = blocks + bytes([len(block)]) + block, i + 1
        again = file[:start] + blocks + b"\0;"
        frames.add(first_frame(again)[0].numpy() == again)
    assert frames == {True}


def test_scans_are_counted_as_the_decoder_meets_them():
    """Scans are counted despite misleading content: end markers in comments, thumbnails, appended files."""
    import tensorflow as tf

    file = encoded(noise(23, 37), "JPEG", progressive=True)
    frame = file.index(b"\xff\xc2")
    comment = _segment(0xFE, b"\xff\xd9" + 9 * b"\xff\xda")
    thumbnail = file[:2] + _segment(0xE1, file) + file[2:]
    files = [file, file[:frame] + comment + file[frame:], file[:-2] + comment + file[-2:], thumbnail, file + 3 * file]
    twice = file[:-2] + comment + file[frame:]  # The scans of the second frame follow the comment.
    long = file[:-2] + 3000 * _segment(0xFE, b"") + 101 * b"\xff\xda\0\x08"
    several = [*files, twice, b"\xff\xd8", b"\xff\xd8\xff", long]
    counts = [*[10] * len(files), 20, 0, 0, 2000]
    has_many = tf.function(has_too_many_scans, [tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int64)])
    for most in (9, 10, 19, 20):
        expected = [count > most for count in counts]
        assert has_many(several, [most] * len(several)).numpy().tolist() == expected
    assert has_many([file, file], [9, 10]).numpy().tolist() == [True, False]
