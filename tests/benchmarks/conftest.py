import keras
import pytest


@pytest.fixture
def keras_calls(monkeypatch):
    """The calls of Keras models in order: [(method, its first argument, its options)]"""
    calls = []

    def recorded(name, method):
        def call(model, x, *others, **options):
            calls.append((name, x, options))
            return method(model, x, *others, **options)

        return call

    for name in ("fit", "predict", "train_on_batch", "predict_on_batch"):
        monkeypatch.setattr(keras.Model, name, recorded(name, getattr(keras.Model, name)))
    return calls
