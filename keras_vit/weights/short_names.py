"""Finds the entry for a short name of published weights, such as `"dinov3-s16"`, or for a repository's name."""

import re

from keras_vit.weights.catalogue_entry import COPY_ENDINGS

ALIASES = {
    "imagenet": "augreg-i21k-i1k-224",
    "dinov3": "dinov3-lvd1689m",
    "eva02": "eva02-in22k-224",
    "clip": "clip-openai-224",
}
"""{short name of weights, without a variant: their name}"""

# Architectures of timm with further weights that the catalogue does not contain.
_WITH_OTHER_WEIGHTS = re.compile(r"vit_(small_patch16|base_patch(8|16)|large_patch16|huge_patch14)_224")


def matching_entries(name, entries):
    """Returns the entries that a name without `@` could mean, with only one entry for all copies of the same weights.

    The name can be that of a repository on the Hugging Face Hub, with or without its owner. The name of a repository of
    timm can also be without the tag after the dot. Any other name must be a short name. It consists of the variant
    without its slash, and of the first words of the name of the weights: `"dinov3-s16"`, `"dinov3-l16-sat493m"`,
    `"siglip2-b16-384"`.

    Of several copies, the one whose name has no ending such as `-huggingface` is returned. For Google's weights, this
    is Google's own file. For most other weights, it is timm's file. A `.pth` file, which needs torch, is returned only
    if there is no other copy.

    Args:
        name: The name.
        entries: The catalogue, {name: `CatalogueEntry`}.
    """
    found = _by_repository(name, entries.values()) or _by_variant(name, entries.values())
    preferred = {}
    for entry in sorted(found, key=lambda entry: (entry.format == "torch", len(entry.name), entry.name)):
        preferred.setdefault(COPY_ENDINGS.sub("", entry.name), entry)
    return list(preferred.values())


def names_of_variant(name, entries):
    """Returns the names of all entries whose variant is in a short name, such as L/14 in `"clip-l14-336"`."""
    words = _words(name)
    return [entry.name for entry in entries.values() if any(_is_variant(word, entry) for word in words)]


def _by_repository(name, entries):
    # timm has one repository for its two architectures with and without QuickGELU.
    plain = name.replace("_clip_quickgelu_", "_clip_")
    if plain != name:
        name, entries = plain, [entry for entry in entries if entry.changes.get("mlp") == "quick_gelu"]
    owner, slash, repository = name.rpartition("/")
    on_hub = [entry for entry in entries if entry.url.startswith(f"hf://{owner}{slash}")]
    if same := [entry for entry in on_hub if entry.url.endswith(f"/{repository}")]:
        return same
    if _WITH_OTHER_WEIGHTS.fullmatch(repository):
        return []
    return [entry for entry in on_hub if entry.url.rpartition("/")[2].partition(".")[0] == repository]


def _by_variant(name, entries):
    words = _words(name)
    exact, longer = [], []
    for position, word in enumerate(words):
        rest = "-".join(words[:position] + words[position + 1 :])
        weights = ALIASES.get(rest, rest)
        entries_of_variant = [entry for entry in entries if _is_variant(word, entry)]
        own_names = [(entry, entry.name.rpartition("@")[2]) for entry in entries_of_variant]
        exact += [entry for entry, own in own_names if own == weights]
        longer += [entry for entry, own in own_names if rest and own.startswith(f"{weights}-")]
    return exact or longer


def _words(name):
    return re.split("[-_]", name.lower())


def _is_variant(word, entry):
    return word.removeprefix("vit") in _spellings(entry.variant)


def _spellings(variant):
    """`{"h+16", "hplus16", "h16plus"}` for `"H+/16"`. Additions such as `-swiglu` of `"g-swiglu/14"` are left out."""
    size, patch_size = variant.lower().split("/")
    size = size.partition("-")[0]
    plain = size.removesuffix("+")
    return {f"{size}{patch_size}", *([f"{plain}plus{patch_size}", f"{plain}{patch_size}plus"] if plain != size else [])}
