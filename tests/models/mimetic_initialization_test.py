import keras
import numpy as np
import pytest

import keras_vit
from tests.models.counting import shapes_only
from tests.models.tiny import tiny_model
from tests.test_case import canonical_weights


def products(weights, block):
    """The products of query and key kernels, (K, D, D), and of value and output kernels, (D, D)."""
    query, key, value, output = (
        weights[f"encoder_block_{block}/attention/{name}/kernel"] for name in ("query", "key", "value", "output")
    )
    return np.einsum("dkh,ekh->kde", query, key), np.einsum("dkh,khe->de", value, output)


@pytest.mark.each_backend
def test_products_are_those_of_the_paper():
    """arXiv 2305.09828. The best approximation of a rank is the sum of the largest singular values' parts."""
    model = tiny_model()
    before = canonical_weights(model)
    keras_vit.initialize_attention(model, seed=3)
    weights = canonical_weights(model)
    generator = np.random.default_rng(3)
    for block in range(2):
        queries_keys, values_outputs = products(weights, block)
        for product in queries_keys:
            wanted = 0.7 * generator.normal(scale=12**-0.5, size=(12, 12)) + 0.7 * np.eye(12)
            error = np.linalg.norm(wanted - product)
            np.testing.assert_allclose(error**2, (np.linalg.svd(wanted)[1][4:] ** 2).sum(), rtol=1e-5)
        wanted = 0.4 * generator.normal(scale=12**-0.5, size=(12, 12)) - 0.4 * np.eye(12)
        np.testing.assert_allclose(values_outputs, wanted, atol=1e-6)
    changed = {path for path in before if not np.array_equal(before[path], weights[path])}
    assert changed == {path for path in before if "/attention/" in path and path.endswith("/kernel")}


def test_nested_and_axial_models_are_initialized_and_resnets_are_refused():
    inner = tiny_model(pooling="avg", axial=True, name="inner")
    images = keras.Input(inner.input_shape[1:])
    before = canonical_weights(inner)
    keras_vit.initialize_attention(keras.Model(images, inner(images)), seed=0)
    after = canonical_weights(inner)
    assert sum(not np.array_equal(before[path], after[path]) for path in before) == 2 * 2 * 4
    resnet, _ = shapes_only(lambda: keras_vit.ResNet("R18", stage_depths=(1,), name="resnet_18"))
    with pytest.raises(ValueError, match="attentions of encoder blocks can be initialised, but 'resnet_18' has none"):
        keras_vit.initialize_attention(resnet, seed=0)
    with pytest.raises(ValueError, match=r"seed must be 0 or a positive integer\. Received: -1"):
        keras_vit.initialize_attention(inner, seed=-1)
    with pytest.raises(TypeError, match=r"model must be a model of keras_vit\. Received: 'inner'"):
        keras_vit.initialize_attention("inner", seed=0)
