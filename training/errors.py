"""The one error that the programs show without a traceback."""


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what was received, what is accepted and what to do."""
