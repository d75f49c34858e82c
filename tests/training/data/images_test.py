"""Training images that are deleted or damaged during a run."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from tests.training.data.sets.folder_test import write_image
from training import recipes
from training.data.contents import Item
from training.data.images import IntactFiles
from training.data.loading import load_dataset
from training.engine.distribution import Engine
from training.errors import InputError
from training.recipe.assignments import override
from training.runs.folder import Run, open_run, read_record


def test_the_next_intact_image_is_read(tmp_path, capsys):
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for path in paths:
        path.write_bytes(path.name.encode())
    items = [Item(path.name, 5, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths]
    paths[2].unlink()
    paths[3].write_bytes(b"0.png")
    files = IntactFiles(map(str, paths), items, max_failures=2)
    for _ in range(2):  # Each failure is counted once.
        for index, other in enumerate([0, 1, 4, 4, 4]):
            content, read = files.read(tf.constant(index, tf.int64))
            assert (content.numpy(), int(read)) == (b"%d.png" % other, other)
    assert capsys.readouterr().out == (
        f"\nReplaced {paths[2]}: No such file or directory (failure 1 of at most 2)\n"
        f"\nReplaced {paths[3]}: the file has changed (failure 2 of at most 2)\n"
    )
    twice = IntactFiles([str(paths[2])] * 2 + [str(paths[0])], [items[2], items[2], items[0]], max_failures=1)
    assert int(twice.read(tf.constant(0, tf.int64))[1]) == 2  # A file with two texts is one failure.
    paths[4].unlink()
    with pytest.raises(InputError, match=r"More than data\.max_failures=2 training images"):
        files.read(tf.constant(4, tf.int64))


@pytest.mark.combination(
    "resume a run with data.max_failures=1 after images were added", "refused; the added images are listed"
)
def test_a_run_does_not_go_on_with_added_images(tmp_path):
    for number in range(20):
        write_image(tmp_path / "photographs" / ("cat", "dog")[number % 2] / f"{number}.png")
    fields = [f"data.directory={tmp_path / 'photographs'}", "data.max_failures=1"]
    recipe, folder = override(recipes.load("folder"), fields), tmp_path / "run"
    open_run(recipe, load_dataset(recipe.data), None, folder, Engine(None))
    for number in range(20, 24):  # Some of them are training images.
        write_image(tmp_path / "photographs" / "cat" / f"{number}.png")
    dataset = load_dataset(recipe.data, record=read_record(Run(folder), "resume"))
    with pytest.raises(InputError, match=r"started with other data:\n(.*\n)*  new or changed: cat/20\.png, cat/21"):
        open_run(recipe, dataset, None, folder, Engine(None))


@pytest.mark.parametrize(("annotation", "cells"), [("labels", ["cat;dog", "", "dog"]), ("values", ["0.1", "2", "3"])])
def test_images_of_a_table_are_replaced_with_their_annotations(annotation, cells, tmp_path):
    names = [f"{number}.png" for number in range(20)]
    for name in names:
        write_image(tmp_path / name)
    rows = [f"{name},{cells[number % 3]}" for number, name in enumerate(names)]
    (tmp_path / "table.csv").write_text("\n".join([f"path,{annotation}", *rows]))
    fields = [
        "data.dataset=table",
        f"data.directory={tmp_path / 'table.csv'}",
        "data.max_failures=1",
        "data.cache=false",
    ]
    task = {"labels": "multilabel", "values": "regression"}[annotation]
    recipe = override(recipes.load("digits"), [f"task={task}", *fields])
    dataset = load_dataset(recipe.data, annotation)
    train = dataset.splits["train"]
    before = list(train.in_order().as_numpy_iterator())
    open_run(recipe, dataset, None, tmp_path / "run", Engine(None))
    first, *_ = dataset.contents.items["train"]
    (tmp_path / first.path).unlink()
    resumed = load_dataset(recipe.data, annotation, record=read_record(Run(tmp_path / "run"), "resume"))
    for source in (train, resumed.splits["train"]):
        after = list(source.in_order().as_numpy_iterator())
        assert len(after) == len(before)
        for example, other in zip(after, before[1:2] + before[1:], strict=True):
            assert example["image"] == other["image"]
            np.testing.assert_array_equal(example[annotation], other[annotation])
