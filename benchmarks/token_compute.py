"""Compares the compute of a transformer of visual tokens with that of a transformer between the pixels of the same map.

Command: make bench-tokens ARGS=--document

"Visual Transformers" (arXiv 2006.03677, section 1) states that attention between pixels is expensive, and that a few
tokens save this compute. For several sizes of the map, the table shows the multiply-accumulates (MACs) of an image in
the second module of VT-ResNet-18: of the tokenizer, of the transformer between 16 tokens, and of the first projector.
The last columns are those of the same transformer between all pixels, without projections to its 1,024 channels.

--document writes the table into docs/models/visual_transformers.md. Nothing is trained.
"""

import argparse

import keras

import keras_vit
from benchmarks.records import put_between

SIDES = (14, 28, 56)
"""Sides of the map: those of images of 224, 448 and 896 pixels."""
_STRIDE = 16


def costs(side):
    """(MACs of the tokenizer, of the transformer of tokens, of the projector, of the transformer of pixels)"""
    with keras.StatelessScope(initialize_variables=False):  # The model has shapes, but no values.
        model = keras_vit.VTResNet18(input_shape=(_STRIDE * side, _STRIDE * side, 3))
        layers = {layer.name: layer.macs for layer in keras_vit.profile(model).layers}
        transformer = model.get_layer("token_relation_1")
        pixels = transformer.macs((None, side**2, transformer.output.shape[-1]))
        keras.utils.clear_session(free_memory=False)
    return layers["tokenizer_1"], layers["token_relation_1"], layers["token_projector_0"], pixels


def table():
    lines = [
        "| map | tokenizer | transformer of 16 tokens | projector | together | transformer of all pixels | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for side in SIDES:
        *parts, pixels = costs(side)
        numbers = [*parts, sum(parts), pixels]
        cells = [f"{side} x {side}", *(f"{number / 1e6:,.0f}" for number in numbers), f"{pixels / sum(parts):.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--document", action="store_true", help="write the table into docs/models/visual_transformers.md"
    )
    if parser.parse_args().document:
        put_between("bench-tokens", table())
    else:
        print(table(), end="")


if __name__ == "__main__":
    main()
