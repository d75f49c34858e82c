"""Fine-tunes published ViT-B/16 weights from ImageNet-21k on a task of VTAB-1k, which has 1,000 images.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 4 and appendix B.1.1, with the same setting for all tasks; tasks and
splits from Zhai et al., arXiv 1910.04867, as in google-research/task_adaptation.
Command: python -m training train finetune_vtab (CIFAR-100; docs/recipes.md has the changes for the other tasks)
Hardware: about 0.4 exaFLOPs (6 x MACs x images), an estimated one hour on one A100 for each task.
Expected: 72.72 % top-1 on average over the 19 tasks, the paper's result for ViT-L/16 (Figure 2).
Measured: nothing yet. Tests check only that the recipe runs.

800 images are for training and 200 for validation. The paper's models were trained on all 1,000. All 19 tasks are
supported. Seven of them need data.label: Clevr (2), KITTI, dSprites (2) and SmallNORB (2). The paper does not describe
the warm-up and the crop. This recipe uses the warm-up of google-research/vision_transformer. Like task_adaptation, it
uses the whole image and does not flip it. The authors store the momentum in bfloat16. This package stores it in
float32.
"""

from training.recipe.config import Data, Fit, Model, Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune_vtab",
    model=Model(weights="B/16@i21k", input_shape=(384, 384, 3)),
    # The last tenth of CIFAR-100's 50,000 training images is for validation.
    data=Data(
        dataset="cifar100", train_split="train[:800]", validation_split="train[45000:45200]", validation_fraction=0.0
    ),
    optimizer=Optimizer(kind="sgd", learning_rate=0.01, weight_decay=0.0),
    schedule=Schedule(decay="cosine", warmup="500 steps"),
    fit=Fit(steps=2_500, batch_size=512, accumulation_steps=8, report_every="10%"),
)
