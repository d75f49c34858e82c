"""Fine-tunes MAE's self-supervised ViT-B/16 on ImageNet-1k with a different learning rate for each layer.

Paper: He et al., "Masked Autoencoders Are Scalable Vision Learners", arXiv 2111.06377, Table 9; FINETUNE.md and
main_finetune.py of facebookresearch/mae, with a learning rate of 5e-4 x batch size / 256.
Command: python -m training train finetune_mae_b16
Hardware: 7 hours and 11 minutes on the authors' 32 V100 GPUs.
Expected: 83.66 % top-1, reported by the authors (mean of their four runs: 83.57 %).
Measured: nothing yet. Tests check only that the recipe runs.

The weights are for non-commercial use (CC BY-NC 4.0). The authors vary the strength of RandAugment at random, with a
standard deviation of 0.5. They use timm's list of operations, initialize the head with a standard deviation of 2e-5,
and train on all training images. In this recipe the head starts with zeros, and 1 % of the training images is held out.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune_mae_b16",
    model=Model(
        weights="B/16@mae",
        changes={"pooling": "avg", "class_token": True, "norm_placement": "after_pooling", "drop_path_rate": 0.1},
    ),
    data=Data(dataset="imagenet2012", validation_fraction=0.01, cache=False),
    augment=Augment(
        crop="inception",
        crop_area=(0.08, 1.0),
        flip=True,
        randaugment_ops=2,
        randaugment_magnitude=9,
        erasing=0.25,
        mixup=0.8,
        cutmix=1.0,
    ),
    optimizer=Optimizer(learning_rate=2e-3, weight_decay=0.05, clip_norm=None, layer_decay=0.65),
    schedule=Schedule(decay="cosine", warmup="5 epochs", end=1e-6),
    fit=Fit(epochs=100, batch_size=1024, label_smoothing=0.1),
)
