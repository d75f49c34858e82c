"""Trains image-text models from scratch on drawn pairs, and measures how often they find the text of an image.

    python -m benchmarks.drawn_pairs --activation softmax --seed 0 [--shuffled]

With --shuffled, the captions of the training pairs belong to other pictures. Recall is measured for the 100 pairs of
the test split, each of whose captions differs from another one in one word. It is appended to
results/drawn_pairs.jsonl.
"""

import argparse
import pathlib
import time

import keras
import numpy as np

import keras_vit
from benchmarks.records import append
from training.data.sets import drawn_pairs as pairs

CONTEXT, WIDTH, BATCH_SIZE, EPOCHS, RATE = 20, 128, 256, 5, 1e-3
_IDS = {word: number for number, word in enumerate(pairs.WORDS, start=1)}
_END = len(_IDS) + 1


def build(activation):
    encoder = {"hidden_dim": WIDTH, "num_heads": 4, "mlp_dim": 4 * WIDTH}
    config = keras_vit.ViTConfig(patch_size=8, num_layers=4, **encoder)
    shape = (pairs.SIDE, pairs.SIDE, 3)
    images = keras_vit.ViT(config, include_top=False, input_shape=shape, include_preprocessing=True)
    texts = keras_vit.TextConfig(_END + 1, CONTEXT, num_layers=3, projection_dim=WIDTH, **encoder)
    return keras_vit.ImageTextModel(images, texts, activation)


def token_ids(captions):
    rows = [[*(_IDS[word] for word in caption.split()), _END] for caption in captions]
    return np.array([row + [0] * (CONTEXT - len(row)) for row in rows], "int32")


def load(split, most_objects=2):
    images, captions = zip(
        *(pairs.draw(split, number, most_objects) for number in range(pairs.NUM_PAIRS[split])), strict=True
    )
    return np.stack(images).astype("float32"), token_ids(captions)


def recall_at_1(model, most_objects):
    """The share of the test images whose text has the largest logit."""
    logits = model.similarity(*load("test", most_objects), logits=True)
    return float((logits.argmax(axis=1) == np.arange(len(logits))).mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--activation", choices=("softmax", "sigmoid"), default="softmax")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shuffled", action="store_true")
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)
    model, (images, texts) = build(options.activation), load("train")
    if options.shuffled:
        texts = np.random.default_rng(options.seed).permutation(texts)
    steps = -(-len(images) // BATCH_SIZE) * EPOCHS
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=RATE, warmup_steps=steps // 20)
    model.compile(keras.optimizers.AdamW(rate, weight_decay=0.05, clipnorm=1.0))
    began = time.monotonic()
    history = model.fit({"images": images, "token_ids": texts}, None, BATCH_SIZE, EPOCHS, verbose=2).history
    recalls = {"two objects": recall_at_1(model, 2), "one object": recall_at_1(model, 1)}
    row = {**vars(options), "minutes": round((time.monotonic() - began) / 60, 1), "loss": history["loss"][-1]}
    append([row | recalls], pathlib.Path(__file__).with_name("results") / "drawn_pairs.jsonl")
    print(row | recalls)


if __name__ == "__main__":
    main()
