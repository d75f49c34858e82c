"""CIFAR-10 from scratch with a small Vision Transformer, on a GPU.

Paper: Lee, Lee and Song, arXiv 2112.13492; the model is the plain ViT that the paper compares with. The data are from
Krizhevsky, 2009 (60,000 colour photographs of 32 x 32 pixels).
Command: python -m training train cifar10
Hardware: intended for one GPU; for two CPU cores there is cifar10_hour.
Expected: 93.58 % test accuracy for the plain ViT of the paper, which was trained for 100 epochs.
Measured: 68.7 % of the 1,000 validation images with fit.epochs=25, on an NVIDIA H200 with JAX (27 November 2026). All
    100 epochs were not measured.

Like the paper, the recipe combines AutoAugment, Mixup, CutMix, random erasing, label smoothing, stochastic depth and
AdamW. Among the differences from the paper, AutoAugment uses the policy for ImageNet. Images are not repeated within a
batch. Attentions are initialised mimetically, and the mean of the patch tokens is classified instead of a class token.
"""

from keras_vit.architectures.vision_transformer import ViTConfig
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="cifar10",
    model=Model(
        config=ViTConfig(
            patch_size=4, hidden_dim=192, num_layers=9, num_heads=12, mlp_dim=384, pooling="avg", drop_path_rate=0.1
        ),
        input_shape=(32, 32, 3),
        attention_initialization="mimetic",
    ),
    data=Data(dataset="cifar10", validation_fraction=0.02),
    augment=Augment(flip=True, translation=0.125, autoaugment=True, erasing=0.25, mixup=0.8, cutmix=1.0),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.05),
    schedule=Schedule(warmup="10%"),
    fit=Fit(epochs=100, batch_size=128, label_smoothing=0.1),
)
