"""Reads the markers of JPEG files (ITU-T T.81, annex B), in the same way as libjpeg, and the EXIF blocks of images.

Only TensorFlow's operations are used. Files may be malicious. The functions therefore raise no error for any content of
a file, and the numbers of their steps and bytes are limited.
"""

import numpy as np
import tensorflow as tf

MAX_SEGMENTS = 2000
"""Maximum number of segments of a file that are read. Real files have tens of segments."""

# Table B.1. _SEGMENT_MARKERS have a length and may precede a frame: DHT, DAC, DQT, DNL, DRI, application segments,
# comments. _LONE_MARKERS have no length: TEM, RSTn.
FRAME_MARKERS = [*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)]
_SEGMENT_MARKERS = [0xC4, 0xCC, *range(0xDB, 0xDE), *range(0xE0, 0xF0), 0xFE]
_LONE_MARKERS = [0x01, *range(0xD0, 0xD8)]
DIRECTORY_BYTES = 2**16 - 1
"""Maximum number of bytes of a TIFF directory that are read. In JPEG files, a directory is shorter than this."""
_MAX_ENTRIES = 1000  # Maximum number of entries of a directory that are read. Real directories have tens.
_END_BYTES = 2**16  # The EXIF block of a PNG or WebP file is searched in this many bytes at both ends of the file.


def find_frame(image_bytes, is_jpeg):
    """Finds the frame of JPEG files. Segments are skipped as in libjpeg, so that libjpeg finds the same frame.

    Returns:
        A tuple of int32 positions (end, exif). end: where the search ended. If the file is valid, this is the marker of
        the frame. exif: the first EXIF segment before the frame, or 0 if there is none.
    """
    # steps[m] is the number of bytes to skip at the marker 0xFF m, in addition to the segment's length. steps[256]
    # applies to bytes other than 0xFF.
    steps = np.zeros(257, "int32")
    steps[[0x00, *_LONE_MARKERS, *_SEGMENT_MARKERS]] = 2
    steps[[0xFF, 256]] = 1
    has_length = np.zeros(257, bool)
    has_length[_SEGMENT_MARKERS] = True
    size = tf.strings.length(image_bytes)

    def walk(position, exif, _):
        words = tf.strings.substr(image_bytes, tf.minimum(position, size), tf.fill(tf.shape(size), 8))
        words = tf.cast(tf.io.decode_raw(words, tf.uint16, little_endian=False, fixed_length=8), tf.int32)  # (..., 4)
        marker = tf.where(words[..., 0] >= 0xFF00, words[..., 0] - 0xFF00, 256)
        length = tf.where(tf.gather(has_length, marker), words[..., 1], 0)
        is_exif = tf.reduce_all(tf.gather(words, [0, 2, 3], axis=-1) == [0xFFE1, 0x4578, 0x6966], axis=-1)
        exif = tf.where(is_exif & (exif == 0), position, exif)
        step = tf.gather(steps, marker) + length
        goes_on = (step > 0) & (position < size)
        return tf.where(goes_on, position + step, position), exif, goes_on

    none = tf.zeros(tf.shape(image_bytes), tf.int32)
    start = tf.where(is_jpeg, 2, size)
    position, exif, _ = tf.while_loop(
        lambda *state: tf.reduce_any(state[-1]), walk, (start, none, is_jpeg), maximum_iterations=MAX_SEGMENTS
    )
    return position, exif


def count_scans(jpeg):
    """Returns the number of scans that libjpeg finds in a JPEG file, int64.

    If the file has more than `MAX_SEGMENTS` segments, the result is `MAX_SEGMENTS`.
    """
    content = tf.concat([tf.io.decode_raw(jpeg, tf.uint8), [0, 0, 0, 0]], axis=0)
    size = tf.strings.length(jpeg)
    # Inside compressed pixels, a zero follows each 0xFF that is not part of a restart marker.
    ends_pixels = np.ones(256, bool)
    ends_pixels[[0x00, 0xFF, *range(0xD0, 0xD8)]] = False
    markers = tf.cast(tf.where(content == 0xFF)[:, 0], tf.int32)
    markers = tf.boolean_mask(markers, tf.gather(ends_pixels, tf.cast(tf.gather(content, markers + 1), tf.int32)))
    markers = tf.concat([markers, [size]], axis=0)

    def is_inside(position, _):
        return (position < size) & (content[position + 1] != 0xD9)

    def skip(position, scans):
        marker, high, low = tf.unstack(tf.cast(content[position + 1 : position + 4], tf.int32), 3)
        length = tf.where((marker == 0x01) | (marker == 0xD8), 0, 256 * high + low)
        next_one = tf.searchsorted(markers[:-1], [position + 2 + length])[0]
        return markers[next_one], scans + tf.cast(marker == 0xDA, tf.int64)

    start = (markers[0], tf.constant(0, tf.int64))
    position, scans = tf.while_loop(is_inside, skip, start, maximum_iterations=MAX_SEGMENTS)
    return tf.where(is_inside(position, scans), tf.constant(MAX_SEGMENTS, tf.int64), scans)


