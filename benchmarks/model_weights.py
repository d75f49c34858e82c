"""Tables of the published weights of a family of models, for the pages in docs/models/."""

from benchmarks.records import markdown_table
from keras_vit.weights.catalogue import ENTRIES
from keras_vit.weights.catalogue.entries import COPY_ENDINGS
from keras_vit.weights.catalogue.sizes import PUBLISHED_VARIANTS

_COLUMNS = ("name", "pixels", "classes", "top-1", "measured by", "licence")


def entries_of(papers, has_stem):
    """The catalogue entries of papers: if `has_stem`, those of hybrids, otherwise those of all other models.

    `papers` may also contain the name of a family, for entries of this family that have no paper.
    """
    entries = [
        entry
        for entry in ENTRIES.values()
        if (entry.paper or entry.family) in papers and (PUBLISHED_VARIANTS[entry.variant].stem is not None) == has_stem
    ]
    return sorted(entries, key=place)


def place(entry):
    """Sorting key of an entry in tables: narrow models first, then the order of the variants, then small images."""
    order = list(PUBLISHED_VARIANTS).index(entry.variant)
    return PUBLISHED_VARIANTS[entry.variant].hidden_dim, order, entry.image_size


def table(entries):
    """A table of catalogue entries in Markdown. Copies of the same weights in other layouts share a row."""
    rows = {}
    for entry in entries:
        # Files without classes contain no head.
        top1, measured_by = (f"{entry.top1:.2f}", entry.top1_protocol) if entry.top1 else ("", "")
        classes = f"{entry.classes} (projection)" if entry.has_projection else entry.classes or "none"
        facts = (entry.image_size, classes, top1, measured_by, entry.licence)
        rows.setdefault((COPY_ENDINGS.sub("", entry.name), facts), []).append(entry.name)
    has_copies = any(len(names) > 1 for names in rows.values())
    columns = (*_COLUMNS, "copies") if has_copies else _COLUMNS
    lines = []
    for (_, facts), (name, *copies) in rows.items():
        endings = ", ".join(f"`{COPY_ENDINGS.search(copy)[0]}`" for copy in copies)
        lines.append((f"`{name}`", *facts, *([endings] if has_copies else [])))
    return markdown_table(columns, lines, ("pixels", "classes", "top-1"))
