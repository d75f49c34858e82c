"""Private names of Keras that this project uses. After an upgrade, these tests list missing names and their users."""

import pathlib
import re

import keras
import pytest
from tensorflow_datasets.core.download import downloader

from tests.test_case import TENSORFLOW

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="Keras has two of these names on TensorFlow only")
ROOT = pathlib.Path(__file__).parents[1]
# name: (module that uses it, purpose)
PRIVATE = {
    "_all_reduce_sum_gradients": ("training/engine/optimizers.py", "gradients are summed over the replicas once"),
    "_apply_weight_decay": ("training/engine/optimizers.py", "kernels alone decay, at the rate of their layer"),
    "_backend_update_step": ("training/engine/optimizers.py", "Muon makes all gradients orthogonal together"),
    "_clip_gradients": ("training/engine/optimizers.py", "the sum over the replicas is clipped"),
    "_flatten_layers": ("keras_vit/graph.py", "the layers inside layers are listed"),
    "_get_variable_index": ("training/engine/optimizers.py", "a weight has the learning rate of its layer"),
    "_initializer": ("keras_vit/weights/assign.py", "weights are loaded in place of initial values"),
    "_maybe_symbolic_build": ("training/engine/step.py", "a model is built without drawing a batch"),
    "_model_variables_moving_average": ("training/engine/optimizers.py", "moving averages of the weights are used"),
    "_muon_update_step": ("training/engine/optimizers.py", "Muon steps of kernels of any rank are made"),
    "_nodes_by_depth": ("keras_vit/graph.py", "what reads a tensor of a model's graph is found"),
    "_run_through_graph": ("keras_vit/graph.py", "a model is run layer by layer"),
    "_should_use_adamw": ("training/engine/optimizers.py", "Muon trains the kernels of attentions"),
    "_standardize_inputs": ("keras_vit/graph.py", "a model's graph is run as Keras runs it"),
}
# Names of our own classes, unrelated to Keras's names.
OWN = ("_metrics", "_path", "_value")


@pytest.fixture(scope="module")
def objects():
    """One object of each kind that this package extends or inspects."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.AdamW(use_ema=True)
    optimizer.build(model.trainable_variables)
    functional = keras.Model(model.inputs, model.outputs)
    layer, muon = model.layers[0], keras.optimizers.Muon()
    return [functional, layer, layer.kernel, optimizer, muon, keras.losses.MeanSquaredError()]


def test_keras_still_has(objects):
    missing = {name: use for name, use in PRIVATE.items() if not any(hasattr(each, name) for each in objects)}
    assert not missing, "Keras has no longer these names, which modules use for these purposes"


def test_no_other_private_name_of_keras_is_used(objects):
    """Our attributes and methods do not override private names by accident either."""
    used = {}
    for path in [path for folder in ("keras_vit", "training") for path in (ROOT / folder).rglob("*.py")]:
        names = set(re.findall(r"(?:\.|^ +def )(_[a-z]\w*)", path.read_text(), re.MULTILINE))
        for name in names - set(OWN):
            if any(hasattr(each, name) for each in objects):
                used.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    assert used == {name: {module} for name, (module, _) in PRIVATE.items()}


def test_tfds_still_has_its_number_of_retries():
    assert isinstance(downloader.MAX_RETRIES, int)