def find_directory(image_bytes):
    """Finds the TIFF directories in the EXIF blocks of PNG and WebP files.

    The names of the chunks are searched, because a walk over the chunks of a large PNG file would take thousands of
    steps. The first bytes of the directory follow the name, so compressed pixels are not mistaken for a directory.

    Returns:
        Strings of the shape of `image_bytes`. They are empty for files without a directory.
    """
    is_png = tf.strings.substr(image_bytes, 0, 4) == b"\x89PNG"
    # In an extended WebP file, the fourth bit of the flags means EXIF.
    flags = r"[\x08-\x0f\x18-\x1f\x28-\x2f\x38-\x3f]"
    is_webp = tf.strings.regex_full_match(tf.strings.substr(image_bytes, 0, 21), r"RIFF\C{4}WEBPVP8X\C{4}" + flags)
    length = tf.strings.length(image_bytes)
    tail = tf.minimum(tf.maximum(length - _END_BYTES, _END_BYTES), length)
    directories = []
    # RE2 finds a pattern with a fixed beginning quickly. In WebP files, the length of the chunk follows its name.
    for is_kind, name in ((is_png, "eXIf"), (is_webp, r"EXIF\C{4}")):
        num_bytes = tf.where(is_kind, _END_BYTES, 0)
        ends = [tf.strings.substr(image_bytes, start, num_bytes) for start in (tf.zeros_like(tail), tail)]
        ends = tf.strings.join(ends)
        before = tf.strings.regex_replace(ends, name + r"(Exif\x00\x00)?(II\*\x00|MM\x00\*)\C*", "")
        chunk = tf.strings.substr(ends, tf.strings.length(before), num_bytes)
        directories.append(tf.strings.regex_replace(chunk, f"^{name}(Exif\\x00\\x00)?", ""))
    return tf.strings.join(directories)


def orientation_in(directory):
    """Reads the orientation in TIFF directories (Exif 2.32, section 4.6.4).

    Args:
        directory: String tensor of any shape. Bytes after the first `DIRECTORY_BYTES` are not read.

    Returns:
        int32 of the same shape, from 1 to 8. If there is no orientation, it is 1.
    """
    shape, rank = tf.shape(directory), directory.shape.rank
    # A damaged directory may point anywhere, so the content is padded with zeros.
    directory = tf.strings.substr(directory, 0, DIRECTORY_BYTES)
    content = tf.io.decode_raw(directory, tf.uint8, fixed_length=DIRECTORY_BYTES + 1)

    def numbers(positions, num_bytes):
        positions = positions[..., None] + tf.range(num_bytes, dtype=tf.int64)
        digits = tf.gather(content, tf.minimum(positions, DIRECTORY_BYTES), batch_dims=rank)
        powers = [256**i for i in range(num_bytes)]
        powers = tf.where(is_little_endian[..., None], powers, powers[::-1])
        return tf.reduce_sum(tf.cast(digits, tf.int64) * tf.cast(powers, tf.int64), axis=-1)

    is_little_endian = (content[..., 0] == ord("I"))[..., None]  # "II" means little-endian, "MM" big-endian.
    start = numbers(tf.fill(shape, tf.constant(4, tf.int64))[..., None], 4)
    num_entries = tf.minimum(numbers(start, 2), _MAX_ENTRIES)
    indices = tf.range(tf.reduce_max(num_entries))
    entries = start + 2 + 12 * indices
    # The first orientation is used. An entry with the value 1 is added at the end, in case there is no orientation.
    upright = tf.ones_like(start)
    is_orientation = tf.concat([(numbers(entries, 2) == 0x0112) & (indices < num_entries), upright == 1], axis=-1)
    values = tf.concat([numbers(entries + 8, 2), upright], axis=-1)
    first = tf.argmax(tf.cast(is_orientation, tf.int32), axis=-1)[..., None]
    orientation = tf.gather(values, first, batch_dims=rank)[..., 0]
    return tf.cast(tf.where((orientation >= 1) & (orientation <= 8), orientation, 1), tf.int32)
