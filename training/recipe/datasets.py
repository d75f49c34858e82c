"""The data sets that a recipe can name besides those of TFDS."""

import typing


class BuiltIn(typing.NamedTuple):
    """Properties of a data set that determine which fields of a recipe are used.

    Args:
        has_directory: Whether its files are in `data.directory`.
        is_tfds: Whether TFDS prepares it and defines its splits.
        is_stream: Whether it can be read as a stream, through a shuffle buffer.
    """

    has_directory: bool = False
    is_tfds: bool = False
    is_stream: bool = False


BUILT_IN = {
    "digits": BuiltIn(is_tfds=True, is_stream=True),
    "folder": BuiltIn(has_directory=True),
    "records": BuiltIn(has_directory=True, is_stream=True),
    "shapes": BuiltIn(),
}
"""{value of `data.dataset`: properties}"""
IN_DIRECTORY = [name for name, properties in BUILT_IN.items() if properties.has_directory]
