"""Temporary use of the moving averages of the weights."""


class Averages:
    """Replaces the weights by their moving averages, and restores them.

    Args:
        model: Compiled `keras.Model` with an optimizer of `training.engine.optimizers`. If the optimizer has no
            averages, the methods do nothing.
        engine: `training.engine.distribution.Engine`
    """

    def __init__(self, model, engine):
        self.model, self.engine = model, engine
        self._weights = None

    def use(self):
        """Replaces the weights by their averages."""
        if self.model.optimizer.averages:
            self._weights = self.engine.to_host(self.model.trainable_variables)
            # The weights get copies of the averages, because a test step on JAX frees the arrays of the weights.
            averages = [array.copy() for array in self.engine.to_host(self.model.optimizer.averages)]
            self.engine.assign(self.model.trainable_variables, averages)

    def put_back(self):
        """Restores the weights that `use` replaced."""
        if self.model.optimizer.averages:
            self.engine.assign(self.model.trainable_variables, self._weights)
