"""Training images that are deleted or damaged during a run."""

import hashlib

import pytest
import tensorflow as tf

from training.data.contents import Item
from training.data.failures import IntactFiles
from training.errors import InputError


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
    paths[4].unlink()
    with pytest.raises(InputError, match=r"More than data\.max_failures=2 training images"):
        files.read(tf.constant(4, tf.int64))
