"""Names of licences, and the warning about licences that restrict the use of weights."""

import warnings

import pytest

import keras_vit
from keras_vit.licences import checked_licence, hub_identifier, licence_of_card, restriction, warn_if_restricted
from keras_vit.weights.catalogue import ENTRIES


def test_restrictions_of_published_weights():
    restricted = {entry.licence for entry in ENTRIES.values() if restriction(entry.licence)}
    free = {entry.licence for entry in ENTRIES.values()} - restricted
    assert restricted == {"CC-BY-NC-4.0", "apple-amlr", "dinov3-license", "fair-noncommercial-research-license"}
    assert free == {"Apache-2.0", "MIT", "apple-ascl"}
    assert {"mae", "mocov3", "ijepa"} <= {entry.family for entry in ENTRIES.values() if "-NC-" in entry.licence}
    own_names = {licence for licence in restricted | free if not hub_identifier(licence)}
    assert own_names == {"apple-amlr", "apple-ascl", "dinov3-license", "fair-noncommercial-research-license"}
    assert all(checked_licence(licence) == licence for licence in own_names)  # As in the model cards of the Hub.


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        (None, ""),
        ("Apache-2.0", ""),
        ("MIT", ""),
        ("CC-BY-4.0", ""),
        ("cc-by-nc-nd-4.0", "Commercial use is not permitted. Changed weights must not be published."),
        ("fair-noncommercial-research-license", "Commercial use is not permitted. Only research is permitted."),
        ("flux-1-dev-non-commercial-license", "Commercial use is not permitted."),
        ("Non_Commercial", "Commercial use is not permitted."),
        ("apple-amlr", "Only research is permitted."),
        (
            "dinov3-license",
            "The weights, also changed ones, may be passed on only under this licence. Some uses, such as military "
            "ones, are not permitted.",
        ),
        ("apple-ascl", ""),
        ("commercial-nonprofit-candid", ""),
    ],
)
def test_restriction(licence, expected):
    assert restriction(licence) == expected


@pytest.mark.parametrize(
    ("name", "expected", "identifier"),
    [
        ("apache-2.0", "Apache-2.0", "apache-2.0"),
        ("CC-BY-NC-4.0", "CC-BY-NC-4.0", "cc-by-nc-4.0"),
        ("bsd-3-clause", "BSD-3-Clause", "bsd-3-clause"),
        ("mit", "MIT", "mit"),
        ("dinov3-license", "dinov3-license", None),
        ("unknown", None, None),
        ("other", None, None),
        ("Other", None, None),
        ("two\nlines", None, None),
        ("licen\u00e7a", None, None),
        (["mit"], None, None),
        ("x" * 101, None, None),
    ],
)
def test_names(name, expected, identifier):
    assert checked_licence(name) == expected
    assert (expected and hub_identifier(expected)) == identifier


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nlicense: cc-by-nc-4.0\ntags:\n- a\n---\n# Title\n", "CC-BY-NC-4.0"),
        ("---\nlicense: 'mit'  # a comment\n---\n", "MIT"),
        ("---\nlicense: other\nlicense_name: dinov3-license\n---\n", "dinov3-license"),
        ("---\nlicense: other\n---\n", None),
        ("---\ntags:\n- a\n---\nlicense: mit\n", None),
        ("license: mit\n", None),
    ],
)
def test_licence_of_a_card(text, expected, tmp_path):
    assert licence_of_card(tmp_path / "README.md") is None
    (tmp_path / "README.md").write_text(text)
    assert licence_of_card(tmp_path / "README.md") == expected


def test_warns_once_for_each_source():
    warn_if_restricted.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for source in ("first", "second", "first"):
            warn_if_restricted("CC-BY-NC-4.0", source)
        warn_if_restricted("Apache-2.0", "third")
        warn_if_restricted(None, "fourth")
    messages = [str(warning.message) for warning in caught]
    assert [warning.category for warning in caught] == [keras_vit.LicenceWarning] * 2
    assert {warning.filename for warning in caught} == {__file__}
    assert "'first' have the licence CC-BY-NC-4.0. Commercial use is not permitted." in messages[0]
