"""Tables of the published weights of a family of models, for the pages in docs/models/."""

from benchmarks.records import markdown_table
from keras_vit.weights.catalogue import ENTRIES
from keras_vit.weights.catalogue.entries import COPY_ENDINGS
from keras_vit.weights.catalogue.sizes import PUBLISHED_VARIANTS

_TOP1 = ("top-1", "measured by")
_COLUMNS = ("name", "pixels", "classes", *_TOP1, "licence")


KINDS = ("", "stem", "dense")
"""Kinds of entries with tables of their own: Vision Transformers, hybrids, and models with an output for each pixel"""


def entries_of(papers, kind=""):
    """The catalogue entries of papers that are of a kind of `KINDS`.

    `papers` may also contain the name of a family, for entries of this family that have no paper.
    """
    entries = [entry for entry in ENTRIES.values() if (entry.paper or entry.family) in papers and _kind(entry) == kind]
    return sorted(entries, key=place)


def _kind(entry):
    if entry.output is not None:
        return "dense"
    return "" if PUBLISHED_VARIANTS[entry.variant].stem is None else "stem"


def place(entry):
    """Sorting key of an entry in tables: narrow models first, then the order of the variants, then small images."""
    order = list(PUBLISHED_VARIANTS).index(entry.variant)
    return PUBLISHED_VARIANTS[entry.variant].hidden_dim, order, entry.image_size


def classes_of(entry):
    """The number of classes, and what the model returns unless it is a classifier. Empty for an encoder."""
    kind = "projection" if entry.has_projection else entry.output
    return f"{entry.classes} ({kind})" if kind and entry.classes else kind or entry.classes or ""


def table(entries):
    """A table of catalogue entries in Markdown. Copies of the same weights in other layouts share a row."""
    rows = {}
    has_top1 = any(entry.output is None for entry in entries)
    for entry in entries:
        top1 = (f"{entry.top1:.2f}", entry.top1_protocol) if entry.top1 else ("", "")
        # Files without classes contain no head.
        facts = (entry.image_size, classes_of(entry) or "none", *(top1 if has_top1 else ()), entry.licence)
        rows.setdefault((COPY_ENDINGS.sub("", entry.name), facts), []).append(entry.name)
    has_copies = any(len(names) > 1 for names in rows.values())
    columns = [column for column in _COLUMNS if has_top1 or column not in _TOP1]
    columns += ["copies"] if has_copies else []
    lines = []
    for (_, facts), (name, *copies) in rows.items():
        endings = ", ".join(f"`{COPY_ENDINGS.search(copy)[0]}`" for copy in copies)
        lines.append((f"`{name}`", *facts, *([endings] if has_copies else [])))
    return markdown_table(columns, lines, ("pixels", "classes", "top-1"))
