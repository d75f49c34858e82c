"""Finds catalogue entries by name, short name, repository or address."""

import difflib
import re

from keras_vit.architectures.spellings import spelled_variant
from keras_vit.architectures.vision_transformer import VARIANTS
from keras_vit.checks import did_you_mean, shown
from keras_vit.weights.catalogue.entries import AUGREG_STEM, COPY_ENDINGS, ENTRIES, augreg_entry

ALIASES = {
    "imagenet": "augreg-i21k-i1k-224",
    "dinov3": "dinov3-lvd1689m",
    "eva02": "eva02-in22k-224",
    "clip": "clip-openai-224",
}
"""{short name of weights, without a variant: their name}"""

# Architectures of timm with further weights that the catalogue does not contain.
_WITH_OTHER_WEIGHTS = re.compile(r"vit_(small_patch16|base_patch(8|16)|large_patch16|huge_patch14)_224")


def list_weights(variant: str | None = None) -> list[str]:
    """Returns the names of the published weights in the catalogue.

    In addition, each of the 50,000 AugReg files (arXiv 2106.10270) can be loaded by its name without `.npz`, and many
    weights by a short name such as `"dinov3-s16"` or by the name of their repository (see docs/weights.md). Any other
    file can be loaded by its path or address.

    Args:
        variant: Variant such as `"B/16"` whose weights are listed. `None`: all variants.

    Returns:
        A sorted list of names `"<variant>@<weights>"`.

    Raises:
        ValueError: If there are no published weights for the variant.

    Example:

    >>> from keras_vit.weights.catalogue import list_weights
    >>> list_weights("S/8")
    ['S/8@dino', 'S/8@dino-huggingface', 'S/8@dino-original']
    """
    variants = sorted({entry.variant for entry in ENTRIES.values()})
    if variant not in (None, *variants):
        hint = did_you_mean(variant, variants)
        raise ValueError(
            f"The catalogue has no weights for the variant {shown(variant)}.{hint} Variants with weights: "
            f"{', '.join(variants)}"
        )
    return sorted(name for name, entry in ENTRIES.items() if variant in (None, entry.variant))


def get_entry(name, variant=None):
    """Returns the catalogue entry of published weights.

    Args:
        name: One of these names:

            * `"<variant>@<weights>"`, or `"<weights>"` if `variant` is given. For `<weights>`, `imagenet` is short for
              the variant's AugReg file for ImageNet-1k at 224 pixels. `dinov3`, `eva02` and `clip` are short for
              `dinov3-lvd1689m`, `eva02-in22k-224` and `clip-openai-224`.
            * The name of an AugReg file without `.npz`.
            * A short name such as `"dinov3-s16"`, or the name of a repository on the Hugging Face Hub, such as
              `"vit_small_patch16_dinov3.lvd1689m"` of timm. See `matching_entries`.
        variant: Variant of the model, or `None`.

    Returns:
        A `CatalogueEntry`.

    Raises:
        ValueError: If the name is unknown, belongs to another variant, or could mean several weights. The message lists
            the candidates.

    Example:

    >>> from keras_vit.weights.catalogue import get_entry
    >>> entry = get_entry("imagenet", variant="Ti/16")
    >>> entry.name, entry.image_size, entry.top1
    ('Ti/16@augreg-i21k-i1k-224', 224, 75.45)
    >>> get_entry("dinov3-s16").name
    'S/16@dinov3-lvd1689m'
    """
    entry = exact_entry(name, variant)
    if entry is None and "@" not in name:
        found = matching_entries(name)
        if len(found) > 1:
            names = ", ".join(entry.name for entry in found)
            raise ValueError(f"{name!r} could mean several weights. Pass one of these names: {names}")
        entry = next(iter(found), None)
    own_variant, _, weights = name.rpartition("@")
    if entry is None:
        raise ValueError(_unknown(own_variant or variant, weights))
    for expected in (own_variant, variant):
        if expected not in ("", None, entry.variant):
            raise ValueError(f"{name!r} are weights of {entry.variant}, not of {expected}. The variants must be equal.")
    return entry


def exact_entry(name, variant=None):
    """Returns the entry of a name as in `list_weights`, or of an AugReg file. `None` for any other name."""
    own_variant, _, weights = name.rpartition("@")
    if AUGREG_STEM.fullmatch(weights):
        return augreg_entry(weights)
    return ENTRIES.get(f"{own_variant or variant}@{ALIASES.get(weights, weights)}")


