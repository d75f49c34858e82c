"""SigLIP 2 B/16 fine-tuned on pairs of images and texts of your own: a table with the columns path and text.

Paper: SigLIP, arXiv 2303.15343.
Command: python -m training train finetune_pairs data.directory=pairs.csv
Hardware: two CPU cores for hundreds of pairs.
Expected: depends on the pairs.
Measured: none.

With text.frozen=image, only the text encoder is trained. Weights of CLIP need fit.loss=softmax. Other tables are JSON
Lines and Parquet. data.dataset=archives reads WebDataset, and data.dataset=coco reads captions of COCO, with
data.annotations=annotations/captions_*.json and fit.final_weights=last, because COCO's validation images are the test.
"""

from training.recipe.config import Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune_pairs",
    task="contrastive",
    model=Model(weights="B/16@siglip2-224-huggingface"),
    data=Data(dataset="table"),
    optimizer=Optimizer(learning_rate=1e-5, weight_decay=0.1, clip_norm=1.0),
    schedule=Schedule(warmup="10%"),
    fit=Fit(epochs=5, batch_size=64, loss="sigmoid", final_weights="best"),
)
