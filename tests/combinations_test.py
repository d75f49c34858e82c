"""The table of combinations in docs/robustness.md."""

from tests.combinations import END, PAGE, START, rows, table


def test_the_page_lists_all_combinations():
    assert len({setting for setting, _, _ in rows()}) == len(list(rows())), "two rows have the same combination"
    assert START + table() + END in PAGE.read_text(), "run python -m tests.combinations"
