"""Published ViT-B/16 weights from ImageNet-21k, fine-tuned to the Oxford-IIIT Pets at 384 pixels, as in the paper.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 4 and appendix B.1.1; learning rate and warm-up of
configs/transfer.py of google-research/big_vision, which are for an AugReg B/32.
Command: python -m training train finetune_pets
Hardware: about 0.09 exaFLOPs (6 x MACs x images), an estimate of a quarter of an hour of one A100.
Expected: 94.67 %, the paper's of ViT-L/16 (Table 2); big_vision reports 93.78 % of an AugReg B/32.
Measured: nothing yet but that it runs.

The paper chooses the learning rate of 0.001, 0.003, 0.01 and 0.03 on the 10 % that are held out, and then trains on all
(data.validation_fraction=0). Not said exactly: the momentum is kept in bfloat16 there and in float32 here.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune_pets",
    model=Model(weights="B/16@i21k", input_shape=(384, 384, 3)),
    data=Data(dataset="oxford_iiit_pet", validation_fraction=0.1),
    augment=Augment(crop="inception", flip=True),
    optimizer=Optimizer(kind="sgd", learning_rate=0.003, weight_decay=0.0),
    schedule=Schedule(decay="cosine", warmup="100 steps"),
    fit=Fit(steps=500, batch_size=512, accumulation_steps=8, report_every="10%"),
)
