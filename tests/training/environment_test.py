"""The command line's environment: packages and variables."""

import os
import re
import subprocess
import sys

import pytest

from training.__main__ import main


def test_a_package_that_is_not_installed_is_named():
    """NumPy is imported first, so the program ends soon."""
    program = "import sys; sys.modules['numpy'] = None; from training.__main__ import main; sys.exit(main(['train']))"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.returncode == 2
    assert re.fullmatch(r"error: numpy is not installed. .*pip install '.\[training\]'\n", process.stderr)


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_tensorflow_uses_onednn_unless_the_environment_says_otherwise(before, after, monkeypatch):
    """TensorFlow reads the variable when it is imported, so the command has no other effect here."""
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    if before:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", before)
    assert not main(["train", "--show"])
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == after
