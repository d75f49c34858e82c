"""Only regular files are accepted, because reading others may never end."""

import csv
import os
import pathlib
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.folder import read_file
from training.errors import InputError
from training.files import write_csv
from training.inspection import predict as module
from training.inspection.predict import predict


@pytest.fixture
def pipe(tmp_path):
    """A pipe without a writer. If a reader waits for it, the pipe ends after a second."""
    path = tmp_path / "pipe.jpg"
    os.mkfifo(path)
    timer = threading.Timer(1, lambda: os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK)))
    timer.start()
    yield path
    timer.cancel()


def test_pipes_folders_and_devices_are_not_read(pipe, tmp_path):
    for path in (pipe, pathlib.Path("/dev/zero")):
        with pytest.raises(OSError, match="It is a pipe, a device or a socket, not a file"):
            read_file(path)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "missing.jpg")
    (tmp_path / "file").write_bytes(b"content")
    assert read_file(tmp_path / "file") == b"content"


def test_predict_names_a_pipe_and_goes_on(pipe, monkeypatch, capsys):
    def serve(image_bytes):
        return {name: tf.constant(value)[None] for name, value in answer.items()}

    answer = {"valid": True, "labels": np.array([b"ant"]), "scores": np.array([0.5])}
    serve.structured_input_signature, serve.structured_outputs = ((), {"image_bytes": None}), answer
    monkeypatch.setattr(module, "find_saved_model", pathlib.Path)
    loaded = types.SimpleNamespace(signatures={"serving_default": serve})
    monkeypatch.setattr(tf.saved_model, "load", lambda folder: loaded)
    assert predict("exported", [pipe, __file__]) == 1
    output = capsys.readouterr().out
    assert f"{pipe}: cannot be read: It is a pipe, a device or a socket, not a file" in output
    assert f"{__file__}: ant 50.0%" in output


def test_rows_come_back_from_a_file(tmp_path):
    path, rows = tmp_path / "rows.csv", [("class", "images"), ("a, b", "1,293"), ("d", "7")]
    write_csv(path, rows)
    with open(path, newline="") as file:
        assert list(map(tuple, csv.reader(file))) == rows
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write_csv(tmp_path / "absent" / "absent.csv", rows)
