"""Trains a tiny model on the given devices and writes its curves and weights. Run by `distribution_test.py`.

    python -m tests.training.curves_program OUTPUT_FOLDER CASES

CASES is a JSON object {name: fields of `Case`}. The first process writes one `<name>.npz` per case. It contains
the running loss and accuracy after each step, the validation loss and accuracy after each epoch, the final
values of all variables, and their shardings.
"""

import dataclasses
import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from training.engine import distribution
from training.engine.optimizers import build_optimizer
from training.engine.step import TrainedModel
from training.recipe.config import validate

BATCH_SIZE, CLASSES, IMAGE_SHAPE, EPOCHS = 8, 7, (8, 12, 3), 2
TRAINING_IMAGES, FULL_BATCHES, VALIDATION_IMAGES = 37, 40, 11


@dataclasses.dataclass
class Case:
    """A training to run. `distribution` contains fields of `training.recipe.config.Distribution`."""

    distribution: dict
    model: str = "dense"
    optimizer: str = "adamw"
    accumulation_steps: int = 1


def main(folder, cases):
    for name, fields in json.loads(cases).items():
        case = Case(**fields)
        keras.utils.set_random_seed(3)
        recipe = _recipe(case)
        engine = distribution.start(recipe)
        results = _train(case, recipe, engine)
        if engine.is_chief:
            np.savez(pathlib.Path(folder) / f"{name}.npz", **results)
        if keras.backend.backend() == "jax":
            keras.distribution.set_distribution(None)
        keras.utils.clear_session()
    if keras.backend.backend() == "jax":
        import jax

        if jax.process_count() > 1:
            jax.distributed.shutdown()  # As JAX does at exit. Otherwise the first process to end would end the others.


def _recipe(case):
    return validate(
        {
            "name": "curves",
            "model": {"config": _CONFIG, "input_shape": IMAGE_SHAPE},
            "data": {"dataset": "digits"},
            "optimizer": _OPTIMIZERS[case.optimizer],
            "schedule": {"decay": "constant", "warmup": "0 steps"},
            "fit": {"batch_size": BATCH_SIZE, "epochs": EPOCHS, "accumulation_steps": case.accumulation_steps},
            "distribution": case.distribution,
        }
    )


_CONFIG = {"patch_size": 4, "hidden_dim": 24, "num_layers": 1, "num_heads": 4, "mlp_dim": 20}


def _train(case, recipe, engine):
    with engine.scope():
        model = _MODELS[case.model]()
        engine.prepare(model)
        trained = TrainedModel(model.inputs[0], model.outputs[0], _cross_entropy, case.accumulation_steps)
        trained.compile(build_optimizer(recipe, trained, steps_per_epoch=-(-TRAINING_IMAGES // BATCH_SIZE)))
    recorder = _Recorder()
    history = trained.fit(
        _dataset(engine, FULL_BATCHES if case.model == "vt_resnet" else TRAINING_IMAGES, seed=5),
        epochs=EPOCHS,
        validation_data=_dataset(engine, VALIDATION_IMAGES, seed=6),
        callbacks=[recorder],
        verbose=0,
    )
    variables = [*model.variables, *trained.optimizer.variables]
    before = engine.to_host(variables)
    engine.assign(variables, [np.zeros_like(value) for value in before])
    assert not any(np.any(value) for value in engine.to_host(variables))
    engine.assign(variables, before)
    after = engine.to_host(variables)
    engine.barrier()
    return {
        "steps": recorder.steps,
        "epochs": [history.history[name] for name in ("loss", "accuracy", "val_loss", "val_accuracy")],
        "restored": all(np.array_equal(*pair) for pair in zip(before, after, strict=True)),
        "alarms": [engine.any_process(flag) for flag in (False, engine.process_index == engine.num_processes - 1)],
        "metrics": engine.to_host(trained.metrics_variables),
        **{f"variable {i}": value for i, value in enumerate(after)},
        **_shardings(variables),
    }


def _shardings(variables):
    """Returns the JAX sharding of each variable by the variable's path."""
    if keras.backend.backend() != "jax" or keras.distribution.distribution() is None:
        return {}
    return {f"sharding {v.path}": np.array(repr(tuple(v.value.sharding.spec))) for v in variables}


def _dense():
    """Its layers have the names of an encoder block's MLP, because layouts match names."""
    images = keras.Input(IMAGE_SHAPE)
    layers = [keras.layers.Dense(_CONFIG["mlp_dim"], "tanh", name="hidden"), keras.layers.Dense(10, name="output")]
    features = keras.Sequential(layers, name="mlp")(keras.layers.Flatten()(images))
    return keras.Model(images, keras.layers.Dense(CLASSES, name="predictions")(features))


def _vit():
    return keras_vit.ViT(
        keras_vit.ViTConfig(**_CONFIG), input_shape=IMAGE_SHAPE, classes=CLASSES, classifier_activation=None
    )


def _vt_resnet():
    """Convolutions and token transformers, with batch norms after both."""
    return keras_vit.VTResNet(
        stage_depths=(1, 1),
        width=16,
        expansion=1,
        num_modules=1,
        filters=32,
        token_dim=32,
        num_heads=2,
        group_width=16,
        num_tokens=4,
        input_shape=IMAGE_SHAPE,
        classes=CLASSES,
        classifier_activation=None,
    )


_MODELS = {"dense": _dense, "vit": _vit, "vt_resnet": _vt_resnet}


def _cross_entropy(labels, logits):
    return keras.losses.categorical_crossentropy(labels, logits, from_logits=True)


# Clipping takes effect in most steps.
_OPTIMIZERS = {
    "sgd": {"kind": "sgd", "learning_rate": 0.02, "weight_decay": 0, "clip_norm": None},
    "adamw": {"learning_rate": 0.03, "weight_decay": 0.3, "epsilon": 1e-3, "clip_norm": 0.5},
}


def _dataset(engine, count, seed):
    """Random images. Padding in the last batch has zero weight; any other weight would change the results."""
    random = np.random.default_rng(seed)
    steps = -(-count // BATCH_SIZE)
    images = random.normal(size=(steps * BATCH_SIZE, *IMAGE_SHAPE)).astype("float32")
    labels = np.eye(CLASSES, dtype="float32")[random.integers(0, CLASSES, len(images))]
    weights = (np.arange(len(images)) < count) * random.uniform(0.5, 2, len(images))

    def make_dataset(index, shares, size):
        def share(array):
            return array.reshape(steps, shares, -1, *array.shape[1:])[:, index].reshape(-1, *array.shape[1:])

        arrays = tuple(map(share, (images, labels, weights.astype("float32"))))
        return tf.data.Dataset.from_tensor_slices(arrays).batch(size, drop_remainder=True)

    return engine.distribute(make_dataset, BATCH_SIZE)


class _Recorder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append([float(logs["loss"]), float(logs["accuracy"])])


if __name__ == "__main__":
    main(*sys.argv[1:])
