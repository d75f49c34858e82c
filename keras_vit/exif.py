"""Reads the orientation in the EXIF blocks of images.

Only TensorFlow's operations are used. TensorFlow is imported inside the functions only. Files may be malicious. The
functions therefore raise no error for any content of a file, and read a limited number of bytes.
"""

DIRECTORY_BYTES = 2**16 - 1
"""Maximum number of bytes of a TIFF directory that are read. In JPEG files, a directory is shorter than this."""
_MAX_ENTRIES = 1000  # Maximum number of entries of a directory that are read. Real directories have tens.
_END_BYTES = 2**16  # The EXIF block of a PNG or WebP file is searched in this many bytes at both ends of the file.


def find_directory(image_bytes):
    """Finds the TIFF directories in the EXIF blocks of PNG and WebP files.

    The names of the chunks are searched, because a walk over the chunks of a large PNG file would take thousands of
    steps. The first bytes of the directory follow the name, so compressed pixels are not mistaken for a directory.

    Returns:
        Strings of the shape of `image_bytes`. They are empty for files without a directory.
    """
    import tensorflow as tf

    length = tf.strings.length(image_bytes)
    num_bytes = tf.fill(tf.shape(length), _END_BYTES)
    tail = tf.minimum(tf.maximum(length - _END_BYTES, _END_BYTES), length)
    ends = [tf.strings.substr(image_bytes, 0, _END_BYTES), tf.strings.substr(image_bytes, tail, num_bytes)]
    ends = tf.strings.join(ends)
    # RE2 finds a pattern with a fixed beginning quickly. In WebP files, the length of the chunk follows its name.
    png, webp = (
        tf.strings.regex_replace(ends, name + r"(Exif\x00\x00)?(II\*\x00|MM\x00\*)\C*", "")
        for name in ("eXIf", r"EXIF\C{4}")
    )
    is_png = tf.strings.substr(image_bytes, 0, 4) == b"\x89PNG"
    # In an extended WebP file, the fourth bit of the flags means EXIF.
    flags = r"[\x08-\x0f\x18-\x1f\x28-\x2f\x38-\x3f]"
    is_webp = tf.strings.regex_full_match(tf.strings.substr(image_bytes, 0, 21), r"RIFF\C{4}WEBPVP8X\C{4}" + flags)
    before = tf.where(is_png, png, tf.where(is_webp, webp, ends))
    chunk = tf.strings.substr(ends, tf.strings.length(before), num_bytes)
    return tf.strings.regex_replace(chunk, r"^(eXIf|EXIF\C{4})(Exif\x00\x00)?", "")


def orientation_in(directory):
    """Reads the orientation in TIFF directories (Exif 2.32, section 4.6.4).

    Args:
        directory: String tensor of any shape. Bytes after the first `DIRECTORY_BYTES` are not read.

    Returns:
        int32 of the same shape, from 1 to 8. If there is no orientation, it is 1.
    """
    import tensorflow as tf

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
