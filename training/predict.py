"""Image files in, classes out, through a SavedModel and TensorFlow alone: keras_vit is not imported here."""

import pathlib

import tensorflow as tf

from training.errors import InputError


def predict(source, paths, top=5):
    """Prints the most probable classes of image files.

    Args:
        source: A run's folder, a folder of exported versions (the highest is taken), or a SavedModel.
        paths: Paths of JPEG, PNG, GIF, BMP or WebP files.
        top: How many classes to print, at most as many as the SavedModel returns.

    Returns:
        How many of the files could not be read. They are named, and the others predicted.

    Raises:
        InputError: If `source` leads to no SavedModel.
    """
    folder = find_saved_model(source)
    serve = tf.saved_model.load(str(folder)).signatures.get("serving_default")
    if serve is None or "image_bytes" not in serve.structured_input_signature[1]:
        raise InputError(f"{folder} takes no encoded images. Export the model with: python -m training export")
    unreadable = 0
    for path in map(pathlib.Path, paths):
        try:
            outputs = serve(image_bytes=tf.constant([path.read_bytes()]))
        except OSError as error:
            unreadable += 1
            print(f"{path}: cannot be read: {error.strerror}")
            continue
        if not outputs["valid"].numpy()[0]:
            unreadable += 1
            print(f"{path}: is not an image that can be decoded (JPEG, PNG, GIF, BMP or WebP)")
        else:
            labels, scores = outputs["labels"].numpy()[0][:top], outputs["scores"].numpy()[0][:top]
            classes = (f"{label.decode()} {score:.1%}" for label, score in zip(labels, scores, strict=True))
            print(f"{path}: {', '.join(classes)}")
    return unreadable


def find_saved_model(source):
    """The folder of the SavedModel that a run, a folder of versions or a SavedModel leads to."""
    source = pathlib.Path(source)
    for folder in (source, source / "export"):
        versions = [path for path in folder.glob("*") if path.name.isdigit()]
        for candidate in [folder, *sorted(versions, key=lambda path: int(path.name), reverse=True)]:
            if (candidate / "saved_model.pb").is_file():
                return candidate
    if (source / "recipe.json").is_file():
        raise InputError(f"The run in {source} is not finished. To go on: python -m training train run={source}")
    hint = " A .keras file is made one by: python -m training export FILE" if source.suffix == ".keras" else ""
    raise InputError(f"{source} is neither a run's folder nor a SavedModel.{hint}")
