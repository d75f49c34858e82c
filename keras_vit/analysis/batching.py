"""Many images, a few at a time."""

from keras_vit.checks import check_positive_integer


def batches(images, batch_size):
    """The images of an array in batches of at most `batch_size`.

    What is no array is taken for batches already, such as a `tf.data.Dataset` of images, and passed on as it is.

    Raises:
        ValueError: At the end, if there was none.
    """
    check_positive_integer("batch_size", batch_size)
    parts = images
    if hasattr(images, "shape"):
        parts = (images[start : start + batch_size] for start in range(0, len(images), batch_size))
    batch = None
    for batch in parts:
        yield batch
    if batch is None:
        raise ValueError("There is no image. Give at least one.")
