"""Refusing a file of 10 MB takes at most 5 s of processor time, and memory of at most 64 MB plus 100 times its size."""

import os
import re
import sys

import pytest

from tests.fresh_process import costs_of_refusals
from tests.weights.converter_case import CONFIG
from tests.weights.hostile_files import write_hostile_files

MOST_SECONDS, FREE_BYTES, MOST_INFLATION = 5, 64 * 2**20, 100
HUB = CONFIG.replace(mlp="gelu_exact", layer_norm_epsilon=1e-12)


def _size(path):
    return sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else os.path.getsize(path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the peak memory")
def test_refusing_costs_little(saved, tmp_path):
    small = {"google": saved("google").path, **{name: saved(name, HUB).path for name in ("keras_hub", "huggingface")}}
    files = write_hostile_files(tmp_path, small)
    costs = costs_of_refusals({name: (str(path), arguments) for name, (path, arguments, _) in files.items()})
    for name, (path, _, match) in files.items():
        error, seconds, num_bytes = costs[name]
        assert re.search(f"(?s)^ValueError: .*{match}", error), f"{name}: {error[:1000]}"
        assert len(error) < 5_000, name
        assert seconds < MOST_SECONDS, name
        assert num_bytes < FREE_BYTES + MOST_INFLATION * min(_size(path), 10**7), name
