"""Requests to stop a run, by SIGTERM or Ctrl-C."""

import contextlib
import signal


class StopRequest:
    """A request to stop. `requested`: this process got one. `accepted`: all processes stop."""

    def __init__(self):
        self.requested = self.accepted = False

    @contextlib.contextmanager
    def listening(self):
        """Records the first signal. A second signal has its usual effect."""

        def record(number, frame):
            self.requested = True
            restore()

        def restore():
            for number, handler in handlers.items():
                signal.signal(number, handler)

        handlers = {number: signal.signal(number, record) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            restore()


@contextlib.contextmanager
def sigterm_as_keyboard_interrupt():
    """Makes SIGTERM raise a KeyboardInterrupt, so that interrupted work is cleaned up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
