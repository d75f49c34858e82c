import dataclasses
import importlib.resources
import itertools
import pathlib
import re

import keras
import numpy as np
import pytest

import keras_vit
from benchmarks.weights import document
from keras_vit.weights import catalogue
from keras_vit.weights.catalogue import ENTRIES, FAMILIES, get_entry, list_weights
from keras_vit.weights.catalogue.entries import COPY_ENDINGS
from keras_vit.weights.catalogue.families import preprocessing_of
from keras_vit.weights.catalogue.lookup import entry_at
from keras_vit.weights.catalogue.sizes import PUBLISHED_VARIANTS

STEM = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
BUCKET = "https://storage.googleapis.com/vit_models/augreg/"


def test_addresses_are_those_in_the_publishers_documents():
    text = pathlib.Path(__file__).with_name("published_urls.txt").read_text()
    published = {line for line in text.splitlines() if not line.startswith("#")}
    # No list of the copies in transformers' layout is published.
    found = {entry.url for name, entry in ENTRIES.items() if not name.endswith("-huggingface")}
    assert len(published) > 150
    assert found == published


def test_names_and_addresses_are_unique():
    table = (importlib.resources.files(catalogue) / "entries.tsv").read_text().splitlines()
    entries = list(ENTRIES.values())
    # A file of TIPSv2-DPT has three heads.
    assert len({(entry.url, *entry.hints.items()) for entry in entries}) == len(entries) == len(table) - 1
    for name, entry in ENTRIES.items():
        assert name == entry.name
        assert re.fullmatch(rf"{re.escape(entry.variant)}@[a-z0-9-]+", name)
    assert {entry.variant for entry in entries} <= set(PUBLISHED_VARIANTS)
    assert not set(PUBLISHED_VARIANTS) - set(keras_vit.VARIANTS) - {entry.variant for entry in entries}


def test_facts_of_entries_agree_with_each_other():
    layouts = {".npz": "google", ".pth": "torch", ".tar": "torch"}
    for name, entry in ENTRIES.items():
        owner = entry.url.removeprefix("hf://").partition("/")[0]
        hub_layout = "timm" if owner in ("timm", "belfner") else "huggingface"
        hub_layout = "depth_anything" if "@depth-anything-3" in name else hub_layout
        assert entry.format == layouts.get(entry.url[-4:], hub_layout), name
        # The files of models with an output for each pixel are no copies of other files.
        is_copy = entry.format == "huggingface" and entry.output is None
        assert name.endswith("-huggingface") == is_copy, name
        assert entry.family in FAMILIES, name
        assert entry.label_space == {1000: "imagenet1k", 21843: "imagenet21k"}.get(entry.classes), name
        assert (entry.top1 is None) == (entry.top1_protocol is None), name
        assert entry.top1 is None or 70 < entry.top1 < 91, name
        assert (entry.paper is None) == (entry.family == "timm" and "augreg2" not in name), name
        assert entry.paper is None or re.fullmatch(r"\d{4}\.\d{5}", entry.paper), name
        assert entry.gated == entry.url.startswith("hf://facebook/dinov3-"), name


@pytest.mark.parametrize(
    ("licence", "names"),
    [
        ("CC-BY-NC-4.0", "@(mae|mocov3|ijepa|clip-metaclip)|[BL]/14@depth-anything-v2"),
        ("dinov3-license", "@(eomt-)?dinov3"),
        ("fair-noncommercial-research-license", "@eupe"),
        ("apple-ascl", "@clip-dfn"),
        ("apple-amlr", "@clip-apple"),
        ("MIT", "@(eva|eomt-(?!dinov3)|clip-laion400m|clip-tinyclip|internvit-dist|sbb-rope)"),
    ],
)
def test_licences(licence, names):
    found = [name for name, entry in ENTRIES.items() if entry.licence == licence]
    assert found
    assert found == [name for name in ENTRIES if re.search(names, name)]


