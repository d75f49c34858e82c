"""The hybrid R50+ViT-B/16 on ImageNet-21k from scratch, as in the paper.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 3 and appendix B.1: hybrids are trained like their Transformers.
Command: python -m training train pretrain_imagenet21k_r50_b16 data.directory=path/or/gs://bucket/of/the/shards
Hardware: about 165 exaFLOPs (6 x MACs x images x epochs), an estimated 370 hours on one A100.
Expected: 85.08 % top-1 on ImageNet-1k after finetune_imagenet_r50_b16, reported by google-research/vision_transformer
for the published weights.
Measured: nothing yet. Tests check only that the recipe runs.

Table 3 describes the training of hybrids only on JFT, which is not public. This recipe does not use its values: 7
epochs, a learning rate of 8e-4, a weight decay of 0.1 and no dropout.
The notes of the recipe pretrain_imagenet21k_b16 on data, decay and crop apply to this recipe too.
"""

from keras_vit.architectures.vision_transformer import VARIANTS
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="pretrain_imagenet21k_r50_b16",
    model=Model(config=VARIANTS["R50+B/16"].replace(representation_dim=768, dropout_rate=0.1)),
    data=Data(dataset="records", cache=False),
    augment=Augment(crop="inception", flip=True),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.03, clip_norm=None),
    schedule=Schedule(decay="linear", warmup="10000 steps", end=1e-5),
    fit=Fit(epochs=90, batch_size=4096),
)
