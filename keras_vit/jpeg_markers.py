"""Reads the markers of JPEG files (ITU-T T.81, annex B) in the same way as libjpeg.

Only TensorFlow's operations are used. TensorFlow is imported inside the functions only. Files may be malicious. The
functions therefore raise no error for any content of a file, and the number of their steps is limited.
"""

import numpy as np

MAX_SEGMENTS = 2000
"""Maximum number of segments of a file that are read. Real files have tens of segments."""

# Table B.1. _SEGMENT_MARKERS have a length and may precede a frame: DHT, DAC, DQT, DNL, DRI, application segments,
# comments. _LONE_MARKERS have no length: TEM, RSTn.
FRAME_MARKERS = [*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)]
_SEGMENT_MARKERS = [0xC4, 0xCC, *range(0xDB, 0xDE), *range(0xE0, 0xF0), 0xFE]
_LONE_MARKERS = [0x01, *range(0xD0, 0xD8)]


def find_frame(image_bytes, is_jpeg):
    """Finds the frame of JPEG files. Segments are skipped as in libjpeg, so that libjpeg finds the same frame.

    Returns:
        A tuple of int32 positions (end, exif). end: where the search ended. If the file is valid, this is the marker of
        the frame. exif: the first EXIF segment before the frame, or 0 if there is none.
    """
    import tensorflow as tf

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
    import tensorflow as tf

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
