"""Training images that are deleted or damaged during a run."""

import hashlib

import pytest
import tensorflow as tf

from training.data.contents import Contents, Item, find_problems
from training.data.failures import FailureLimit
from training.errors import InputError


@pytest.fixture
def files(tmp_path):
    """(paths, items) of five files."""
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for path in paths:
        path.write_bytes(path.name.encode())
    items = [Item(path.name, 5, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths]
    return paths, items


def test_the_next_intact_image_is_read(files, capsys):
    paths, items = files
    paths[2].unlink()
    paths[3].write_bytes(b"0.png")
    limit = FailureLimit(map(str, paths), items, most=2)
    for _ in range(2):  # Each failure is counted once.
        assert [int(limit(tf.constant(index, tf.int64))) for index in range(5)] == [0, 1, 4, 4, 4]
    assert capsys.readouterr().out == (
        f"\nSkipped {paths[2]}: No such file or directory (failure 1 of at most 2)\n"
        f"\nSkipped {paths[3]}: the file has changed (failure 2 of at most 2)\n"
    )
    paths[4].unlink()
    with pytest.raises(InputError, match=r"More than data\.max_failures=2 training images"):
        limit(tf.constant(4, tf.int64))


def test_problems_are_found(files, tmp_path):
    paths, items = files
    contents = Contents({"train": tuple(items)})
    assert find_problems(contents, tmp_path) == {}
    paths[1].write_bytes(b"0.png")
    assert find_problems(contents, tmp_path) == {"1.png": "the file has changed"}
    paths[0].unlink()
    assert find_problems(contents, tmp_path) == {"0.png": "No such file or directory"}
