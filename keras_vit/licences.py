"""Licences of published weights, and a warning about licences that restrict how a model may be used."""

import functools
import inspect
import re
import traceback
import warnings


class LicenceWarning(UserWarning):
    """The licence of loaded weights restricts the use of these weights, and of models that are derived from them."""


_RESTRICTIONS = {
    "NC|NON[-_ ]?COMMERCIAL": "Commercial use is not permitted.",
    "RESEARCH|AMLR": "Only research is permitted.",  # apple-amlr: Apple's Model License for Research.
    "ND": "Changed weights must not be published.",
    # Sections 1.b.i and 1.b.v of the DINOv3 License.
    "DINOV3": "The weights, also changed ones, may be passed on only under this licence. Some uses, such as military "
    "ones, are not permitted.",
}
"""{pattern of whole words in the name of a licence: what the licence restricts}"""
_HUB_IDENTIFIERS = re.compile(r"apache-2\.0|mit|bsd-[23]-clause|cc0-1\.0|cc-by(-nc)?(-nd|-sa)?-[234]\.0")
_NAME = re.compile(r"[\w.+()][\w.+() -]{0,99}", re.ASCII)  # `.npz` files store ASCII.
_NO_NAMES = ("unknown", "other")  # The Hub names a licence `other` if its name is in the field `license_name`.
_MAX_HEADER = 65_536


def restriction(licence):
    """Sentences on what a licence restricts, or an empty text for `None` and for a licence without restrictions."""
    name = (licence or "").upper()
    return " ".join(text for words, text in _RESTRICTIONS.items() if re.search(f"(?<![A-Z])({words})(?![A-Z])", name))


@functools.cache
def warn_if_restricted(licence, source):
    """Warns if the licence of weights restricts their use. A process warns once for each licence and source."""
    if text := restriction(licence):
        warnings.warn(
            f"The weights {source!r} have the licence {licence}. {text} This also applies to models that are "
            f"fine-tuned from these weights.",
            LicenceWarning,
            stacklevel=_caller_level(),
        )


def _caller_level():
    """The `stacklevel` with which a warning shows a line of the user's code, not a line of this package or of Keras."""
    levels = enumerate(traceback.walk_stack(inspect.currentframe()))  # Level 1 is the function that warns.
    packages = ("keras_vit", "keras")
    return next((level for level, (frame, _) in levels if _package(frame) not in packages), 1)


def _package(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0]


def checked_licence(name):
    """The licence that a file names, or `None` if it names none. SPDX identifiers get their usual capitals."""
    # Files are not trusted. The name is printed in messages and model cards.
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.lower() in _NO_NAMES:
        return None
    if not _HUB_IDENTIFIERS.fullmatch(name.lower()):
        return name
    return name.upper().replace("APACHE", "Apache").replace("CLAUSE", "Clause")


def hub_identifier(licence):
    """The identifier of a licence on the Hugging Face Hub, or `None` if the Hub has none."""
    return licence.lower() if _HUB_IDENTIFIERS.fullmatch(licence.lower()) else None


def licence_of_card(path):
    """The licence in the front matter of a model card, or `None` if there is no such file or licence."""
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        front_matter = re.match(r"---\n(.*?)\n---\n", file.read(_MAX_HEADER), re.DOTALL)
    lines = re.findall(r"^(license|license_name): *[\"']?([^\"'\n#]+)", front_matter[1] if front_matter else "", re.M)
    names = {key: name.strip() for key, name in lines}
    return checked_licence(names.get("license_name") if names.get("license") == "other" else names.get("license"))
