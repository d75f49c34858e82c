"""The optimizer that a recipe describes."""

import keras


def build_optimizer(recipe, model, steps_per_epoch):
    """AdamW with warm-up and cosine decay, whose weight decay acts on kernels only.

    Args:
        recipe: `training.config.Recipe`
        model: The model that will be trained.
        steps_per_epoch: Steps in an epoch.

    Returns:
        A `keras.optimizers.AdamW`.
    """
    peak = recipe.optimizer.learning_rate
    total = recipe.fit.epochs * steps_per_epoch
    warmup = min(round(recipe.schedule.warmup * total), total - 1)
    optimizer = keras.optimizers.AdamW(
        learning_rate=keras.optimizers.schedules.CosineDecay(
            initial_learning_rate=0.0 if warmup else peak,
            decay_steps=total - warmup,
            warmup_target=peak if warmup else None,
            warmup_steps=warmup,
        ),
        weight_decay=recipe.optimizer.weight_decay,
        epsilon=1e-8,  # As in Google's code; Keras's default is 1e-7.
        global_clipnorm=recipe.optimizer.clip_norm,
    )
    optimizer.exclude_from_weight_decay([weight for weight in model.trainable_weights if weight.name != "kernel"])
    return optimizer
