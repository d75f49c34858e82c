"""TFDS data sets without a download: random images, and splits with the true sizes."""

import contextlib
import functools

import tensorflow_datasets as tfds

from training.data.sets.digits import Digits

NUM_EXAMPLES = 24
"""What every split gives, whatever its size: the first so many."""


@contextlib.contextmanager
def mocked_data_sets(directory, sizes, array_records=()):
    """Makes data sets of TFDS look prepared within this context.

    `tfds.testing.mock_data` generates the images, but does not know the splits. This function writes the metadata
    that TFDS stores with prepared data.

    Args:
        directory: An empty folder for the metadata.
        sizes: {name of a data set: {split: number of images}}
        array_records: Names of the data sets in ArrayRecord files. The others are in TFRecord files.
    """
    for name, of_splits in sizes.items():
        _write_metadata(directory, name, of_splits, "array_record" if name in array_records else "tfrecord")
    policy = tfds.testing.MockPolicy.USE_FILES
    with tfds.testing.mock_data(num_examples=NUM_EXAMPLES, data_dir=str(directory), policy=policy):
        yield


def _write_metadata(directory, name, sizes, file_format):
    make = Digits if name == "digits" else functools.partial(tfds.builder, name)
    builder = make(data_dir=directory, file_format=file_format)
    template = tfds.core.ShardedFileTemplate(
        dataset_name=builder.name, data_dir=builder.data_path, filetype_suffix=builder.info.file_format.file_suffix
    )
    splits = [
        tfds.core.SplitInfo(
            name=split, shard_lengths=[size], num_bytes=0, filename_template=template.replace(split=split)
        )
        for split, size in sizes.items()
    ]
    builder.info.set_splits(tfds.core.splits.SplitDict(splits))
    builder.data_path.mkdir(parents=True)
    builder.info.write_to_directory(builder.data_path)
