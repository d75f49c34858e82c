"""Tables: rows of cells as a CSV file, or as lines of text."""

import csv
import io

from training.files import write_text


def write_csv(path, rows):
    """Writes rows, the first of which names the columns. Raises an InputError if the file cannot be written."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def lay_out(rows, texts=(0,)):
    """Rows of strings as text, a line each.

    Args:
        rows: Tuples of equal lengths, the first of which names the columns.
        texts: Numbers of the columns that start together; the others end together, as numbers do.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if number in texts else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
