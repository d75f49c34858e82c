"""Fine-tunes published ViT-B/16 weights from ImageNet-21k on the Oxford Flowers at 384 pixels, as in the paper.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 4 and appendix B.1.1; learning rate, warm-up and splits from
configs/transfer.py of google-research/big_vision, which is for an AugReg B/32.
Command: python -m training train finetune_flowers
Hardware: about 0.09 exaFLOPs (6 x MACs x images), an estimated 15 minutes on one A100.
Expected: 99.61 % top-1, the paper's result for ViT-L/16 (Table 2); big_vision reports 99.43 % for an AugReg B/32.
Measured: nothing yet. Tests check only that the recipe runs.

The paper selects the learning rate from 0.001, 0.003, 0.01 and 0.03 with 10 % of the training images held out. It
then trains on all training images (set data.train_split=train data.validation_split=validation). The authors store the
momentum in bfloat16. This package stores it in float32.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune_flowers",
    model=Model(weights="B/16@i21k", input_shape=(384, 384, 3)),
    # The 1,020 training images are split. The data set's own 1,020 validation images are not used.
    data=Data(
        dataset="oxford_flowers102", train_split="train[:90%]", validation_split="train[90%:]", validation_fraction=0.0
    ),
    augment=Augment(crop="inception", flip=True),
    optimizer=Optimizer(kind="sgd", learning_rate=0.003, weight_decay=0.0),
    schedule=Schedule(decay="cosine", warmup="100 steps"),
    fit=Fit(steps=500, batch_size=512, accumulation_steps=8, report_every="10%"),
)
