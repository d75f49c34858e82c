"""Axial-ViT compared with ViT, at several patch sizes, and an AxialResNet.

Paper: Dosovitskiy et al., arXiv 2010.11929, Figure 13 (appendix D.6), which has no numbers. The axial models are
somewhat better than ViTs of the same patch size, but need more compute. AxialResNets are slow for their compute.
Command: python -m training study axial
Not included: JFT-300M and 5-shot accuracy on ImageNet. `make bench-speed` measures the speed.
"""

from training.errors import InputError
from training.studies.figures import plot_panels
from training.studies.models import has_large_images, image_shape, resnet
from training.studies.results import measured_panel
from training.studies.study import UNCHANGED_DIGITS, Comparison, Point, Study

SERIES = {"ViT": "false", "Axial-ViT": "true"}


def points(recipe):
    """The `training.studies.study.Point`s for a recipe: both models, with 2, 1 and 1/2 times its patch size."""
    config = recipe.model.config
    if config is None or config.stem is not None or not isinstance(config.patch_size, int):
        raise InputError("The study 'axial' requires a recipe with a model.config that has square patches and no stem.")
    height, width, _ = image_shape(recipe)
    sizes = [size for size in (2 * config.patch_size, config.patch_size, config.patch_size // 2) if size]
    sizes = [size for size in sizes if height % size == 0 and width % size == 0]
    variants = []
    for name, is_axial in SERIES.items():
        config = f"model.config.axial={is_axial}", "model.config.pooling=avg", "model.config.class_token=none"
        variants += [Point(name, f"patches of {size}", (*config, f"model.config.patch_size={size}")) for size in sizes]
    if has_large_images(recipe):
        return [*variants, Point("AxialResNet", "50 layers", resnet("AxialResNet50"))]
    changes = resnet("AxialResNet", "stage_depths=1,1,1", "width=16", "num_heads=4")
    return [*variants, Point("AxialResNet", "11 layers", changes)]


def comparisons(recipe):
    """With the same patches, an Axial-ViT is above a ViT."""
    label = f"patches of {recipe.model.config.patch_size}"
    return [Comparison(f"With {label}, Axial-ViT is above ViT", ("Axial-ViT", label), ("ViT", label))]


def figure(summaries, folder):
    """Accuracy against compute."""
    note = "In the paper's Figure 13, which has no numbers, axial models are better than ViTs, but need more compute."
    return plot_panels([measured_panel(summaries, "gmacs", "GMACs per image", "Measured, from scratch", note)])


STUDY = Study(
    title="Is attention along rows and columns worth its compute?",
    paper="“An Image is Worth 16x16 Words”, appendix D.6, Figure 13",
    claim="Axial-ViTs are better than ViTs with the same patches, but need more compute.",
    method="ViTs and Axial-ViTs of three blocks are trained from scratch on 1,293 images of digits, with patches of "
    "three sizes. An AxialResNet has three stages of one unit, with 64 to 256 channels.",
    comparisons=comparisons,
    changes=(*UNCHANGED_DIGITS, "model.config.num_layers=3", "fit.epochs=12"),
    points=points,
    figure=figure,
)
