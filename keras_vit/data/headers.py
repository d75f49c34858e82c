"""Reads headers of encoded images without decoding them: size, orientation, first frame of a GIF file.

Only TensorFlow's operations are used, so that the functions can be part of a SavedModel. Files may be malicious. The
functions therefore raise no error for any content of a file, and the number of their steps is limited.
"""

import functools

import tensorflow as tf

from keras_vit.data import markers

_MAX_STEPS = 2000  # Maximum number of blocks of a GIF file that are read. Real files have tens of blocks.
MAX_SCANS = 100
"""Maximum number of scans of a JPEG file. Real files have up to about a dozen scans."""
_MAX_RUN = 1024  # Maximum number of consecutive GIF blocks of the same length that are skipped in one step.


def as_operation(function):
    """Decorates a function of tensors that seldom runs, such as the code for a rare format.

    In a graph, the function is a single operation. TensorFlow optimises it when it runs for the first time, and not
    when the graph runs for the first time.
    """

    @functools.wraps(function)
    def call(*tensors):
        if tf.executing_eagerly():
            return function(*tensors)
        return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})(*tensors)

    return call


def encoded_size(image_bytes):
    """Reads the size of encoded images from their headers.

    `decoding.decode_upright` returns images of this size, unless the EXIF orientation swaps height and width.

    Args:
        image_bytes: String tensor of any shape, the contents of files.

    Returns:
        int64, the shape of `image_bytes` followed by 2: height and width in pixels. Both are 0 in these cases:

        * The file is not JPEG, PNG, GIF, BMP or WebP, or its header is damaged or incomplete.
        * TensorFlow would decode the file incorrectly. This applies to BMP files that are compressed, have an OS/2
          header, or do not have 8, 24 or 32 bits per pixel.
        * The frame of a JPEG file is not among its first 2000 segments, or the first frame of a GIF file is not among
          its first 2000 blocks.
    """
    return read_header(image_bytes)[0]


def exif_orientation(image_bytes):
    """Reads the EXIF orientation of encoded images, from 1 to 8. Files without an orientation have 1 (upright).

    JPEG, PNG and WebP files can have an orientation. In PNG and WebP files, the EXIF block must start in the first or
    last 64 KB.

    Args:
        image_bytes: String tensor of any shape, the contents of files.

    Returns:
        int32 of the same shape.
    """
    return read_header(image_bytes)[1]


def read_header(image_bytes):
    """Returns the results of `encoded_size` and `exif_orientation`, but reads the headers only once."""
    length = tf.strings.length(image_bytes)
    head = _bytes_at(image_bytes, tf.zeros_like(length), 66)
    is_jpeg = _starts_with(head, b"\xff\xd8\xff")
    frame, exif = markers.find_frame(image_bytes, is_jpeg)
    # In most batches all files are JPEG files. Then the headers of other formats are not read.
    none = tf.zeros_like(head[..., :2]), tf.zeros_like(image_bytes)
    other_size, other_exif = tf.cond(
        tf.reduce_all(is_jpeg),
        lambda: none,
        lambda: (_other_size(image_bytes), as_operation(markers.find_directory)(image_bytes)),
    )
    size = _jpeg_size(image_bytes, frame) + other_size
    is_possible = tf.reduce_all((size > 0) & (size < 2**31), axis=-1)
    return _where(is_possible, size), _orientation(image_bytes, exif, other_exif)


def is_animated_webp(image_bytes):
    """Whether files are WebP animations, which TensorFlow does not decode: bool, of the shape of `image_bytes`."""
    chunk = _bytes_at(image_bytes, tf.zeros_like(tf.strings.length(image_bytes)) + 12, 9)
    return _starts_with(chunk, b"VP8X") & _has_animation(chunk[..., 8])


def has_too_many_scans(image_bytes, most=MAX_SCANS):
    """Whether JPEG files have more than `most` scans. A scan of 10 bytes can take as long to decode as a whole image.

    Args:
        image_bytes: (B,) strings.
        most: Maximum number of scans, (B,) int64, or one number for all files.

    Returns:
        bool (B,)
    """
    is_jpeg = tf.strings.substr(image_bytes, 0, 2) == b"\xff\xd8"
    parts = tf.strings.split(tf.where(is_jpeg, image_bytes, ""), b"\xff\xda", maxsplit=markers.MAX_SEGMENTS)
    # The bytes FF DA do not always start a scan. In a video that follows the image, they occur by chance every 64 KB.
    num_markers = parts.row_lengths() - 1
    indices = tf.where(num_markers > most)[:, 0]

    @as_operation
    def count_exactly():
        counts = tf.map_fn(markers.count_scans, tf.gather(image_bytes, indices), fn_output_signature=tf.int64)
        return tf.tensor_scatter_nd_update(num_markers, indices[:, None], counts)

    return tf.cond(tf.size(indices) > 0, count_exactly, lambda: num_markers) > most


