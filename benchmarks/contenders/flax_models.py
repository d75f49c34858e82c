"""Google's own code for the ViT paper, in Flax, run with JAX."""

import functools
import os
import types

from benchmarks.contenders.keras_models import CLASSES


def build_flax(job):
    """The same ViT of google-research/vision_transformer, a Flax module."""
    from vit_jax import models_vit

    import keras_vit

    config = keras_vit.VARIANTS[job.model]
    stem = config.stem and types.SimpleNamespace(num_layers=config.stem.stage_depths, width_factor=1)
    return models_vit.VisionTransformer(
        num_classes=CLASSES,
        patches=types.SimpleNamespace(size=config.patch_shape),
        hidden_size=config.hidden_dim,
        resnet=stem,
        transformer={
            "num_layers": config.num_layers,
            "num_heads": config.num_heads,
            "mlp_dim": config.mlp_dim,
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
        },
    )


def open_flax(job):
    """A compiled forward pass, or a training step of AdamW that donates the memory of its parameters."""
    os.environ["KERAS_BACKEND"] = "jax"
    import jax
    import optax

    from benchmarks.provenance import device

    model = build_flax(job)
    shape = (job.size, job.size, 3)
    initialize = jax.jit(functools.partial(model.init, train=False))
    state = {"parameters": initialize(jax.random.key(0), jax.numpy.ones((1, *shape)))}
    optimizer = optax.adamw(1e-3)

    @jax.jit
    def forward(parameters, images):
        return model.apply(parameters, images, train=False)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train(parameters, moments, images, labels):
        def loss_of(parameters):
            logits = model.apply(parameters, images, train=True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(parameters)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return optax.apply_updates(parameters, updates), moments, loss

    @functools.lru_cache(maxsize=1)
    def batch(size):
        return jax.random.normal(jax.random.key(1), (size, *shape)), jax.numpy.arange(size) % CLASSES

    def make_steps(batch_size, steps):
        images, labels = batch(batch_size)
        if job.work == "train" and "moments" not in state:
            state["moments"] = optimizer.init(state["parameters"])
        result = None
        for _ in range(steps):
            if job.work == "forward":
                result = forward(state["parameters"], images)
            else:
                *changed, result = train(state["parameters"], state["moments"], images, labels)
                state["parameters"], state["moments"] = changed
        jax.block_until_ready(result)

    return make_steps, device()
