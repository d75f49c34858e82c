"""Tables as CSV files or as lines of text."""

import csv
import io

from training.files import write_text


def write_csv(path, rows):
    """Writes rows. The first row contains the column names. Raises an InputError if the file cannot be written."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def lay_out(rows, texts=(0,)):
    """Formats rows of strings as text, one line for each row.

    Args:
        rows: Tuples of equal length. The first tuple contains the column names.
        texts: Indices of the left-aligned columns. Other columns are right-aligned, as is usual for numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if number in texts else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
