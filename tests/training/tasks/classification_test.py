"""Samples of the images in a classification run."""

import tensorflow as tf

from training.data.dataset import Dataset
from training.data.sources import IndexedSource
from training.runs.folder import Run
from training.tasks.classification import Task


def test_samples_have_names_of_their_own(brief_recipe, tmp_path):
    """Of several right classes, the first names a sample."""
    labels = tf.ragged.constant([[], [3, 1], [1], [2], [0, 1], [3], [4], [5]], tf.int64)
    source = IndexedSource(8, lambda index: {"image": tf.strings.as_string(index), "label": labels[index]})
    dataset, run = Dataset(("ant", "bee", "a bee", "a/bee", "犬", ".."), {"test": source}), Run(tmp_path)
    run.samples.mkdir()
    paths = Task(brief_recipe).write_samples(dataset, run)
    print({path.name: path.read_bytes() for path in paths})
    assert {path.name: path.read_bytes() for path in paths} == {"0-ant": b"4", "1-bee": b"2", "2-a_bee": b"3"}
    assert sorted(run.samples.iterdir()) == sorted(paths)
