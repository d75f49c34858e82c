"""Prints the README's table of models: parameters and multiply-accumulates of every published variant.

Command: make models
"""

import keras

import keras_vit


def table():
    """The table in Markdown, with a 1,000-way classifier, at 224 x 224 pixels."""
    rows = [
        "| variant | function | layers | width | MLP | heads | parameters | GMACs |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for variant, config in keras_vit.VARIANTS.items():
        # Shapes alone are enough to count: no weight is made.
        with keras.StatelessScope(initialize_variables=False):
            cost = keras_vit.profile(keras_vit.ViT(variant))
        keras.utils.clear_session()
        stem, _, size = variant.rpartition("+")
        function = f"{stem}ViT{size.replace('/', '').replace('-opt', 'Opt')}"
        rows.append(
            f"| {variant} | `{function}` | {config.num_layers} | {config.hidden_dim} | {config.mlp_dim} | "
            f"{config.num_heads} | {cost.parameters:,} | {cost.macs / 1e9:.3f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
