"""Fine-tunes published ViT-B/16 weights from ImageNet-21k on the Oxford-IIIT Pets at 384 pixels, as in the paper.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 4 and appendix B.1.1; learning rate and warm-up from
configs/transfer.py of google-research/big_vision, which is for an AugReg B/32.
Command: python -m training train finetune_pets
Hardware: about 0.09 exaFLOPs (6 x MACs x images), an estimated 15 minutes on one A100.
Expected: 94.67 % top-1, the paper's result for ViT-L/16 (Table 2); big_vision reports 93.78 % for an AugReg B/32.
Measured: nothing yet. Tests check only that the recipe runs.

The paper selects the learning rate from 0.001, 0.003, 0.01 and 0.03 with 10 % of the training images held out. It
then trains on all training images (set data.validation_fraction=0). The authors store the momentum in bfloat16. This
package stores it in float32.
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