def entry_at(address):
    """Finds the entry of an address. Returns the entry or `None`, and whether the address has the entry's weights.

    Another revision or another file of the entry's repository has the same licence, but can contain other weights. An
    address alone does not show the weights of an entry with hints, such as one of several heads in a file.
    """
    address = address.replace("gs://", "https://storage.googleapis.com/", 1)
    for entry in ENTRIES.values():
        path, _, rest = address.partition(entry.url)
        if address and not path and rest[:1] in ("", "/", "@"):
            return entry, re.fullmatch(r"(@main)?(/|/model\.safetensors)?", rest) is not None and not entry.hints
    stem = address.rpartition("/")[2].removesuffix(".npz")
    entry = augreg_entry(stem) if AUGREG_STEM.fullmatch(stem) else None
    return (entry, True) if entry and entry.url == address else (None, False)


def matching_entries(name):
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
    """
    found = _by_repository(name, ENTRIES.values()) or _by_variant(name)
    preferred = {}
    for entry in sorted(found, key=lambda entry: (entry.format == "torch", len(entry.name), entry.name)):
        preferred.setdefault(COPY_ENDINGS.sub("", entry.name), entry)
    return list(preferred.values())


def names_of_variant(name):
    """Returns the names of all entries whose variant is in a short name, such as L/14 in `"clip-l14-336"`."""
    words = _words(name)
    return [entry.name for entry in ENTRIES.values() if any(_is_variant(word, entry) for word in words)]


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


def _by_variant(name):
    words = _words(name)
    exact, longer = [], []
    for position, word in enumerate(words):
        rest = "-".join(words[:position] + words[position + 1 :])
        weights = ALIASES.get(rest, rest)
        entries_of_variant = [entry for entry in ENTRIES.values() if _is_variant(word, entry)]
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


def _unknown(variant, weights):
    """Error message for a name that is not in the catalogue."""
    names = sorted(name for name, entry in ENTRIES.items() if entry.variant == variant)
    if weights in ALIASES and names:
        return (
            f"There are no weights {weights!r} (short for {ALIASES[weights]!r}) for the variant {variant!r}. "
            f"Weights of this variant: {', '.join(names)}"
        )
    if variant in VARIANTS and not names:
        return (
            f"No weights are published for the variant {variant!r}. Build it with weights=None, or pass the path or "
            f"address of your own weights."
        )
    full_name = f"{variant}@{weights}" if variant else weights
    similar = (_names_by_address(weights) or _names_by_variant(weights))[:3]
    if re.fullmatch(r"vit_\w+\.\w+", weights):
        similar = [*similar[:2], f"hf://timm/{weights}"]
    nearest = f" Did you mean {' or '.join(map(repr, similar))}?"
    hint = nearest if similar else did_you_mean(full_name, names or names_of_variant(weights) or ENTRIES)
    return (
        f"{shown(full_name)} is not the name of published weights.{hint} Accepted: '<variant>@<weights>' as in "
        f"keras_vit.list_weights(), a short name such as 'dinov3-s16', the name of a repository in the catalogue, or "
        f"the name of an AugReg file without '.npz'."
    )


def _names_by_address(name):
    """Catalogue names of the files or repositories called `name` or, if there are none, of those that start with it.

    If there are none of either kind, and `name` looks like a repository on the Hub, its `hf://` address is returned.
    """
    same = [entry.name for entry in ENTRIES.values() if entry.url.endswith(f"/{name}")]
    alike = [entry.name for entry in ENTRIES.values() if name and entry.url.rpartition("/")[2].startswith(name)]
    if re.fullmatch(r"[\w-]+/[\w.-]+", name) and name not in VARIANTS and not same + alike:
        return [f"hf://{name}"]
    return same or alike


def _names_by_variant(name):
    """Catalogue names for a variant, best matches first. The variant may be spelled as in another project."""
    variant = spelled_variant(name, VARIANTS) if "vit" in name.lower() else name
    names = [entry for entry in ENTRIES if entry.startswith(f"{variant}@")]
    tag = ALIASES["imagenet"] if name == variant else name.rpartition(".")[2]
    return sorted(names, key=lambda entry: -difflib.SequenceMatcher(None, tag, entry.partition("@")[2]).ratio())
