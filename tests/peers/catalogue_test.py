"""The catalogue agrees with timm about each of timm's files, and timm's names mean these files."""

import math
import re

import pytest
import timm
import torch

from benchmarks.support_matrix import write_header
from keras_vit.weights.catalogue import ENTRIES, get_entry
from keras_vit.weights.catalogue.families import preprocessing_of
from keras_vit.weights.formats.timm.architectures import check_architecture
from keras_vit.weights.opening import entry_of_source, open_checkpoint
from tests.test_case import slow_except

TIMM = {entry.url.rpartition("/")[2]: entry for entry in ENTRIES.values() if entry.format == "timm"}
# Weights that the catalogue contains as Google's own files, or not at all.
# I-JEPA is not in timm's account on the Hub.
NOT_LISTED = re.compile(
    r"\S*\.(augreg_\S*|orig_\S*|sam_in1k|bamboo|\S*_ijepa)|flexivit_\S*|\S*_siglip_\S*|test_\S*|beit3_\S*"
)


def _facts(name):
    """timm's facts about an architecture and its weights."""
    return timm.get_pretrained_cfg(name).to_dict()


def test_facts_are_those_of_timm():
    for name, entry in TIMM.items():
        facts = _facts(name)
        assert entry.url == f"hf://{facts['hf_hub_id']}", name
        assert (entry.classes, entry.image_size) == (facts["num_classes"], facts["input_size"][1]), name
        assert entry.licence.lower() == facts["license"], name
        assert facts.get("paper_ids") in (None, f"arXiv:{entry.paper}"), name


def test_image_preparation_is_that_of_timm():
    """timm divides the image size by `crop_pct`, then crops."""
    for name, entry in TIMM.items():
        if entry.preprocessing == preprocessing_of(entry.family, entry.image_size):
            continue  # The preparation is that of the publisher, not of timm.
        facts, size, found = _facts(name), entry.image_size, entry.preprocessing
        side = math.floor(size / facts["crop_pct"])
        for statistic in ("mean", "std"):
            value = found[statistic]
            assert (value if isinstance(value, tuple) else (value,) * 3) == facts[statistic], name
        assert found["interpolation"] == facts["interpolation"], name
        assert found["resize"] == ((side, side) if facts["crop_mode"] == "squash" else side), name
        assert found["crop"] == (None if found["resize"] == (size, size) else (size, size)), name


def test_timms_names_mean_its_files():
    """A name without a tag is accepted only if timm has no other weights of this architecture."""
    tags = {}
    for name in timm.list_pretrained():
        tags.setdefault(name.partition(".")[0], []).append(name)
    for name, entry in TIMM.items():
        assert get_entry(name) == entry
        architecture = name.partition(".")[0]
        if len(tags[architecture]) == 1:
            assert get_entry(architecture) == entry
        else:
            with pytest.raises(ValueError, match=f"'{architecture}' (could mean several|is not the name)"):
                get_entry(architecture)


def _readable():
    """timm's names of weights that this package can read, as far as the architecture's name shows it."""
    for name in timm.list_pretrained():
        architecture = name.partition(".")[0]
        if re.match(r"(vit|eva|deit|flexivit|beit)", name) and not NOT_LISTED.fullmatch(name):
            try:
                check_architecture({"architecture": architecture})
            except ValueError:
                continue
            yield name


def test_all_readable_weights_of_timm_are_listed():
    for name in _readable():
        assert entry_of_source(name).format == "timm", name


ARCHITECTURES = {name.partition(".")[0]: name for name in TIMM}
QUICK = (
    *("vit_small_patch16_dinov3", "eva02_tiny_patch14_336", "vit_pe_core_tiny_patch16_384"),
    *("vit_small_patch16_rope_mixed_ape_224", "vit_xsmall_patch16_clip_224", "vit_so150m2_patch16_reg1_gap_256"),
)


@pytest.mark.parametrize("architecture", slow_except(QUICK, ARCHITECTURES))
def test_configs_are_those_of_files(architecture, tmp_path):
    """timm's config.json and the names and shapes of the arrays lead to the config that the catalogue contains."""
    with torch.device("meta"):
        model = timm.create_model(architecture)
    write_header(model, tmp_path)
    entry = TIMM[ARCHITECTURES[architecture]]
    found, expected = open_checkpoint(tmp_path, family=entry.family).config, entry.config
    assert found.mlp in (expected.mlp, "gelu_exact")  # timm recommends QuickGELU for some weights.
    assert _without_defaults(found, mlp=expected.mlp) == _without_defaults(expected)


def _without_defaults(config, **changes):
    """The config with defaults in place of `None`. The initial values of a layer scale are not compared."""
    resolved = {"class_token": config.has_class_token, "num_position_prefix_rows": config.position_prefix_rows}
    return config.replace(layer_scale=config.layer_scale and 1.0, **resolved, **changes)