def first_frame(gif_bytes):
    """Extracts the first frame of a GIF file, because TensorFlow always decodes all frames.

    Args:
        gif_bytes: Scalar string.

    Returns:
        A tuple (frame, position, size). frame: a GIF file that only contains the first frame, or an empty string if the
        frame is damaged or incomplete. position: int64 (top, left) of the frame in the picture. size: int64 (height,
        width) of the picture.
    """
    length = tf.strings.length(gif_bytes)
    head = _bytes_at(gif_bytes, 0, 13)
    position, descriptor, canvas = _gif_layout(gif_bytes, head)
    data = position + 11 + _color_table_bytes(descriptor[9])
    end = _end_of_blocks(tf.io.decode_raw(gif_bytes, tf.uint8), data)

    def part(start, end):
        start = tf.minimum(start, length)
        return tf.strings.substr(gif_bytes, start, tf.maximum(end - start, 0))

    colors = part(0, 13 + _color_table_bytes(head[10]))
    frame = tf.strings.join([colors, b",\0\0\0\0", part(position + 5, end), b";"])
    corner = tf.stack([_little_endian(descriptor[3:5]), _little_endian(descriptor[1:3])])
    return tf.where(end > 0, frame, b""), corner, canvas


def bmp_palette(image_bytes):
    """Reads the palette of a BMP file.

    Args:
        image_bytes: Scalar string, the contents of a file that `encoded_size` supports.

    Returns:
        uint8 (256, 3), where missing colors are black, or (0, 3) for a file without palette.
    """
    head = _bytes_at(image_bytes, 0, 30)
    length = tf.strings.length(image_bytes)
    start, end = (
        tf.cast(tf.minimum(position, tf.cast(length, tf.int64)), tf.int32)
        for position in (14 + _little_endian(head[14:18]), _little_endian(head[10:14]))
    )
    table = tf.strings.substr(image_bytes, start, tf.maximum(end - start, 0))
    colors = tf.reshape(tf.io.decode_raw(table, tf.uint8, fixed_length=1024), [256, 4])[:, 2::-1]
    return colors[: tf.where(_little_endian(head[28:30]) == 8, 256, 0)]


def _bytes_at(image_bytes, position, count):
    """Reads `count` bytes from `position` on: int64 with one more axis. Bytes after the end of a file are zeros."""
    length = tf.strings.length(image_bytes)
    part = tf.strings.substr(image_bytes, tf.minimum(position, length), tf.fill(tf.shape(length), count))
    return tf.cast(tf.io.decode_raw(part, tf.uint8, fixed_length=count), tf.int64)


def _starts_with(head, prefix):
    return tf.reduce_all(head[..., : len(prefix)] == list(prefix), axis=-1)


def _big_endian(digits):
    return tf.reduce_sum(digits * [256**i for i in reversed(range(digits.shape[-1]))], axis=-1)


def _little_endian(digits):
    return _big_endian(digits[..., ::-1])


def _where(condition, size):
    """The sizes (height, width) where a condition is true, and zeros elsewhere."""
    return tf.where(condition[..., None], size, 0)


def _jpeg_size(image_bytes, position):
    header = _bytes_at(image_bytes, position, 9)
    is_frame = (header[..., 0] == 0xFF) & tf.reduce_any(header[..., 1, None] == markers.FRAME_MARKERS, axis=-1)
    is_complete = position + 9 <= tf.strings.length(image_bytes)
    return _where(is_frame & is_complete, tf.stack([_big_endian(header[..., 5:7]), _big_endian(header[..., 7:9])], -1))


@as_operation
def _other_size(image_bytes):
    """The size of files of other formats than JPEG."""
    length = tf.strings.length(image_bytes)
    head = _bytes_at(image_bytes, tf.zeros_like(length), 66)
    is_gif, (_, _, canvas) = _starts_with(head, b"GIF8"), _gif_layout(image_bytes, head)
    return _png_size(head, length) + _bmp_size(head, length) + _webp_size(head, length) + _where(is_gif, canvas)


