"""Fine-tunes published ViT-B/16 weights from ImageNet-21k on ImageNet-1k at 384 pixels, as in the paper.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 4 and appendix B.1.1; configs/common.py of
google-research/vision_transformer.
Command: python -m training train finetune_imagenet_384
Hardware: 6.5 hours on the authors' A100 machine, 19.3 hours on their V100 machine.
Expected: 84.53 % top-1, reported by google-research/vision_transformer without dropout.
Measured: nothing yet. Tests check only that the recipe runs.

The paper selects the learning rate from 0.003, 0.01, 0.03 and 0.06 with 1 % of the training images held out. It
then trains on all training images (set data.validation_fraction=0). The authors store the momentum in bfloat16. This
package stores it in float32.
"""

from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune_imagenet_384",
    model=Model(weights="B/16@i21k", input_shape=(384, 384, 3)),
    data=Data(dataset="imagenet2012", validation_fraction=0.01, cache=False),
    augment=Augment(crop="inception", flip=True),
    optimizer=Optimizer(kind="sgd", learning_rate=0.03, weight_decay=0.0),
    schedule=Schedule(decay="cosine", warmup="500 steps"),
    fit=Fit(steps=20_000, batch_size=512, accumulation_steps=8),
)
