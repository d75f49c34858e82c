import csv

import pytest

from training.errors import InputError
from training.reports.tables import lay_out, write_csv

_ROWS = [("class", "images", "taken for"), ("a, b", "1,293", "c"), ("d", "7", "")]


def test_text_starts_together_and_numbers_end_together():
    assert lay_out(_ROWS, texts=(0, 2)).split("\n") == ["class  images  taken for", "a, b    1,293  c", "d           7"]


def test_rows_come_back_from_a_file(tmp_path):
    path = tmp_path / "rows.csv"
    write_csv(path, _ROWS)
    with open(path, newline="") as file:
        assert list(map(tuple, csv.reader(file))) == _ROWS
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write_csv(tmp_path / "absent" / "absent.csv", _ROWS)
