"""Seeds for a computation that runs more than once."""

import collections
import contextlib
import contextvars

from keras import ops


class RepeatedDraws:
    """Seeds for a computation that runs more than once and must draw the same random numbers each time.

    The generators do not advance during the computation, because JAX and TensorFlow do not allow state changes inside
    it. After the computation, `advance` advances each generator by the number of seeds that were drawn from it.
    """

    def __init__(self) -> None:
        self._states, self._counts = {}, collections.Counter()

    @contextlib.contextmanager
    def replay(self):
        """Inside this context, each `FixedSeed` gets the same seed as in the first run."""
        self._counts.clear()
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def next(self, generator):
        """Returns the next seed of a generator in this run."""
        if generator not in self._states:
            self._states[generator] = ops.copy(generator.state)
        count = self._counts[generator]
        self._counts[generator] += 1
        state = self._states[generator]
        return state + ops.convert_to_tensor([0, count], state.dtype)  # As in `keras.random.SeedGenerator.next`.

    def advance(self):
        """Advances the generators. This must be called once, after the computation."""
        for generator, count in self._counts.items():
            for _ in range(count):
                generator.next()

    @staticmethod
    def current():
        """Returns the instance whose `replay` is active, or `None`."""
        return _CURRENT.get()


_CURRENT: contextvars.ContextVar[RepeatedDraws | None] = contextvars.ContextVar("current", default=None)
