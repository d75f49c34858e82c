"""The one error that the programs show without a traceback."""

import re


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what was received, what is accepted and what to do."""

    def __init__(self, message):
        super().__init__(without_queries(message))


def without_queries(text):
    """A text to be shown: its addresses are without their queries, which may be signatures."""
    return re.sub(r"(://[^\s?#'\"]*)[?#][^\s'\"]*", r"\1", text)
