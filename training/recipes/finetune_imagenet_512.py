"""Fine-tunes published ViT-L/16 weights from ImageNet-21k on ImageNet-1k at 512 pixels with averaged weights.

Paper: Dosovitskiy et al., arXiv 2010.11929, section 4.1, Table 4 and appendix B.1.1.
Command: python -m training train finetune_imagenet_512
Hardware: about 22 exaFLOPs (6 x MACs x images), an estimated 50 hours on one A100.
Expected: 85.30 % top-1 (paper, Table 2, "Ours-I21k (ViT-L/16)").
Measured: nothing yet. Tests check only that the recipe runs.

The paper selects the learning rate from 0.003, 0.01, 0.03 and 0.06 with 1 % of the training images held out. It
then trains on all training images (set data.validation_fraction=0). The authors' published AugReg L/16 used a learning
rate of 0.01. The authors store the momentum in bfloat16. This package stores it in float32.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune_imagenet_512",
    model=Model(weights="L/16@i21k", input_shape=(512, 512, 3)),
    data=Data(dataset="imagenet2012", validation_fraction=0.01, cache=False),
    augment=Augment(crop="inception", flip=True),
    optimizer=Optimizer(kind="sgd", learning_rate=0.01, weight_decay=0.0, ema=0.9999),
    schedule=Schedule(decay="cosine", warmup="500 steps"),
    fit=Fit(steps=20_000, batch_size=512, accumulation_steps=32),
)
