"""The table of combinations of ordinary use in docs/robustness.md, from the marks of the tests that check them.

python -m tests.combinations writes the table into the page.
"""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "robustness.md"
START, END = "<!-- combinations -->\n", "<!-- end of combinations -->\n"
_MARK = "pytest.mark.combination"


def rows():
    """Yields (setting, what is expected, path of the file and name of the test) for each mark."""
    for path in sorted((ROOT / "tests").rglob("*_test.py")):
        text = path.read_text()
        if _MARK not in text:
            continue
        for test in ast.parse(text).body:
            if isinstance(test, ast.FunctionDef):
                for node in ast.walk(test):
                    if isinstance(node, ast.Call) and ast.unparse(node.func) == _MARK:
                        setting, expected = map(ast.literal_eval, node.args)
                        yield setting, expected, f"{path.relative_to(ROOT)}::{test.name}"


def table():
    """The table in Markdown."""
    lines = [
        f"| {setting} | {expected} | `{test}` |"
        for setting, expected, test in sorted(rows(), key=lambda row: row[0].lower())
    ]
    return "\n".join(["| combination | what happens | test |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + START + table() + END + rest.partition(END)[2])