def _png_size(head, length):
    """The size in the header, which is the first chunk of a PNG file (PNG specification, section 11.2.1)."""
    is_png = _starts_with(head, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR") & (length >= 24)
    return _where(is_png, tf.stack([_big_endian(head[..., 20:24]), _big_endian(head[..., 16:20])], axis=-1))


def _bmp_size(head, length):
    """The size in a Windows header of 40 bytes or more. If the height is negative, the first row is the top row."""
    header_size, width, height, compression = (_little_endian(head[..., i : i + 4]) for i in (14, 18, 22, 30))
    bits = _little_endian(head[..., 28:30])
    # These bit fields define the default order of the colors.
    is_usual = (bits == 32) & _starts_with(head[..., 54:], b"\0\0\xff\0\0\xff\0\0\xff\0\0\0") & (length >= 66)
    is_plain = (compression == 0) | ((compression == 3) & is_usual)
    is_bmp = _starts_with(head, b"BM") & (header_size >= 40) & is_plain & (length >= 54)
    is_bmp &= tf.reduce_any(bits[..., None] == [8, 24, 32], axis=-1)
    return _where(is_bmp, tf.stack([tf.where(height < 2**31, height, 2**32 - height), width], axis=-1))


def _webp_size(head, length):
    """The size in the first chunk of a WebP file. The format is lossy, lossless or extended (RFC 9649)."""
    is_webp = _starts_with(head, b"RIFF") & _starts_with(head[..., 8:], b"WEBP")
    is_lossy = _starts_with(head[..., 12:], b"VP8 ") & _starts_with(head[..., 23:], b"\x9d\x01\x2a") & (length >= 30)
    is_lossless = _starts_with(head[..., 12:], b"VP8L") & (head[..., 20] == 0x2F) & (length >= 25)
    # TensorFlow does not decode animations.
    is_extended = _starts_with(head[..., 12:], b"VP8X") & ~_has_animation(head[..., 20]) & (length >= 30)
    lossy = [_little_endian(head[..., i : i + 2]) % 2**14 for i in (28, 26)]
    bits = _little_endian(head[..., 21:25])
    lossless = [bits // 2**14 % 2**14 + 1, bits % 2**14 + 1]
    extended = [_little_endian(head[..., i : i + 3]) + 1 for i in (27, 24)]
    kinds = [(is_lossy, lossy), (is_lossless, lossless), (is_extended, extended)]
    return tf.add_n([_where(is_webp & is_kind, tf.stack(size, axis=-1)) for is_kind, size in kinds])


def _has_animation(flags):
    """Whether the second bit, which means animation, is set in the flags of an extended WebP file."""
    return flags // 2 % 2 == 1


def _gif_layout(image_bytes, head):
    """Reads the headers of a GIF file (GIF89a, sections 18 and 20).

    Returns (position, descriptor, size). position: int32, the position of the first frame's descriptor. descriptor: its
    10 bytes. size: (height, width) of the picture, enlarged to contain the frame, or zeros if no frame was found.
    """
    size = tf.strings.length(image_bytes)

    def walk(position, is_inside, _):
        byte = tf.cast(_bytes_at(image_bytes, position, 1)[..., 0], tf.int32)
        # An extension consists of a marker, a label, and blocks. The last block is empty.
        goes_on = (position < size) & (is_inside | (byte == 0x21))
        step = tf.where(is_inside, 1 + byte, 2)
        return tf.where(goes_on, position + step, position), tf.where(is_inside, byte > 0, goes_on), goes_on

    start = 13 + _color_table_bytes(head[..., 10])
    is_gif = _starts_with(head, b"GIF8")
    position, _, _ = tf.while_loop(
        lambda *state: tf.reduce_any(state[-1]),
        walk,
        (tf.where(is_gif, start, size), tf.zeros_like(is_gif), is_gif),
        maximum_iterations=_MAX_STEPS,
    )
    descriptor = _bytes_at(image_bytes, position, 10)
    is_frame = (descriptor[..., 0] == 0x2C) & (position + 10 <= size)
    left, top, width, height = (_little_endian(descriptor[..., i : i + 2]) for i in (1, 3, 5, 7))
    is_frame &= (width > 0) & (height > 0)
    canvas_width, canvas_height = (_little_endian(head[..., i : i + 2]) for i in (6, 8))
    canvas = tf.stack([tf.maximum(canvas_height, top + height), tf.maximum(canvas_width, left + width)], axis=-1)
    return position, descriptor, _where(is_frame, canvas)


def _color_table_bytes(flags):
    """The length of the color table according to the flags of a GIF file: int32."""
    flags = tf.cast(flags, tf.int32)
    return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(2, flags % 8), 0)


def _end_of_blocks(content, start):
    """The position after the GIF blocks that begin at `start`, or 0 if `content`, uint8 (n,), ends within them."""
    size = tf.size(content)
    content = tf.concat([content, [0]], axis=0)  # Appends an empty block.

    def skip(position):
        step = tf.cast(content[position], tf.int32) + 1
        lengths = content[position : position + _MAX_RUN * step : step]
        is_same = tf.concat([lengths == lengths[0], [False]], axis=0)
        return [tf.minimum(position + step * tf.argmin(tf.cast(is_same, tf.int32), output_type=tf.int32), size)]

    [end] = tf.while_loop(
        lambda position: content[position] > 0, skip, [tf.minimum(start, size)], maximum_iterations=_MAX_STEPS
    )
    return tf.where((content[end] == 0) & (end < size), end + 1, 0)


def _orientation(image_bytes, segment, other):
    """The orientations of files. They are computed only if at least one file has an EXIF block.

    `segment` contains the position of the EXIF segment of a JPEG file, or 0. `other` is the result of
    `markers.find_directory`.
    """

    def read():
        num_bytes = tf.fill(tf.shape(segment), markers.DIRECTORY_BYTES)
        start = tf.minimum(segment + 10, tf.strings.length(image_bytes))
        directory = tf.strings.substr(image_bytes, start, num_bytes)
        return as_operation(markers.orientation_in)(tf.where(segment > 0, directory, other))

    return tf.cond(tf.reduce_any((segment > 0) | (other != b"")), read, lambda: tf.ones_like(segment))
