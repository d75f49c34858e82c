"""The commands `draw`, `trace`, `select`, `run` and `report` of mutation testing."""

import argparse
import dataclasses
import datetime
import pathlib
import sys
import tempfile

from benchmarks import mutation
from benchmarks.mutation.drawing import PACKAGES, Mutant, draw
from benchmarks.mutation.report import STATUSES, markdown
from benchmarks.mutation.running import Controls, Worker, run
from benchmarks.mutation.selection import Library, Selector
from benchmarks.mutation.suites import commit, digests, divide, fingerprint, read_suite, trace
from benchmarks.mutation.tiers import Cover, choose, killers
from benchmarks.records import append, newest, put_between, read

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "mutation.jsonl"
FOLDER = ROOT / "mutation"
"""Folder of files that the commands can make again. git ignores it."""


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutation",
        description=mutation.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--folder", type=pathlib.Path, default=FOLDER, help="folder of mutants, compiled programs and logs"
    )
    common.add_argument("--results", type=pathlib.Path, default=RESULTS, metavar="FILE", help="file of records")
    _add_draw(commands.add_parser("draw", parents=[common], help="draws mutants"))
    _add_trace(commands.add_parser("trace", parents=[common], help="records which tests execute which lines"))
    _add_select(commands.add_parser("select", parents=[common], help="chooses the tests of the default tier"))
    _add_run(commands.add_parser("run", parents=[common], help="tests the mutants"))
    report = commands.add_parser("report", parents=[common], help="prints totals and surviving mutants")
    report.add_argument("--document", action="store_true", help="write the report into testing.md")
    own, pytest_arguments = _divide(sys.argv[1:] if arguments is None else list(arguments))
    options = parser.parse_args(own)
    options.pytest = pytest_arguments
    return options


def _divide(arguments):
    """The arguments before the first `--`, and after it."""
    position = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:position], arguments[position + 1 :]


def _add_draw(parser):
    parser.add_argument("--count", type=int, default=300, help="minimum number of mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkout", type=pathlib.Path, default=ROOT)


def _add_trace(parser):
    parser.add_argument("trace", type=pathlib.Path, help="folder of the record")
    parser.add_argument("--checkout", type=pathlib.Path, default=ROOT)
    parser.add_argument("--backend", default="tensorflow", choices=["tensorflow", "jax"])
    parser.epilog = "Arguments after -- are passed to pytest."


def _add_select(parser):
    add = parser.add_argument
    add("trace", type=pathlib.Path, help="trace of all tests")
    add("--covered-by", type=pathlib.Path, nargs="*", default=[], help="traces whose lines need no further test")
    add("--kept", type=pathlib.Path, help="file that lists tests to choose in any case, one in each line")


def _add_run(parser):
    add = parser.add_argument
    add("--new", type=pathlib.Path, nargs="+", required=True, metavar="TRACE", help="traces of the suite to examine")
    add("--old", type=pathlib.Path, nargs="*", default=[], metavar="TRACE", help="traces of the suite to compare with")
    add("--workers", type=int, default=2)
    add("--budget", type=float, default=120, help="seconds of processor time for each mutant in each new suite")
    add("--old-budget", type=float, default=240, help="seconds of processor time for each mutant in each old suite")
    add("--ids", nargs="+", help="identifiers of the mutants to examine (default: all mutants)")
    add("--again", nargs="+", choices=STATUSES, help="examine mutants of this status again, e.g. with a larger budget")


def _draw(options):
    mutants = draw(options.checkout, options.count, options.seed)
    path = options.folder / "mutants.jsonl"
    path.unlink(missing_ok=True)
    append([dataclasses.asdict(mutant) for mutant in mutants], path)
    for mutant in mutants:
        print(f"{mutant.id} {mutant.path}:{mutant.line} {mutant.kind}: {mutant.before!r} -> {mutant.after!r}")
    print(f"{len(mutants)} mutants in {path}")
    return 0


def _trace(options):
    return trace(options.trace, options.checkout, options.backend, options.pytest, _cache(options))


def _select(options):
    """Prints the chosen tests, and divides the trace into `TRACE-chosen` and `TRACE-rest`, for the command `run`."""
    suite = read_suite(options.trace)
    kept = options.kept.read_text().splitlines() if options.kept else []
    kept += killers(newest(read(options.results), ("id", "source"))) if options.results.exists() else []
    covered = set().union(*(Cover(read_suite(path)).all_lines for path in options.covered_by))
    chosen = choose(suite, [test for test in dict.fromkeys(kept) if test in suite.own], covered)
    for test, lines in chosen.items():
        print(f"{lines:5} lines {suite.seconds[test]:7.3f} s  {test}")
    cover = Cover(suite)
    costs = [cover.price_of(tests) for tests in (chosen, suite.own)]
    print(f"{len(chosen)} of {len(suite.own)} tests, {costs[0]:.0f} of {costs[1]:.0f} s of processor time")
    divide(options.trace, {"chosen": set(chosen), "rest": set(suite.own) - set(chosen)})
    return 0


def _cache(options):
    return (options.folder / "cache").resolve()


def _run(options):
    mutants = [Mutant(**row) for row in read(options.folder / "mutants.jsonl")]
    mutants = _selected(mutants, options)
    suites = {"new": [read_suite(path) for path in options.new], "old": [read_suite(path) for path in options.old]}
    names = Library(_check(suites["new"] + suites["old"]))
    selectors = {age: [Selector(suite, names) for suite in traced] for age, traced in suites.items()}
    budgets = {"new": options.budget, "old": options.old_budget}
    controls = Controls(options.folder / "unreliable.jsonl")
    with tempfile.TemporaryDirectory(prefix="mutation-") as work:

        def make_worker(number):
            return Worker(selectors, budgets, controls, pathlib.Path(work, str(number)), _cache(options))

        state = {
            "commit": commit(suites["new"][0].checkout),
            "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        run(mutants, make_worker, options.workers, options.results, state)
    return 0


def _selected(mutants, options):
    """Mutants without a record, or those that the options name."""
    statuses = {}
    if options.results.exists():
        statuses = {(row["id"], row["source"]): row["status"] for row in read(options.results)}
    selected = [mutant for mutant in mutants if options.ids is None or mutant.id in options.ids]
    if options.again:
        return [mutant for mutant in selected if statuses.get((mutant.id, mutant.source)) in options.again]
    return [mutant for mutant in selected if options.ids or (mutant.id, mutant.source) not in statuses]


def _check(suites):
    """Refuses suites whose checkouts contain different versions of the library. Returns the checkout of one of them."""
    [first, *remaining] = checkouts = sorted({suite.checkout for suite in suites})
    if any(digests(other, PACKAGES) != digests(first, PACKAGES) for other in remaining):
        raise SystemExit(f"The libraries of the suites differ: {', '.join(checkouts)}.")
    for suite in suites:
        if fingerprint(suite.checkout) != suite.fingerprint:
            print(f"{suite.name}: has changed since it was traced. Trace it again if the tests have changed.")
    return first


def _report(options):
    rows, drawn = read(options.results), options.folder / "mutants.jsonl"
    if drawn.exists():
        ids = {(row["id"], row["source"]) for row in read(drawn)}
        rows = [row for row in rows if (row["id"], row["source"]) in ids]
    text = markdown(newest(rows, ("id", "source")))
    print(text)
    if options.document:
        put_between("mutation", text)
    return 0


def main(arguments=None):
    """Runs a command. Returns the exit status of the process."""
    options = parse(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    commands = {"draw": _draw, "trace": _trace, "select": _select, "run": _run, "report": _report}
    return commands[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