def test_image_sizes_are_those_in_names():
    sizes = r"(?<!\d)(196|224|240|256|336|378|384|448|512|560|640|1024|1280)(?!\d)"
    found = {name: re.findall(sizes, name) for name in ENTRIES}
    assert all([str(ENTRIES[name].image_size)] == sizes for name, sizes in found.items() if sizes)
    # Names of TIPSv2, InternViT (448 pixels), LingBot-Vision (512) and Depth Anything (518) do not contain the size.
    assert {ENTRIES[name].image_size for name, sizes in found.items() if not sizes} == {224, 240, 256, 448, 512, 518}


def test_changes_make_a_model_that_fits_the_image():
    for name, entry in ENTRIES.items():
        config, plain = entry.config, PUBLISHED_VARIANTS[entry.variant]
        assert all(getattr(config, field) == value for field, value in entry.changes.items()), name
        # `mlp` changes the activation of the family, not that of the variant.
        unneeded = [
            field for field, value in entry.changes.items() if field != "mlp" and getattr(plain, field) == value
        ]
        assert unneeded in ([], ["class_token"]), name
        patch_size = int(entry.variant.split("/")[1])
        assert config.crop_to_patches == bool(entry.image_size % patch_size), name


def test_image_preparation():
    facts = get_entry("L/14@eva02-in22k-in22k-in1k-448").preprocessing
    assert (facts["resize"], facts["crop"], facts["interpolation"]) == ((448, 448), None, "bicubic")
    facts = get_entry("B/16@clip-openai-in12k-in1k-384").preprocessing
    assert (facts["resize"], facts["crop"]) == ((404, 404), (384, 384))
    facts = get_entry("betwixt/16@sbb-reg4-in1k-256").preprocessing
    assert (facts["resize"], facts["crop"], facts["mean"]) == (269, (256, 256), 0.5)
    assert get_entry("L/16@dinov3-sat493m").preprocessing["mean"] == (0.43, 0.411, 0.296)
    facts = get_entry("S/16@eomt-coco-panoptic-640").preprocessing  # The publisher pads images to a square.
    assert (facts["resize"], facts["crop"], facts["interpolation"]) == ((640, 640), None, "bilinear")
    for entry in ENTRIES.values():
        pixels = keras_vit.Preprocessing(**entry.preprocessing)  # Raises an error if a value is not accepted.
        assert 0.86 < entry.image_size / np.max(pixels.resize) <= 1, entry.name


def test_copies_hold_the_same_model():
    copies = [name for name in ENTRIES if COPY_ENDINGS.search(name) and not re.search("-bigvision$|@ijepa-", name)]
    assert len(copies) > 60
    for name in copies:
        copy, entry = ENTRIES[name], ENTRIES[COPY_ENDINGS.sub("", name)]
        assert (copy.variant, copy.paper, copy.licence) == (entry.variant, entry.paper, entry.licence)
        # Files of transformers that were trained on ImageNet-21k have no head.
        assert copy.classes == (0 if name.endswith("@i21k-huggingface") else entry.classes)
        changes, expected = dict(copy.changes), dict(entry.changes)
        if "dinov3" in name:  # timm averages the patches, and its preferred files have no biases.
            for field in ("qkv_bias", "pooling", "class_token"):
                changes.pop(field, None), expected.pop(field)
        else:
            assert copy.image_size == entry.image_size
        folded = {"num_position_prefix_rows": 0} if "reg4" in name else {}
        assert {**changes, **folded} == expected


