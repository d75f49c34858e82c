"""Fine-tunes published ViT-B/16 weights from ImageNet-21k on CIFAR-10 at 384 pixels, as in the paper.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 4 and appendix B.1.1; configs/vit.py of
google-research/vision_transformer, with a learning rate of 0.01 for this model and data set.
Command: python -m training train finetune_cifar10_b16
Hardware: 2.2 hours on the authors' A100 machine, 7.8 hours on their V100 machine.
Expected: 99.02 % top-1, reported by google-research/vision_transformer without dropout, and 98.59 % with fit.steps=500
and schedule.warmup=50 steps.
Measured: nothing yet. Tests check only that the recipe runs.

The paper selects the learning rate from 0.001, 0.003, 0.01 and 0.03 with 2 % of the training images held out. It
then trains on all training images (set data.validation_fraction=0). The authors store the momentum in bfloat16. This
package stores it in float32.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune_cifar10_b16",
    model=Model(weights="B/16@i21k", input_shape=(384, 384, 3)),
    data=Data(dataset="cifar10", validation_fraction=0.02),
    augment=Augment(crop="inception", flip=True),
    optimizer=Optimizer(kind="sgd", learning_rate=0.01, weight_decay=0.0),
    schedule=Schedule(decay="cosine", warmup="500 steps"),
    fit=Fit(steps=10_000, batch_size=512, accumulation_steps=8, report_every="5%"),
)
