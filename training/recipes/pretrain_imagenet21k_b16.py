"""ViT-B/16 on ImageNet-21k from scratch, as in the paper: the starting point of the fine-tuning recipes.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 3 ("ViT-B/{16,32}" on ImageNet-21k) and appendix B.1.
Command: python -m training train pretrain_imagenet21k_b16 data.directory=path/or/gs://bucket/of/the/shards
Hardware: about 135 exaFLOPs (6 x MACs x images x epochs), an estimated 300 hours on one A100.
Expected: 84.53 % top-1 on ImageNet-1k after finetune_imagenet_384, reported by google-research/vision_transformer
for the published weights.
Measured: nothing yet. Tests check only that the recipe runs.

The 14 million images of 21,843 classes are not in TFDS: convert them to shards (docs/recipes.md). The learning rate
decays linearly. Its final value, 1e-5, is from the authors' code. The paper does not describe the crop. Crop
and flip are from the authors' fine-tuning code. The paper clips gradients only in the training on ImageNet-1k, so this
recipe does not clip them.
"""

from keras_vit.architectures.vision_transformer import VARIANTS
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="pretrain_imagenet21k_b16",
    model=Model(config=VARIANTS["B/16"].replace(representation_dim=768, dropout_rate=0.1)),
    data=Data(dataset="records", cache=False),
    augment=Augment(crop="inception", flip=True),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.03, clip_norm=None),
    schedule=Schedule(decay="linear", warmup="10000 steps", end=1e-5),
    fit=Fit(epochs=90, batch_size=4096),
)
