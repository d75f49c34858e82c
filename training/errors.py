"""The one error that the programs show without a traceback."""

import re

_LONGEST_LINE, _SHOWN = 2000, 300  # Characters; of a longer line those at each end.


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what was received, what is accepted and what to do."""

    def __init__(self, message):
        super().__init__(without_queries(message))


def without_queries(text):
    """A text to be shown: its addresses are without their queries, which may be signatures."""
    return re.sub(r"(://[^\s?#'\"]*)[?#][^\s'\"]*", r"\1", text)


def shortened_lines(message):
    """A message without the middle of lines that nobody would read, such as those with a value of 100,000 digits."""
    return "\n".join(
        line if len(line) <= _LONGEST_LINE else f"{line[:_SHOWN]} … {line[-_SHOWN:]}" for line in message.split("\n")
    )


def shortened_names(names, limit=10):
    """The first of some names, and how many there are."""
    return ", ".join(names[:limit]) + (f", … ({len(names):,} in all)" if len(names) > limit else "")
