"""ViT-B/16 on ImageNet-1k from scratch, with augmentation and a sigmoid for each class.

Paper: Steiner et al., "How to train your ViT?", arXiv 2106.10270; configs/vit_i1k.py of google-research/big_vision,
with its augmentation for B/16, medium2.
Command: python -m training train pretrain_imagenet_b16_augreg
Hardware: about 40 exaFLOPs (6 x MACs x images x epochs), an estimate of 90 hours of one A100.
Expected: 79.15 % top-1 at 224 pixels, timm's measurement of the authors' best such model, which differs: strong2
(augment.mixup=0.8 augment.randaugment_magnitude=20), dropout and stochastic depth 0.1, fine-tuned afterwards.
Measured: nothing yet but that it runs.

Weight decay is 1e-4 in that code, which does not multiply it by the learning rate: 1e-4 / 1e-3 here. Not said exactly:
Adam's momentum is kept in bfloat16 there and in float32 here.
"""

from keras_vit.architectures.vision_transformer import VARIANTS
from training.recipe.config import Augment, Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="pretrain_imagenet_b16_augreg",
    model=Model(config=VARIANTS["B/16"].replace(representation_dim=768, head_bias=-6.9), resize=256),
    data=Data(dataset="imagenet2012", validation_fraction=0.01, cache=False),
    augment=Augment(crop="inception", flip=True, randaugment_ops=2, randaugment_magnitude=15, mixup=0.5),
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.1),
    schedule=Schedule(decay="cosine", warmup="10000 steps"),
    fit=Fit(epochs=300, batch_size=4096, loss="sigmoid"),
)
