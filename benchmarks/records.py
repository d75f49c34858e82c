"""Lines of results, and what of them stands in documents."""

import json
import pathlib

DOCUMENT = pathlib.Path(__file__).parents[1] / "docs" / "performance.md"


def append(rows, path):
    """Adds lines of JSON to a results file, which is made if it is not there."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)


def read(path):
    """The lines of a results file, as dictionaries."""
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def put_between(marks, text, document):
    """Puts text between two marks in a document, in place of what stands there."""
    path = pathlib.Path(document)
    begin, end = marks
    before, _, rest = path.read_text().partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}{text}{end}{after}")