def test_facts_of_some_entries():
    entry = get_entry("B/16@augreg-i21k-i1k-384")
    assert entry.url == f"{BUCKET}{STEM}--imagenet2012-steps_20k-lr_0.03-res_384.npz"
    assert (entry.classes, entry.label_space, entry.image_size, entry.top1) == (1000, "imagenet1k", 384, 85.49)
    entry = get_entry("i21k", variant="R50+B/16")
    assert entry.url == "https://storage.googleapis.com/vit_models/imagenet21k/R50+ViT-B_16.npz"
    assert (entry.classes, entry.label_space, entry.changes) == (21843, "imagenet21k", {"representation_dim": 768})
    entry = get_entry("So400m/14@siglip-384")
    assert entry.changes == {"pooling": "map", "class_token": False, "crop_to_patches": True}
    entry = get_entry("S/14@dinov2-reg4-original")
    assert entry.url.endswith("/dinov2_vits14/dinov2_vits14_reg4_pretrain.pth")
    assert (entry.family, entry.classes, entry.changes["num_register_tokens"]) == ("dinov2_registers", 0, 4)
    assert get_entry("deit-distilled", variant="B/16").changes == {"distillation_token": True}
    entry = get_entry("L/14@eva02-in22k-in22k-448")
    assert (entry.url, entry.classes) == ("hf://timm/eva02_large_patch14_448.mim_in22k_ft_in22k", 21841)
    entry = get_entry("S/16@mocov3")
    assert entry.url == "https://dl.fbaipublicfiles.com/moco-v3/vit-s-300ep/vit-s-300ep.pth.tar"
    assert entry.config.num_heads == 12
    entry = get_entry("H+/16@dinov3-lvd1689m")
    assert (entry.url, entry.gated) == ("hf://timm/vit_huge_plus_patch16_dinov3.lvd1689m", False)
    assert entry.config.num_heads == 20
    entry = get_entry("g-swiglu/14@dinov2-kitti-linear4")
    assert (entry.output, entry.hints) == ("depth", {"encoder": "g-swiglu/14@dinov2", "max_depth": 80})
    assert entry.config == get_entry("g-swiglu/14@dinov2").config
    entry = get_entry("S/16@eomt-dinov3-coco-panoptic-640")
    assert (entry.output, entry.classes, entry.config.layer_norm_epsilon) == ("masks", 133, 1e-5)
    entry = get_entry("B/32@clip-openai-224")
    assert (entry.classes, entry.has_projection, entry.config.mlp) == (512, True, "quick_gelu")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dinov3-s16", "S/16@dinov3-lvd1689m"),
        ("dinov3-l16-sat493m", "L/16@dinov3-sat493m"),
        ("dinov3-s+16", "S+/16@dinov3-lvd1689m"),
        ("dinov3-hplus16", "H+/16@dinov3-lvd1689m"),
        ("dinov3_vith16plus", "H+/16@dinov3-lvd1689m"),  # As in torch.hub.
        ("dinov3-7b16", "7B/16@dinov3-lvd1689m"),
        ("DINOv3-S16-lvd1689m-huggingface", "S/16@dinov3-lvd1689m-huggingface"),
        ("eupe-ti16", "Ti/16@eupe-lvd1689m"),
        ("dinov2-s14", "S/14@dinov2"),
        ("dinov2-g14", "g-swiglu/14@dinov2"),
        ("dinov2-reg4-b14", "B/14@dinov2-reg4"),
        ("eva02-b14", "B/14@eva02-in22k-224"),
        ("pe-core-g14", "G-pe/14@pe-core-448"),
        ("clip-b32", "B/32@clip-openai-224"),
        ("siglip2-b16-384", "B/16@siglip2-384"),
        ("imagenet-ti16", "Ti/16@augreg-i21k-i1k-224"),
        ("ijepa-context-h16", "H/16@ijepa-context-in1k-448-huggingface"),
        ("ijepa-in1k-h16", "H/16@ijepa-in1k-448"),
        ("facebook/ijepa_vith16_1k", "H/16@ijepa-context-in1k-448-huggingface"),
        ("vit_small_patch16_dinov3.lvd1689m", "S/16@dinov3-lvd1689m"),
        ("vit_small_patch16_dinov3", "S/16@dinov3-lvd1689m"),
        ("timm/vit_small_patch16_dinov3", "S/16@dinov3-lvd1689m"),
        ("timm/vit_small_patch16_dinov3_qkvb.lvd1689m", "S/16@dinov3-lvd1689m-qkvb"),
        ("vit_base_patch32_clip_quickgelu_224.openai", "B/32@clip-openai-224"),
        ("vit_base_patch16_224.mae", "B/16@mae"),
        ("belfner/vit_base_patch16_lingbot.robbyant", "B/16@lingbot"),
        ("facebook/dinov3-vits16-pretrain-lvd1689m", "S/16@dinov3-lvd1689m-huggingface"),
        ("dinov2-base", "B/14@dinov2-huggingface"),
        ("google/vit-base-patch16-224", "B/16@i21k-i1k-224-huggingface"),
        ("tue-mps/coco_panoptic_eomt_large_640", "L/16@eomt-coco-panoptic-640"),
        ("depth-anything/DA3METRIC-LARGE", "L/14@depth-anything-3-metric"),
        ("depth-anything-v2-s14", "S/14@depth-anything-v2"),
        ("dinov2-nyu-dpt-b14", "B/14@dinov2-nyu-dpt"),
    ],
)
def test_short_names_and_names_of_repositories(name, expected):
    assert get_entry(name).name == expected
    assert get_entry(name, variant=expected.partition("@")[0]).name == expected


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("vit_large_patch16_dinov3", "L/16@dinov3-sat493m, L/16@dinov3-lvd1689m"),
        ("siglip-b16", "B/16@siglip-224, B/16@siglip-256, B/16@siglip-384, B/16@siglip-512, B/16@siglip-i18n-256"),
        ("tipsv2-b14-dpt", "B/14@tipsv2-dpt-depth, B/14@tipsv2-dpt-ade20k, B/14@tipsv2-dpt-normals"),
        # Meta's file has two encoders. The file of transformers does not contain the one that is read from Meta's file.
        ("ijepa-h16", "H/16@ijepa-context-in1k-448-huggingface, H/16@ijepa-in1k-448"),
        ("deit3-m16", "M/16@deit3-i1k-224, M/16@deit3-i21k-i1k-224"),
    ],
)
def test_short_names_of_several_weights(name, candidates):
    message = f"'{name}' could mean several weights.* Pass one of these names: {candidates}$"
    with pytest.raises(ValueError, match=message):
        get_entry(name)


