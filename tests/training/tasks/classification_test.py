"""Samples of the images in a classification run."""

import tensorflow as tf

from training.data.dataset import Dataset
from training.data.sources import IndexedSource
from training.runs.folder import Run
from training.tasks.classification import Task


def test_samples_have_names_of_their_own(brief_recipe, tmp_path):
    """Of several right classes, the first names a sample."""
    labels = tf.ragged.constant([[], [3, 1], [1], [2], [0, 1], [3], [4], [5], [6], [7], [8]], tf.int64)
    source = IndexedSource(11, lambda index: {"image": tf.strings.as_string(index), "label": labels[index]})
    dataset = Dataset(("ant", "bee", "a bee", "a/bee", "犬", "..", "gnu", "hen", "ibis"), {"test": source})
    run = Run(tmp_path)
    run.samples.mkdir()
    paths = Task(brief_recipe).write_samples(dataset, run)
    written = {path.name: int(path.read_bytes()) for path in paths}  # At most eight.
    expected = {"0-ant": 4, "1-bee": 2, "2-a_bee": 3, "3-a_bee": 1, "4-犬": 6, "5-_": 7, "6-gnu": 8, "7-hen": 9}
    assert written == expected
    assert sorted(run.samples.iterdir()) == sorted(paths)
