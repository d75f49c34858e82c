"""Hides messages of libraries."""

import contextlib
import logging


@contextlib.contextmanager
def without_messages(library, below=logging.ERROR):
    """Hides the messages that a library logs in Python.

    Args:
        library: Name of its logger, or `None` for messages without a logger.
        below: Messages of lower levels are hidden. By default these are information and warnings.
    """
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(below)
    try:
        yield
    finally:
        logger.setLevel(level)