def test_imagenet_is_an_alias():
    for variant in ("Ti/16", "S/32", "S/16", "B/32", "B/16", "B/8", "L/16", "R+Ti/16", "R26+S/32", "R50+L/32"):
        entry = get_entry("imagenet", variant=variant)
        assert entry is get_entry(f"{variant}@imagenet") is ENTRIES[f"{variant}@augreg-i21k-i1k-224"]
        assert entry.url.endswith("-res_224.npz")
    with pytest.raises(ValueError, match=r"'imagenet' .short for .* 'S/14'. Weights .*: S/14@depth-anything, "):
        get_entry("imagenet", variant="S/14")
    with pytest.raises(ValueError, match="'imagenet' is not the name of published weights"):
        get_entry("imagenet")


@pytest.mark.parametrize(
    ("stem", "variant", "classes", "image_size"),
    [
        (STEM, "B/16", 21843, 224),
        (f"{STEM}--imagenet2012-steps_20k-lr_0.03-res_384", "B/16", 1000, 384),
        (f"{STEM}--kitti-steps_2k-lr_0.01-res_384", "B/16", 4, 384),
        (f"{STEM}--resisc45-steps_2k-lr_0.001-res_224", "B/16", 45, 224),
        (f"{STEM}--unheard_of-steps_2k-lr_0.001-res_224", "B/16", None, 224),
        ("R26_S_32-i21k_30-30ep-lr_0.001-aug_none-wd_0.03-do_0.1-sd_0.1", "R26+S/32", 21843, 224),
        ("R_Ti_16-i1k-300ep-lr_0.001-aug_strong2-wd_0.1-do_0.0-sd_0.1", "R+Ti/16", 1000, 224),
    ],
)
def test_any_augreg_file(stem, variant, classes, image_size):
    entry = get_entry(stem)
    assert entry.url == f"{BUCKET}{stem}.npz"
    assert (entry.variant, entry.classes, entry.image_size) == (variant, classes, image_size)
    assert entry.label_space == {1000: "imagenet1k", 21843: "imagenet21k"}.get(classes)
    assert entry.format == entry.family == "google"
    assert entry == get_entry(stem, variant=variant) == get_entry(entry.name)


