"""The options of a small Vision Transformer that are compared with a baseline."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Option:
    """Changes to the baseline. `first`: further changes in the first half of the time. The second half starts from the
    weights of the first half, with a new classifier."""

    changes: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


BASELINE = "baseline"
BASELINE_CHANGES = (
    *("model.config.stem.widths=32,64", "model.config.patch_size=1", "model.config.num_layers=7"),
    *("model.config.patch_dropout_rate=0.5", "augment.mixup=0"),
)
"""Changes to the recipe `cifar10_hour` that make it the baseline."""
OPTIONS = {
    BASELINE: Option(),
    "patches of 4 x 4 pixels, no stem": Option(("model.config.stem=none", "model.config.patch_size=4")),
    "patches of 8 x 8 pixels": Option(("model.config.patch_size=2",)),
    "3 blocks of width 192": Option(
        (
            *("model.config.num_layers=3", "model.config.hidden_dim=192"),
            *("model.config.num_heads=3", "model.config.mlp_dim=384"),
        )
    ),
    "all patches in training": Option(("model.config.patch_dropout_rate=0",)),
    "random attention kernels": Option(("model.attention_initialization=random",)),
    "AdamW": Option(("optimizer.kind=adamw", "optimizer.learning_rate=0.002", "optimizer.momentum=0.9")),
    "batches of 64": Option(("fit.batch_size=64",)),
    "stochastic depth, no label smoothing": Option(("model.config.drop_path_rate=0.1", "fit.label_smoothing=0")),
    "CutMix and Mixup": Option(("augment.cutmix=1", "augment.mixup=0.2")),
    "constant learning rate, moving average": Option(("schedule.decay=constant", "optimizer.ema=0.99")),
    "class token, four registers": Option(("model.config.pooling=token", "model.config.num_register_tokens=4")),
    "24 x 24 pixels in the first half": Option((), ("model.input_shape=24,24,3", "schedule.decay=constant")),
}
