"""Samples of the images in a classification run."""

import pytest
import tensorflow as tf

from training.data.dataset import Dataset
from training.data.sources import IndexedSource
from training.runs.folder import Run
from training.tasks.classification import Task


@pytest.mark.slow
def test_of_several_right_classes_the_first_names_a_sample(brief_recipe, tmp_path):
    labels = tf.ragged.constant([[], [2, 1], [1], [2], [0, 1]], tf.int64)
    source = IndexedSource(5, lambda index: {"image": tf.strings.as_string(index), "label": labels[index]})
    dataset, run = Dataset(("ant", "bee", "a cat"), {"test": source}), Run(tmp_path)
    run.samples.mkdir()
    paths = Task(brief_recipe).write_samples(dataset, run)
    assert {path.name: path.read_bytes() for path in paths} == {"0-ant": b"4", "1-bee": b"2", "2-a_cat": b"1"}
