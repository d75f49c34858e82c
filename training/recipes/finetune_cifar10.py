"""Published ViT-B/16 weights from ImageNet-21k, fine-tuned to CIFAR-10 at 384 pixels, as in the paper.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 4 and appendix B.1.1; configs/vit.py of
google-research/vision_transformer, whose learning rate for this model and data set is 0.01.
Command: python -m training train finetune_cifar10
Hardware: 2.2 hours on the authors' A100 machine, 7.8 on their V100 machine.
Expected: 99.02 %, as google-research/vision_transformer reports without dropout. With fit.steps=500
schedule.warmup=50 steps they report 98.59 %.
Measured: nothing yet but that it runs.

The paper chooses the learning rate of 0.001, 0.003, 0.01 and 0.03 on the 2 % that are held out, and then trains on all
(data.validation_fraction=0). Not said exactly: the momentum is kept in bfloat16 there and in float32 here.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune_cifar10",
    model=Model(weights="B/16@i21k", input_shape=(384, 384, 3)),
    data=Data(dataset="cifar10", validation_fraction=0.02),
    augment=Augment(crop="inception", flip=True),
    optimizer=Optimizer(kind="sgd", learning_rate=0.01, weight_decay=0.0),
    schedule=Schedule(decay="cosine", warmup="500 steps"),
    fit=Fit(steps=10_000, batch_size=512, accumulation_steps=8, report_every="5%"),
)
