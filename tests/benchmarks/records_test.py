"""The pages that the benchmarks write into."""

import pytest

from benchmarks.records import PAGES


@pytest.mark.parametrize("command", PAGES)
def test_a_page_has_the_marks_of_its_command(command):
    text = PAGES[command].read_text()
    begin, end = (f"\n<!-- make {command}: {mark} -->\n" for mark in ("begin", "end"))
    assert (text.count(begin), text.count(end)) == (1, 1)
    assert text.index(begin) < text.index(end)
