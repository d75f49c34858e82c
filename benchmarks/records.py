"""Files of results, and the tables that are written from them into documents."""

import json
import pathlib

_DOCS = pathlib.Path(__file__).parents[1] / "docs"
FIGURES = _DOCS / "figures"
PAGES = {
    "bench": _DOCS / "performance" / "comparison.md",
    "bench-latency": _DOCS / "performance" / "latency.md",
    "bench-first-step": _DOCS / "performance" / "first_step.md",
    "bench-size": _DOCS / "performance" / "cost.md",
    "bench-speed": _DOCS / "performance" / "cost.md",
    "bench-input": _DOCS / "performance" / "input_pipeline.md",
    "bench-merging": _DOCS / "performance" / "token_merging.md",
    "bench-agreement": _DOCS / "performance" / "token_merging.md",
    "bench-scenes": _DOCS / "segmentation.md",
    "bench-tokens": _DOCS / "models" / "visual_transformers.md",
    "bench-int8-settings": _DOCS / "serving" / "eight_bits.md",
    "bench-tensorflow-int8": _DOCS / "serving" / "eight_bits.md",
    **dict.fromkeys((f"bench-cifar10 {part}" for part in ("hour", "options", "contenders")), _DOCS / "cifar10.md"),
    "mutation": _DOCS / "testing.md",
}
"""The page that each command writes its table into."""
_RESULTS = pathlib.Path(__file__).with_name("results")


def add_options(parser, command, name):
    """Adds the options of a command: its file of results, `results/NAME.jsonl`, and `--document`."""
    add, results = parser.add_argument, _RESULTS / f"{name}.jsonl"
    add("--results", type=pathlib.Path, default=results, metavar="FILE", help="file that the results are added to")
    add("--document", action="store_true", help=f"write the results into {PAGES[command].name}")


def append(rows, path):
    """Adds lines of JSON to a results file, which is created if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)


def read(path):
    """The lines of a results file, as dictionaries. Ends the program if the file does not exist."""
    try:
        return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    except FileNotFoundError:
        raise SystemExit(f"{path} does not exist. Measure first, or name another file with --results.") from None


def newest(rows, keys):
    """The newest lines for each combination of the values of `keys`."""
    last = {tuple(row[key] for key in keys): row["time"] for row in rows}
    return [row for row in rows if row["time"] == last[tuple(row[key] for key in keys)]]


def markdown_table(columns, rows, right=()):
    """A table in Markdown. The columns with names in `right` are right-aligned."""
    alignment = ["--:" if name in right else "---" for name in columns]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (columns, alignment, *rows))


def put_between(command, text):
    """Replaces the text between a command's two marks in its page."""
    begin, end = (f"<!-- make {command}: {mark} -->\n" for mark in ("begin", "end"))
    page = PAGES[command]
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}{text}{end}{after}")
