"""Files of results, and the tables that are written from them into documents."""

import json
import pathlib

DOCUMENT = pathlib.Path(__file__).parents[1] / "docs" / "performance.md"
FIGURES = DOCUMENT.parent / "figures"
_RESULTS = pathlib.Path(__file__).with_name("results")


def add_options(parser, name):
    """Adds the options of every benchmark: its file of results, `results/NAME.jsonl`, and `--document`."""
    add, results = parser.add_argument, _RESULTS / f"{name}.jsonl"
    add("--results", type=pathlib.Path, default=results, metavar="FILE", help="file that the results are added to")
    add("--document", action="store_true", help=f"write the table, and the figure, into {DOCUMENT.name}")


def append(rows, path):
    """Adds lines of JSON to a results file, which is created if it does not exist."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)


def read(path):
    """The lines of a results file, as dictionaries."""
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def newest(rows, keys):
    """The newest lines for each combination of the values of `keys`."""
    last = {tuple(row[key] for key in keys): row["time"] for row in rows}
    return [row for row in rows if row["time"] == last[tuple(row[key] for key in keys)]]


def put_between(command, text, document):
    """Replaces the text between a command's two marks in a document."""
    begin, end = (f"<!-- make {command}: {mark} -->\n" for mark in ("begin", "end"))
    path = pathlib.Path(document)
    before, _, rest = path.read_text().partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}{text}{end}{after}")
