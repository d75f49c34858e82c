"""Text that the programs are given, and text that they show."""

from training.errors import InputError

_LONGEST_LINE, _SHOWN = 2000, 300  # Characters; of a longer line those at each end.


def check_name(name):
    """Refuses the name of a file or folder, or another argument, that is not UTF-8: it could not be written anywhere.

    Python stands for each byte that cannot be decoded by a surrogate, which cannot be encoded again.
    """
    try:
        str(name).encode()
    except UnicodeEncodeError:
        raise InputError(f"Names must be in UTF-8. Received: {str(name)!a}. Rename the file or folder.") from None


def shortened_lines(message):
    """A message without the middle of lines that nobody would read, such as those with a value of 100,000 digits."""
    return "\n".join(
        line if len(line) <= _LONGEST_LINE else f"{line[:_SHOWN]} … {line[-_SHOWN:]}" for line in message.split("\n")
    )
