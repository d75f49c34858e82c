"""ViT-B/16 on ImageNet-1k from scratch, as in the paper.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 3 ("ImageNet" row) and appendix B.1.
Command: python -m training train pretrain_imagenet_b16
Hardware: about 40 exaFLOPs (6 x MACs x images x epochs), an estimated 90 hours on one A100.
Expected: 77.91 % top-1 after fine-tuning at 384 pixels (paper, Table 5).
Measured: nothing yet. Tests check only that the recipe runs.

The paper does not describe the crop. Crop and flip are from the authors' fine-tuning code. As in the paper's
fine-tuning, the last 1 % of the training images is held out for validation.
"""

from keras_vit.architectures.vision_transformer import VARIANTS
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="pretrain_imagenet_b16",
    model=Model(config=VARIANTS["B/16"].replace(representation_dim=768, dropout_rate=0.1)),
    data=Data(dataset="imagenet2012", validation_fraction=0.01, cache=False),
    augment=Augment(crop="inception", flip=True),
    optimizer=Optimizer(learning_rate=3e-3, weight_decay=0.3),
    schedule=Schedule(decay="cosine", warmup="10000 steps"),
    fit=Fit(epochs=300, batch_size=4096),
)
