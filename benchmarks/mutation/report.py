"""The results of a mutation run, as Markdown."""

import collections

from benchmarks.mutation.changes import KINDS

_AGES = ("new", "old")
STATUSES = ("killed", "lost", "survived", "not covered")


def markdown(rows):
    """Totals by kind and status, and the lists of mutants that the new suite missed.

    Args:
        rows: Records from `benchmarks.mutation.running.Worker.examine`.
    """
    counts = collections.Counter((row["kind"], row["status"]) for row in rows)
    totals = collections.Counter(row["status"] for row in rows)
    lines = [_summary(rows, totals), "", f"| change | mutants | {' | '.join(STATUSES)} |", f"|---|{'--:|' * 5}"]
    for kind in KINDS:
        numbers = [counts[kind, status] for status in STATUSES]
        lines.append(f"| {' | '.join(map(str, [kind, sum(numbers), *numbers]))} |")
    lines.append(f"| all | {len(rows)} | {' | '.join(str(totals[status]) for status in STATUSES)} |")
    for status, heading in _HEADINGS.items():
        lines += _list([row for row in rows if row["status"] == status], heading)
    return "\n".join(lines) + "\n"


_HEADINGS = {
    "lost": "Killed by the old suite only",
    "survived": "Survived all suites",
    "not covered": "Not covered, because no test executes the changed line",
}


def _summary(rows, totals):
    examined = [row for row in rows if any(run["left_out"] for run in row["runs"])]
    uncertain = sum(row["status"] in ("survived", "not covered") for row in examined)
    share = 100 * totals["lost"] / max(1, len(rows))
    suites = {age: sorted({run["suite"] for row in rows for run in row["runs"] if run["age"] == age}) for age in _AGES}
    text = f"{len(rows)} mutants were tested with the new suite ({', '.join(suites['new'])})."
    passed = [row for row in rows if row["status"] in ("survived", "not covered")]
    if suites["old"]:
        text += f" Those that survived were also tested with the old suite ({', '.join(suites['old'])})."
        text += f" {totals['lost']} mutants ({share:.1f} %) were killed by the old suite only."
        if waiting := sum(all(run["age"] == "new" for run in row["runs"]) for row in passed):
            text += f" {waiting} of the {len(passed)} surviving mutants were not tested with the old suite yet."
    if uncertain:
        text += (
            f" For {uncertain} of the mutants that no suite killed, the budget was too small to run all of their tests."
        )
    return text


def _list(rows, heading):
    if not rows:
        return []
    columns = "| place | function | before | after |"
    killed = any(_killer(row) for row in rows)
    lines = ["", f"{heading}:", "", columns + (" killed by |" if killed else ""), "|---|---|---|---|" + "---|" * killed]
    for row in sorted(rows, key=lambda row: (row["path"], row["line"])):
        cells = [f"{row['path']}:{row['line']}", *(f"`{_short(row[key])}`" for key in ("function", "before", "after"))]
        lines.append(f"| {' | '.join(cells + ([f'`{_killer(row)}`'] if killed else []))} |")
    return lines


def _killer(row):
    return next((run["killed_by"].replace("|", "\\|") for run in row["runs"] if run["killed_by"]), "")


def _short(text, length=60):
    line = " ".join(text.split()).replace("|", "\\|").replace("`", "'")
    return line if len(line) <= length else f"{line[: length - 3]}..."