@pytest.mark.parametrize(
    "stem",
    [
        f"{STEM}.npz",
        f"../{STEM}",
        STEM.replace("B_16", "H_14"),
        STEM.replace("medium1", "light3"),
        STEM.replace("0.001", "0x001"),
        STEM.replace("do_0.0-", ""),
        f"{STEM}--imagenet2012-steps_20k-lr_0.03-res_512",
        f"{STEM}--imagenet2012-steps_20k-lr_0.3-res_384",
        f"{STEM}--../x-steps_20k-lr_0.03-res_384",
    ],
)
def test_files_that_augreg_does_not_have(stem):
    with pytest.raises(ValueError, match="is not the name of published weights"):
        get_entry(stem)


@pytest.mark.parametrize(
    ("name", "variant", "message"),
    [
        ("B/16@diet", None, r"'B/16@diet' is not .* Did you mean 'B/16@deit' .*keras_vit\.list_weights\(\)"),
        ("B/16", None, r"'B/16' is not .* Did you mean 'B/16@augreg-i21k-i1k-224' or "),
        ("vit_base_patch16_224.augreg_in21k", None, r"'B/16@augreg-i21k' or .* or 'hf://timm/vit_base_patch16_224\."),
        # timm has more weights of this architecture than the catalogue.
        ("vit_large_patch16_224", None, r"'vit_large_patch16_224' is not .* Did you mean 'L/16@"),
        ("google/vit-base-patch16-224-in20k", None, r"Did you mean 'hf://google/vit-base-patch16-224-in20k'\?"),
        ("clip-l14-336", None, r"Did you mean 'L/14@clip-\S+-336'( or 'L/14@\S+')*\? "),
        # timm has no model with QuickGELU for these weights.
        ("vit_base_patch32_clip_quickgelu_224.laion2b", None, r"_224\.laion2b' is not the name of published weights"),
        ("dinov3-s14", None, r"'dinov3-s14' is not the name of published weights"),
        ("dinov3-s16", "B/16", r"'dinov3-s16' are weights of S/16, not of B/16"),
        ("someone/vit-tiny", None, r"Did you mean 'hf://someone/vit-tiny'\?"),
        ("imagenet", "R50+L/16", r"No weights are published for the variant 'R50\+L/16'\. Build it with weights=None"),
        ("S/16@deit", "B/16", r"'S/16@deit' are weights of S/16, not of B/16"),
        (STEM, "S/16", "are weights of B/16, not of S/16"),
    ],
)
def test_refused_names(name, variant, message):
    with pytest.raises(ValueError, match=message):
        get_entry(name, variant=variant)


def test_list_weights():
    names = list_weights()
    assert names == sorted(ENTRIES)
    assert list_weights("S/8") == ["S/8@dino", "S/8@dino-huggingface", "S/8@dino-original"]
    with pytest.raises(ValueError, match="no weights for the variant 'b16'"):
        list_weights("b16")
    with pytest.raises(ValueError, match=r"variant 'S/15'\. Did you mean .*'S/16'.* Variants with weights: .*Ti/16"):
        list_weights("S/15")


