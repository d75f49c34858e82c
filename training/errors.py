"""The error that the commands print without a traceback."""

import re

_LONGEST_LINE, _SHOWN = 2000, 300  # Characters. A longer line is cut to its first and last `_SHOWN` characters.


class InputError(ValueError):
    """Invalid user input. The message states what was received, what is accepted and what to do."""

    def __init__(self, message):
        super().__init__(without_queries(message))


def raised_in_pipeline(error):
    """The message of an InputError that a function of a `tf.data` pipeline raised. `None` for other errors.

    TensorFlow raises an error of its own, whose text contains the message and a traceback.
    """
    found = re.search(r"\bInputError: (.*?)\nTraceback \(most recent call last\)", str(error), re.DOTALL)
    return found and found[1]


def without_call(error):
    """The message of an error without what Keras adds about the call of a layer: its name and arguments."""
    message = re.search(r"\x1b\[1m(.*?)\x1b\[0m", str(error), re.DOTALL)
    return message[1] if message else str(error)


def without_queries(text):
    """Removes the query strings of all URLs in a text, because they may contain signatures that grant access."""
    return re.sub(r"(://[^\s?#'\"]*)[?#][^\s'\"]*", r"\1", text)


def shortened_lines(message):
    """Removes the middle of very long lines, e.g. of a value with 100,000 digits."""
    return "\n".join(
        line if len(line) <= _LONGEST_LINE else f"{line[:_SHOWN]} … {line[-_SHOWN:]}" for line in message.split("\n")
    )


def shortened_names(names, limit=10):
    """The first `limit` names as text, followed by the total number of names if there are more."""
    return ", ".join(names[:limit]) + (f", … ({len(names):,} in all)" if len(names) > limit else "")
