"""The pages that the benchmarks write into."""

import pytest

from benchmarks.records import PAGES, append, read


def test_results_in_a_new_folder(tmp_path):
    path = tmp_path / "new" / "folder" / "results.jsonl"
    with pytest.raises(SystemExit, match=r"results\.jsonl does not exist\. Measure first, or name another file"):
        read(path)
    append([{"seconds": 1.5}], path)
    assert read(path) == [{"seconds": 1.5}]


@pytest.mark.parametrize("command", PAGES)
def test_a_page_has_the_marks_of_its_command(command):
    text = PAGES[command].read_text()
    begin, end = (f"\n<!-- make {command}: {mark} -->\n" for mark in ("begin", "end"))
    assert (text.count(begin), text.count(end)) == (1, 1)
    assert text.index(begin) < text.index(end)