def test_heads_name_their_encoder():
    """Its variant is that of the head. Files with several heads have one entry for each of their outputs."""
    heads = [entry for entry in ENTRIES.values() if "encoder" in entry.hints]
    assert len(heads) == 40
    assert all(get_entry(entry.hints["encoder"]).variant == entry.variant for entry in heads)
    shared = [entry for entry in ENTRIES.values() if "output" in entry.hints]
    assert len(shared) == 3 * len({entry.url for entry in shared}) == 12
    assert all(entry.hints["output"] == entry.output for entry in shared)


@pytest.mark.parametrize("name", ["B/14@tipsv2-dpt-normals", "S/14@dinov2-nyu-dpt", "S/14@depth-anything-v2"])
def test_an_address_does_not_show_which_head_is_meant(name):
    entry, has_its_weights = entry_at(get_entry(name).url)
    assert entry.licence == "Apache-2.0"
    assert has_its_weights == (not entry.hints)


def test_entries_cannot_be_changed():
    entry = get_entry("B/16@i21k")
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.top1 = 99.0
    with pytest.raises(TypeError):
        entry.changes["representation_dim"] = 7
    with pytest.raises(TypeError):
        ENTRIES["B/16@mine"] = entry
    assert len({entry, get_entry("B/16@i21k"), get_entry("B/32@i21k")}) == 2


@pytest.mark.parametrize(
    ("families", "mode"), [(("google", "siglip", "huggingface_vit"), "tf"), (("deit", "dino"), "torch")]
)
def test_normalisation_is_that_of_keras_applications(families, mode):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3)).astype("float32")
    expected = keras.applications.imagenet_utils.preprocess_input(pixels.copy(), data_format="channels_last", mode=mode)
    for family in families:
        layer = keras_vit.Preprocessing(**preprocessing_of(family, 224), normalize=True)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(pixels)), expected, atol=1e-5)


def test_protocol():
    facts = preprocessing_of("google", 384)
    assert (facts["resize"], facts["crop"], facts["interpolation"]) == ((384, 384), None, "bilinear")
    assert preprocessing_of("google", [96, 64])["resize"] == (96, 64)
    facts = preprocessing_of("deit", 224)
    assert (facts["resize"], facts["crop"], facts["interpolation"]) == (256, (224, 224), "bicubic")
    # facebookresearch/deit, datasets.py: int(input_size / eval_crop_ratio), and timm: floor(size / crop_pct).
    assert preprocessing_of("deit", 384)["resize"] == int(256 / 224 * 384)
    assert preprocessing_of("timm", 224)["resize"] == int(224 / 0.9)
    assert preprocessing_of("deit3", 384)["resize"] == 384
    assert preprocessing_of("flexivit", 480)["resize"] == (544, 544)  # big_vision resizes every image to a square.
    facts = preprocessing_of("dinov2", (224, 448))
    assert (facts["resize"], facts["crop"]) == ((256, 512), (224, 448))
    with pytest.raises(ValueError, match=r"'vgg' is not a family of weights\. Accepted: google, big_vision"):
        preprocessing_of("vgg", 224)


def test_protocol_leads_to_the_size_of_the_model():
    for family, image_size in itertools.product(FAMILIES, [32, 37, 224, 518, (96, 64)]):
        facts = preprocessing_of(family, image_size)
        size = image_size if isinstance(image_size, tuple) else (image_size, image_size)
        resized = facts["resize"] if isinstance(facts["resize"], tuple) else (facts["resize"],) * 2
        assert (facts["crop"] or resized) == size, (family, image_size)
        assert all(side >= cut for side, cut in zip(resized, size, strict=True)), (family, image_size)


@pytest.mark.slow
def test_document_is_what_its_command_prints():
    path = pathlib.Path(__file__).parents[3] / "docs" / "weights.md"
    assert path.read_text() == document() + "\n"
    assert all(f"`{name}`" in document() for name in ENTRIES)


def test_checksums_that_the_publisher_put_into_the_name():
    known = {name: entry.sha256 for name, entry in ENTRIES.items() if entry.sha256}
    assert known["S/16@deit-original"] == "cd65a155"
    assert len(known) == 8
