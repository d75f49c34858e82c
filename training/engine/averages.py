"""The moving averages of the weights, in their place for a while."""


class Averages:
    """Puts the moving averages that the optimizer keeps in the weights' place, and the weights back.

    Args:
        model: Compiled `keras.Model`, whose optimizer is one of `training.engine.optimizers`. If the optimizer keeps
            no averages, nothing is done.
        engine: `training.engine.distribution.Engine`
    """

    def __init__(self, model, engine):
        self.model, self.engine = model, engine
        self._weights = None

    def use(self):
        """Puts the averages in the weights' place."""
        if self.model.optimizer.averages:
            self._weights = self.engine.to_host(self.model.trainable_variables)
            # Copies: on JAX a test step frees what is in the weights' place.
            averages = [array.copy() for array in self.engine.to_host(self.model.optimizer.averages)]
            self.engine.assign(self.model.trainable_variables, averages)

    def put_back(self):
        """Puts back the weights that `use` found."""
        if self.model.optimizer.averages:
            self.engine.assign(self.model.trainable_variables, self._weights)
