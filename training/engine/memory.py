"""Estimates the memory of a training step, and describes what to do if it was not enough."""

import math
import re

import keras
import psutil
import tensorflow as tf

import keras_vit


def activations(recipe, model, engine, with_attention=True):
    """Estimated bytes of a trained encoder's activations that a device keeps for the backward pass, or `None`.

    T tokens, D hidden width, K heads, M width of the MLP. A block keeps T (8 D + 2 M) + K T^2 numbers per image (arXiv
    2205.05198, equation 2, without the masks of dropout). With SwiGLU, 3 M replaces 2 M. Every device keeps
    4 T D of these numbers. The others are split over `model_devices`. With rematerialisation, each block keeps only its
    input (T D numbers), except the block that is being recomputed, which keeps all numbers. Token merging and patch
    dropout are ignored. Without `with_attention`, the K T^2 attention weights are left out, because some kernels do
    not keep them.
    """
    config, model_devices = keras_vit.describe(model).config, recipe.distribution.model_devices
    if not isinstance(config, keras_vit.ViTConfig) or recipe.model.has_frozen_encoder:
        return None
    block_inputs = keras.tree.flatten(model.get_layer("encoder_block_0").input)  # Axial blocks have two inputs.
    _, tokens, width = block_inputs[0].shape
    hidden = (3 if config.mlp == "swiglu" else 2) * config.mlp_dim
    attention = config.num_heads * tokens**2 if with_attention else 0
    block = 4 * tokens * width + (tokens * (4 * width + hidden) + attention) / model_devices
    depth = config.num_layers
    numbers = depth * tokens * width + block if recipe.fit.rematerialize else depth * block
    images = recipe.fit.batch_size / engine.num_replicas / recipe.fit.accumulation_steps
    return round(numbers * images * (4 if recipe.fit.precision == "float32" else 2))


def free_memory():
    """Free memory of a device in bytes, or `None` if it is unknown, as for GPUs with TensorFlow."""
    if keras.backend.backend() == "jax":
        import jax

        stats = jax.local_devices()[0].memory_stats()
        if stats:
            return stats["bytes_limit"] - stats["bytes_in_use"]
    elif tf.config.list_physical_devices("GPU"):
        return None
    return psutil.virtual_memory().available


def is_too_large(recipe, model, engine, free):
    """Whether a training step surely needs more than the `free` memory of a device.

    It is checked before the first step, because Linux ends a process without a message if the memory is not enough.
    Models that keep fewer activations than the estimate says are not checked.
    """
    config = keras_vit.describe(model).config
    drops_tokens = getattr(config, "token_merging", 0) or getattr(config, "patch_dropout_rate", 0)
    if free is None or drops_tokens or recipe.model.freeze_up_to is not None:
        return False
    least = activations(recipe, model, engine, with_attention=False)
    return least is not None and least > free


def is_out_of_memory(error):
    """Whether an exception means that memory could not be allocated."""
    if isinstance(error, tf.errors.ResourceExhaustedError):  # TensorFlow also raises it if a disk is full.
        return re.search("OOM|out of memory|failed to allocate", str(error), re.IGNORECASE) is not None
    return isinstance(error, MemoryError) or (
        type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in str(error)
    )


def shortage_message(recipe, model, engine, free):
    """Explains that memory was not enough for a training step, and which settings need less.

    Args:
        recipe: `training.recipe.config.Recipe`
        model: The trained model.
        engine: `training.engine.distribution.Engine`
        free: Bytes that were free on a device before the first step, or `None` if unknown.
    """
    size, parts, replicas = recipe.fit.batch_size, recipe.fit.accumulation_steps, engine.num_replicas
    text = f"The memory is not enough for a training step with fit.batch_size={size:,}."
    needed = activations(recipe, model, engine)
    fitting = size // 2
    if free is not None:
        text += f" {free / 1e9:,.1f} GB were free before the first step."
        if needed is not None:
            gradients = 4 * sum(math.prod(variable.shape) for variable in model.trainable_variables)
            expected = max(int(size * (free - gradients) / needed), 0)
            if expected < size:
                text += f" By the estimate of `plan`, at most {expected:,} images fit."
                fitting = min(fitting, expected)
    fitting -= fitting % (parts * replicas)
    remedies = [f"fit.batch_size={fitting}"] if fitting else []
    least_parts = parts * math.ceil(size / fitting) if fitting else 2 * parts
    more_parts = (count for count in range(least_parts, size + 1) if size % (count * replicas) == 0)
    remedies += [f"fit.accumulation_steps={count} (the same batch in more parts)" for count in more_parts][:1]
    if not recipe.fit.rematerialize and needed is not None:
        remedies.append("fit.rematerialize=true (slower)")
    return f"{text} Start a new run with {' or '.join(remedies) or 'a smaller model'}."
