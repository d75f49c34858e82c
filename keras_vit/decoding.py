"""Encoded images to pixels, as a model expects them: the one place for training, evaluation and serving.

TensorFlow is imported inside the functions only. H W C image.
"""

from keras_vit.preprocessing import preprocessing_layer


def image_decoder(model):
    """Makes the function that reads an encoded image as a model expects it.

    Args:
        model: A model of this package with a fixed input size (H, W, C), where C is 1 or 3.

    Returns:
        A TensorFlow function from a scalar string, the contents of a JPEG, PNG, GIF, BMP or WebP file, to uint8
        (H, W, C). The EXIF orientation of JPEG files is applied, transparency dropped (a WebP file must have none), the
        first frame of an animation taken, and the result resized and cropped as the model's `preprocessing` layer says.

    Raises:
        ValueError: If the model's input size is not fixed, is not what its protocol leads to, or C is neither 1 nor 3.
    """
    import tensorflow as tf

    protocol, size, channels = input_protocol(model)

    def decode(image_bytes):
        image = decode_upright(image_bytes, channels)
        resized = protocol.resize
        if isinstance(resized, int):
            sides = tf.cast(tf.shape(image)[:2], tf.float32)
            resized = tf.cast(tf.round(sides * (resized / tf.reduce_min(sides))), tf.int32)
        image = resize(image, resized, protocol.interpolation)
        top_left = (tf.shape(image)[:2] - size) // 2
        return tf.slice(image, [top_left[0], top_left[1], 0], [*size, channels])

    return decode


def input_protocol(model):
    """How a model wants its images.

    Returns:
        The model's `preprocessing` layer, the input size [height, width] in pixels, and the number of channels.

    Raises:
        ValueError: As `image_decoder`.
    """
    protocol = preprocessing_layer(model)
    _, *size, channels = model.input_shape
    if None in size:
        raise ValueError(
            f"Reading encoded images needs a model of fixed size. Received: a model for images of shape "
            f"{tuple(model.input_shape[1:])}. Build it with an input_shape such as (224, 224, 3) and copy the "
            f"weights."
        )
    if channels not in (1, 3):
        raise ValueError(f"Encoded images have 1 or 3 channels here. Received: a model for {channels}.")
    result = protocol.crop or protocol.resize
    resized = [protocol.resize] * 2 if isinstance(protocol.resize, int) else protocol.resize
    if result != size or resized is None or any(side < cut for side, cut in zip(resized, size, strict=True)):
        raise ValueError(
            f"The model takes images of {size[0]} x {size[1]} pixels, but its preprocessing layer does not lead to "
            f"that size: resize={protocol.resize}, crop={protocol.crop}."
        )
    return protocol, size, channels


def decode_upright(image_bytes, channels):
    """All pixels of an encoded image, as it is to be looked at: uint8 (height, width, channels), channels 1 or 3."""
    import tensorflow as tf

    image = tf.cond(
        tf.io.is_jpeg(image_bytes),
        # As Pillow decodes it. TensorFlow's default is off by some grey levels.
        lambda: tf.io.decode_jpeg(image_bytes, channels=3, dct_method="INTEGER_ACCURATE"),
        lambda: tf.io.decode_image(image_bytes, channels=3, expand_animations=False),
    )
    image = upright(image, exif_orientation(image_bytes))
    return luma(image) if channels == 1 else image


def resize(image, size, interpolation):
    """An image of `size` (height, width), antialiased and rounded as image libraries do: uint8."""
    import tensorflow as tf

    image = tf.image.resize(image, size, interpolation, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)


def luma(image):
    """RGB to gray, ITU-R 601-2 in 16 bits as in Pillow: uint8 (H, W, 3) to (H, W, 1)."""
    import tensorflow as tf

    # The channels one by one: adding up along an axis of three takes three times as long.
    red, green, blue = (tf.cast(channel, tf.int32) for channel in tf.unstack(image[..., None], axis=-2))
    return tf.cast(tf.bitwise.right_shift(19595 * red + 38470 * green + 7471 * blue + 2**15, 16), tf.uint8)


def upright(image, orientation):
    """Undoes an EXIF orientation from 1 to 8 (Exif 2.32, section 4.6.4)."""
    import tensorflow as tf

    def where(orientations, change, image):
        return tf.cond(tf.reduce_any(orientation == orientations), lambda: change(image), lambda: image)

    image = where([5, 6, 7, 8], tf.image.transpose, image)
    image = where([2, 3, 6, 7], tf.image.flip_left_right, image)
    return where([3, 4, 7, 8], tf.image.flip_up_down, image)


def exif_orientation(image_bytes):
    """The EXIF orientation of an encoded image, from 1 to 8; 1 (upright) if it is no JPEG or says nothing."""
    import tensorflow as tf

    is_jpeg = tf.strings.substr(image_bytes, 0, 2) == b"\xff\xd8"
    return tf.cond(is_jpeg, lambda: _jpeg_orientation(image_bytes), lambda: 1)


def _jpeg_orientation(image_bytes):
    import tensorflow as tf

    size = tf.strings.length(image_bytes)

    def header(segment):
        """Marker, length and the first two words of what follows."""
        head = tf.strings.substr(image_bytes, tf.minimum(segment, size), 8)
        return tf.cast(tf.io.decode_raw(head, tf.uint16, little_endian=False, fixed_length=8), tf.int32)

    def is_exif(header):
        return tf.reduce_all(tf.gather(header, [0, 2, 3]) == [0xFFE1, 0x4578, 0x6966])  # APP1, "Exif"

    def is_other(segment, header):
        return (segment + 5 < size) & (header[0] >= 0xFF00) & (header[0] != 0xFFDA) & ~is_exif(header)

    def following(segment, current):
        segment += 2 + current[1]
        return segment, header(segment)

    segment, found = tf.while_loop(is_other, following, [2, header(2)])
    tiff = tf.strings.substr(image_bytes, tf.minimum(segment + 10, size), 2**16)
    return tf.cond(is_exif(found), lambda: _tiff_orientation(tiff), lambda: 1)


def _tiff_orientation(tiff_bytes):
    """The orientation that a TIFF directory names, or 1 if it does not."""
    import tensorflow as tf

    # A damaged file may point anywhere: zeros answer for all that is not there.
    content = tf.concat([tf.io.decode_raw(tiff_bytes, tf.uint8), tf.zeros([1], tf.uint8)], axis=0)
    end = tf.size(content, tf.int64) - 1

    def number(position, num_bytes, little_endian):
        powers = [256**i for i in range(num_bytes)]
        weights = tf.where(little_endian, tf.constant(powers, tf.int64), tf.constant(powers[::-1], tf.int64))
        positions = position[..., None] + tf.range(num_bytes, dtype=tf.int64)
        return tf.reduce_sum(tf.cast(tf.gather(content, tf.minimum(positions, end)), tf.int64) * weights, axis=-1)

    start = tf.constant(0, tf.int64)
    little_endian = number(start, 2, False) == 0x4949  # "II"; otherwise "MM"
    directory = number(start + 4, 4, little_endian)
    entries = directory + 2 + 12 * tf.range(tf.minimum(number(directory, 2, little_endian), 1000))
    is_orientation = number(entries, 2, little_endian) == 0x0112
    found = tf.boolean_mask(number(entries + 8, 2, little_endian), is_orientation)
    found = tf.concat([found, [1]], axis=0)[0]
    return tf.cast(tf.where((found >= 1) & (found <= 8), found, 1), tf.int32)
