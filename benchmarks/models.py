"""Prints the README's tables of models: parameters and multiply-accumulates of every published variant.

Command: make models
"""

import math

import keras

import keras_vit

# arXiv 2006.03677, Table 8, as printed.
_PRINTED = {
    "VTResNet18": "11.7 M, 1.569",
    "VTResNet34": "19.2 M, 3.236",
    "VTResNet50": "21.4 M, 3.412",
    "VTResNet101": "41.5 M, 7.129",
}


def table():
    """The table of Vision Transformers in Markdown, with a 1,000-way classifier, at 224 x 224 pixels."""
    rows = [
        "| variant | function | layers | width | MLP | heads | parameters | GMACs |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for variant, config in keras_vit.VARIANTS.items():
        cost, _ = _count(keras_vit.ViT, variant)
        stem, _, size = variant.rpartition("+")
        function = f"{stem}ViT{size.replace('/', '').replace('-opt', 'Opt')}"
        rows.append(
            f"| {variant} | `{function}` | {config.num_layers} | {config.hidden_dim} | {config.mlp_dim} | "
            f"{config.num_heads} | {cost.parameters:,} | {cost.macs / 1e9:.3f} |"
        )
    return "\n".join(rows)


def vt_table():
    """The same for VT-ResNets, beside the paper's numbers. The statistics of batch norms are not counted."""
    rows = ["| function | parameters | GMACs | the paper's |", "|---|--:|--:|--:|"]
    for name, printed in _PRINTED.items():
        cost, num_trained = _count(getattr(keras_vit, name))
        rows.append(f"| `{name}` | {num_trained:,} | {cost.macs / 1e9:.3f} | {printed} |")
    return "\n".join(rows)


def _count(build, *arguments):
    """(profile, number of trained parameters) of a model."""
    # Counting needs shapes only, so no weight is created.
    with keras.StatelessScope(initialize_variables=False):
        model = build(*arguments)
        cost = keras_vit.profile(model)
    keras.utils.clear_session()
    return cost, sum(math.prod(weight.shape) for weight in model.trainable_weights)


if __name__ == "__main__":
    print(f"{table()}\n\n{vt_table()}")
