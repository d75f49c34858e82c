"""Seeds of a computation that runs more than once."""

import collections
import contextlib
import contextvars

from keras import ops


class RepeatedDraws:
    """The seeds of a computation that runs more than once and must be random in the same way each time.

    The generators do not advance while it runs: JAX and TensorFlow do not allow a change of state there. They advance
    afterwards, in `advance`, as far as they would have done.
    """

    def __init__(self):
        self._states, self._counts = {}, collections.Counter()

    @contextlib.contextmanager
    def replay(self):
        """Inside, each `DrawnSeed` has the seed that it had when this was entered first."""
        self._counts.clear()
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def next(self, generator):
        """The next seed of a generator in this run."""
        if generator not in self._states:
            self._states[generator] = ops.copy(generator.state)
        count = self._counts[generator]
        self._counts[generator] += 1
        state = self._states[generator]
        return state + ops.convert_to_tensor([0, count], state.dtype)  # `keras.random.SeedGenerator.next` counts so.

    def advance(self):
        """Advances the generators, after a run."""
        for generator, count in self._counts.items():
            for _ in range(count):
                generator.next()

    @staticmethod
    def current():
        """The one whose `replay` is running; `None` outside."""
        return _CURRENT.get()


_CURRENT = contextvars.ContextVar("current", default=None)
