"""A model small enough to be computed by hand, for tests of whole models."""

import keras_vit

CONFIG = keras_vit.ViTConfig(patch_size=(4, 3), hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20)
SHAPE = (8, 9, 3)  # 2 x 3 patches.
STEM = keras_vit.StemConfig(stage_depths=(1, 1), width=32)


def tiny_model(input_shape=SHAPE, classes=5, classifier_activation=None, **changes):
    return keras_vit.ViT(
        CONFIG, input_shape=input_shape, classes=classes, classifier_activation=classifier_activation, **changes
    )
