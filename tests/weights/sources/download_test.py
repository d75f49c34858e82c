import base64
import functools
import hashlib
import json
import resource
import shutil
import socket
import time
import traceback
import types
import unittest.mock
import urllib.error
import urllib.request

import numpy as np
import pytest

from keras_vit.weights.sources import download as module
from keras_vit.weights.sources.download import download
from tests.weights.sources import file_server
from tests.weights.sources.file_server import chunked, file, status, without_ranges

CONTENTS = b"PK" + np.random.default_rng(0).bytes(70_001)
OTHER = b"PK" + np.random.default_rng(1).bytes(60_007)
SLEEP = time.sleep
SHA256 = hashlib.sha256(CONTENTS).hexdigest()


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The length of each pause in seconds. The tests do not wait."""
    made = []
    monkeypatch.setattr(module, "PAUSES", (1, 2, 4))
    monkeypatch.setattr(time, "sleep", made.append)
    monkeypatch.setenv("no_proxy", "*")
    return made


def _download(server, folder, *answers, sha256=None, path="/some/vit.npz"):
    """Downloads from a path with these answers and returns the content of the file."""
    folder.mkdir(exist_ok=True)
    server.answers[path] = list(answers)
    download(server.address(path), folder / "vit.npz", sha256)
    assert [entry.name for entry in folder.iterdir()] == ["vit.npz"]
    return (folder / "vit.npz").read_bytes()


def _fails(server, folder, *answers, error, match, sha256=None):
    """Asserts that a download fails and returns the names of the files that remain."""
    with pytest.raises(error, match=match) as caught:
        _download(server, folder, *answers, sha256=sha256)
    assert server.address("/") in str(caught.value) or str(folder) in str(caught.value)
    names = {entry.name for entry in folder.iterdir()}
    assert "vit.npz" not in names
    return names


@pytest.mark.parametrize("sha256", [None, SHA256, SHA256.upper(), SHA256[:8]])
@pytest.mark.parametrize("answer", [file(CONTENTS), file(CONTENTS, validator=None), chunked(CONTENTS)])
def test_downloads(server, tmp_path, answer, sha256):
    assert _download(server, tmp_path, answer, sha256=sha256) == CONTENTS
    assert server.ranges() == [None]


@pytest.mark.parametrize("validator", [("ETag", '"one"'), ("Last-Modified", "Thu, 22 Oct 2020 10:00:00 GMT")])
def test_goes_on_where_a_connection_ended(server, tmp_path, monkeypatch, validator):
    hashed, file_digest = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: hashed.append(given) or file_digest(*given))
    truncated = file(CONTENTS, validator=validator, limit=30_011)
    assert _download(server, tmp_path, truncated, truncated, file(CONTENTS, validator=validator)) == CONTENTS
    assert server.ranges() == [None, "bytes=30011-", "bytes=60022-"]
    assert [headers.get("If-Range") for _, headers in server.requests] == [None, validator[1], validator[1]]
    assert len(hashed) == 1  # The finished file: new attempts do not read the partial file again.


def test_goes_on_in_a_later_call(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAUSES", ())
    left = _fails(server, tmp_path, file(CONTENTS, limit=30_011), error=ConnectionError, match="30011 of 70003 bytes")
    assert left == {"vit.npz.partial", "vit.npz.partial.validator"}
    assert _download(server, tmp_path, file(CONTENTS)) == CONTENTS
    assert server.ranges() == [None, "bytes=30011-"]


def _leave_part(folder, contents, validator='"one"'):
    """Writes what an interrupted download leaves."""
    record = {"validator": validator, "size": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}
    (folder / "vit.npz.partial").write_bytes(contents)
    (folder / "vit.npz.partial.validator").write_text(json.dumps(record))


@pytest.mark.combination("partial download, changed on this machine", "downloaded again from the start")
def test_starts_again_if_the_part_has_changed(server, tmp_path):
    for changed in (bytes(30_011), CONTENTS[:30_010], b""):
        _leave_part(tmp_path, CONTENTS[:30_011])
        (tmp_path / "vit.npz.partial").write_bytes(changed)
        assert _download(server, tmp_path, file(CONTENTS)) == CONTENTS
    for damaged in ('"one"', '{"size": "1"}', None):
        _leave_part(tmp_path, bytes(30_011))
        record = tmp_path / "vit.npz.partial.validator"
        record.unlink() if damaged is None else record.write_text(damaged)
        assert _download(server, tmp_path, file(CONTENTS)) == CONTENTS
    assert server.ranges() == [None] * 6


@pytest.mark.combination("partial download, the process was killed", "resumed where it was last recorded")
def test_goes_on_where_a_part_was_last_recorded(server, tmp_path, monkeypatch):
    _leave_part(tmp_path, CONTENTS[:30_011])
    (tmp_path / "vit.npz.partial").write_bytes(CONTENTS[:30_011] + b"after the record")
    records = []
    record = tmp_path / "vit.npz.partial.validator"
    monkeypatch.setattr(
        module, "_progress", lambda *_: lambda _: records.append(json.loads(record.read_text())["size"])
    )
    monkeypatch.setattr(module, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(module, "RECORD_BYTES", 10_000)
    assert _download(server, tmp_path, file(CONTENTS)) == CONTENTS
    assert server.ranges() == ["bytes=30011-"]
    assert len(set(records)) > 1


def test_starts_again_if_the_file_has_changed(server, tmp_path):
    changed = file(OTHER, validator=("ETag", '"two"'))
    assert _download(server, tmp_path, file(CONTENTS, limit=30_011), changed) == OTHER
    assert server.ranges() == [None, "bytes=30011-"]


@pytest.mark.parametrize("validator", [None, ("ETag", 'W/"weak"'), ("ETag", '"\xe9"')])  # The last cannot be sent back.
def test_joins_unmarked_parts_only_if_a_checksum_tells(server, tmp_path, validator):
    truncated, whole = (file(CONTENTS, validator=validator, limit=limit) for limit in (30_011, None))
    assert _download(server, tmp_path, truncated, whole) == CONTENTS
    assert _download(server, tmp_path, truncated, whole, sha256=SHA256) == CONTENTS
    assert server.ranges() == [None, None, None, "bytes=30011-"]


def test_starts_again_if_ranges_are_ignored(server, tmp_path):
    assert _download(server, tmp_path, without_ranges(CONTENTS, 30_011), without_ranges(CONTENTS)) == CONTENTS
    assert server.ranges() == [None, "bytes=30011-"]


@pytest.mark.parametrize(
    "extent", ["bytes 30010-70002/70003", "bytes 0-70002/70003", "", "bytes */70003", "bytes 30011-70002/" + "9" * 5000]
)
def test_refuses_another_part_than_it_asked_for(server, tmp_path, extent):
    shifted = file(CONTENTS, Content_Range=extent)
    assert _download(server, tmp_path, file(CONTENTS, limit=30_011), shifted, file(CONTENTS)) == CONTENTS
    assert server.ranges() == [None, "bytes=30011-", None]


def test_starts_again_if_it_has_more_than_the_server(server, tmp_path):
    _leave_part(tmp_path, CONTENTS + b"more")
    assert _download(server, tmp_path, file(CONTENTS)) == CONTENTS
    assert server.ranges() == ["bytes=70007-", None]


@pytest.mark.parametrize("answer", [without_ranges(CONTENTS, 30_011), chunked(CONTENTS, complete=False)])
def test_gives_up_on_a_connection_that_always_breaks(server, tmp_path, answer):
    _fails(server, tmp_path, answer, error=ConnectionError, match="connection (ended|broke)")
    assert len(server.requests) == 4


def test_tries_again_after_a_stall(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STALL_SECONDS", 0.2)
    stalled = file(CONTENTS, limit=30_011, before_end=file_server.until_left)
    assert _download(server, tmp_path, file_server.until_left, stalled, file(CONTENTS)) == CONTENTS
    assert server.ranges() == [None, None, "bytes=30011-"]


def test_waits_longer_each_time_and_as_long_as_it_is_told(server, tmp_path, pauses):
    busy = [status(503), status(429, Retry_After="3"), status(502, Retry_After="Thu, 22 Oct 2020 10:00:00 GMT")]
    assert _download(server, tmp_path, *busy, file(CONTENTS)) == CONTENTS
    assert pauses == [1, 3, 4]


@pytest.mark.parametrize(("part", "seconds"), [("file", 0.01), ("headers", 0.01), ("status line", 0.1)])
def test_gives_up_on_a_server_that_sends_byte_by_byte(server, tmp_path, monkeypatch, part, seconds):
    """Every single byte arrives in time, but the whole file would take too long."""
    for name, value in {"STALL_SECONDS": 0.5, "SLOWEST_RATE": 10_000, "PAUSES": ()}.items():
        monkeypatch.setattr(module, name, value)
    slowly = file_server.slowly(CONTENTS, functools.partial(SLEEP, seconds), headers=part != "file")
    match = "less than 10000 bytes per second" if part == "file" else "its headers took more than 0.5 seconds"
    begun = time.monotonic()
    _fails(server, tmp_path, slowly, error=ConnectionError, match=match)
    assert time.monotonic() - begun < 5


def test_ends_after_a_time_and_goes_on_later(server, tmp_path, monkeypatch):
    with monkeypatch.context() as patches:
        patches.setattr(module, "LONGEST_SECONDS", 0)
        patches.setattr(module, "CHUNK_BYTES", 30_011)
        left = _fails(server, tmp_path, file(CONTENTS), error=ConnectionError, match="took more than 0 seconds")
    assert left == {"vit.npz.partial", "vit.npz.partial.validator"}
    assert _download(server, tmp_path, file(CONTENTS)) == CONTENTS
    assert 0 < int(server.ranges()[1].strip("bytes=-")) < len(CONTENTS)


@pytest.mark.parametrize("answer", [file(CONTENTS), chunked(CONTENTS)])
def test_refuses_a_file_of_too_many_bytes(server, tmp_path, monkeypatch, answer):
    monkeypatch.setattr(module, "MOST_BYTES", 70_002)
    assert not _fails(server, tmp_path, answer, error=ValueError, match="sends more than 70,002 bytes")


@pytest.mark.parametrize(
    ("code", "advice"),
    [(401, "only to users with permission"), (403, "only to users with permission"), (404, "Check"), (410, "Check")],
)
def test_says_what_the_server_refused(server, tmp_path, code, advice):
    message = rf"/some/vit.npz: the server answered {code} .*{advice}"
    assert not _fails(server, tmp_path, status(code), error=OSError, match=message)
    assert len(server.requests) == 1


def test_says_how_to_get_a_gated_file_of_the_hub(tmp_path, monkeypatch):
    address = "https://huggingface.co/facebook/vit/resolve/main/vit.npz"
    refusal = urllib.error.HTTPError(address, 403, "Forbidden", {}, None)
    monkeypatch.setattr(urllib.request.OpenerDirector, "open", unittest.mock.Mock(side_effect=refusal))
    with pytest.raises(OSError, match=r"answered 403 .*co/facebook/vit in .*HF_TOKEN.* pass 'hf://facebook/vit'"):
        download(address, tmp_path / "vit.npz")


@pytest.mark.parametrize(
    ("headers", "requests"), [({}, 4), ({"Retry_After": "3600"}, 1), ({"Retry_After": "9" * 5000}, 1)]
)
def test_gives_up_on_a_busy_server(server, tmp_path, headers, requests):
    assert not _fails(server, tmp_path, status(503, **headers), error=OSError, match="answered 503")
    assert len(server.requests) == requests


def _refused_port(monkeypatch):
    with socket.create_server(("localhost", 0)) as unused:
        return f"http://localhost:{unused.getsockname()[1]}/vit.npz"


def _unknown_name(monkeypatch):
    def fail(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    return "https://weights.example/vit.npz"


@pytest.mark.parametrize("make_unreachable", [_refused_port, _unknown_name])
def test_says_at_once_where_a_file_can_be_put(tmp_path, monkeypatch, pauses, make_unreachable):
    address = make_unreachable(monkeypatch)
    with pytest.raises(ConnectionError, match="could not reach the") as caught:
        download(address, tmp_path / "vit.npz")
    assert address in str(caught.value)
    assert f"put it at {tmp_path / 'vit.npz'}" in str(caught.value)
    assert not pauses
    assert not list(tmp_path.iterdir())


def test_waits_for_a_server_that_it_lost(server, tmp_path, monkeypatch):
    pauses = []

    def lose(seconds):
        pauses.append(seconds)
        _unknown_name(monkeypatch)

    monkeypatch.setattr(time, "sleep", lose)
    _fails(server, tmp_path, file(CONTENTS, limit=30_011), error=ConnectionError, match="could not reach the")
    assert pauses == [1, 2, 4]


@pytest.mark.parametrize("answers", [[file(OTHER)], [file(OTHER, limit=30_011), file(CONTENTS)]])
def test_deletes_what_has_another_checksum(server, tmp_path, answers):
    assert not _fails(server, tmp_path, *answers, sha256=SHA256, error=ValueError, match=f"expected {SHA256}")
    received = hashlib.sha256(OTHER if len(answers) == 1 else OTHER[:30_011] + CONTENTS[30_011:]).hexdigest()
    _fails(server, tmp_path, *answers, sha256=SHA256, error=ValueError, match=f"SHA-256 is {received}")


def _announced(contents):
    """The header with the checksums that Google's storage sends for a file."""
    return f"crc32c=n03x6A==,md5={base64.b64encode(hashlib.md5(contents).digest()).decode()}"


def test_checks_the_sum_that_the_server_announces(server, tmp_path):
    announced = _announced(CONTENTS)
    assert _download(server, tmp_path / "good", file(CONTENTS, x_goog_hash=announced)) == CONTENTS
    match = f"its MD5 is {hashlib.md5(OTHER).hexdigest()}, expected {hashlib.md5(CONTENTS).hexdigest()}"
    assert not _fails(server, tmp_path / "bad", file(OTHER, x_goog_hash=announced), error=ValueError, match=match)
    unpacked = file(OTHER, x_goog_hash=announced, x_goog_stored_content_encoding="gzip")  # The sum before unpacking.
    assert _download(server, tmp_path / "unpacked", unpacked) == OTHER


def test_says_what_is_known_of_a_file(server, tmp_path):
    server.answers["/vit.npz"] = [file(CONTENTS, x_goog_hash=_announced(CONTENTS), Last_Modified="Thu, 22 Oct 2020")]
    assert download(server.address("/vit.npz"), tmp_path / "vit.npz") == {
        "etag": '"one"',
        "last_modified": "Thu, 22 Oct 2020",
        "md5": hashlib.md5(CONTENTS).hexdigest(),
        "sha256": SHA256,
    }


@pytest.mark.parametrize(
    "answer",
    [
        *(file(CONTENTS), file(b""), status(403), status(503), file(CONTENTS, limit=30_011), file_server.until_left),
        *(status(302, Location="http://elsewhere.org/?secret"), file(CONTENTS, Content_Type="text/html")),
    ],
)
def test_a_signature_is_shown_nowhere(server, tmp_path, monkeypatch, capsys, answer):
    for name, value in {"STALL_SECONDS": 0.1, "SMALLEST_SHOWN_BYTES": 1, "MOST_BYTES": 70_002}.items():
        monkeypatch.setattr(module, name, value)
    path, fragment = "/some/vit.npz?X-Amz-Signature=secret", "#secret"
    server.answers[path] = [answer]
    with pytest.raises((OSError, ValueError)) as caught:
        download(server.address(path) + fragment, tmp_path / "vit.npz", sha256="0")
    assert "secret" not in "".join(traceback.format_exception(caught.value)) + capsys.readouterr().out
    assert server.address("/some/vit.npz") in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        file(CONTENTS, Content_Type="text/html; charset=utf-8"),
        file(b"\n <!DOCTYPE html><title>Sign in</title>"),
        file(b"<?xml version='1.0'?><Error/>"),
        file(b""),
    ],
)
def test_refuses_a_web_page(server, tmp_path, answer):
    assert not _fails(server, tmp_path, answer, error=ValueError, match="sent a web page or an empty file")


def test_a_page_instead_of_the_rest_leaves_the_part(server, tmp_path):
    page = file(b"<html>Pay for the network", Content_Type="text/html", validator=None)
    _fails(server, tmp_path, file(CONTENTS, limit=30_011), page, error=ValueError, match="web page")
    assert _download(server, tmp_path, file(CONTENTS)) == CONTENTS
    assert server.ranges()[-1] == "bytes=30011-"


def test_accepts_safetensors_that_start_like_a_page(server, tmp_path):
    contents = (256 + ord("<")).to_bytes(8, "little") + b'{"kernel":'.ljust(316) + CONTENTS
    assert contents.startswith(b"<")
    assert _download(server, tmp_path, file(contents)) == contents


def test_follows_redirects_with_the_range(server, tmp_path):
    server.answers["/moved.npz"] = [file(CONTENTS, limit=30_011), file(CONTENTS)]
    assert _download(server, tmp_path, status(302, Location=server.address("/moved.npz"))) == CONTENTS
    assert server.ranges() == [None, None, "bytes=30011-", "bytes=30011-"]


@pytest.mark.parametrize(
    "target",
    [
        *("file:///etc/hostname", "ftp://localhost/vit.npz", "http://weights.example/vit.npz", "/some/vit.npz"),
        "http://[::1/vit.npz",
    ],
)
def test_refuses_redirects(server, tmp_path, monkeypatch, target):
    monkeypatch.setattr(socket, "getaddrinfo", _only_localhost(socket.getaddrinfo))
    redirect = status(302, Location=target)
    assert not _fails(server, tmp_path, redirect, error=OSError, match="(?i)the server answered 302.*redirect")


def _only_localhost(getaddrinfo):
    def checked(host, *arguments, **keywords):
        assert host == "localhost"
        return getaddrinfo(host, *arguments, **keywords)

    return checked


def test_says_when_there_is_too_little_room(server, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=70_002))
    error = {"error": OSError, "match": "70002 bytes of free space, and 70003 are needed.*KERAS_VIT_CACHE"}
    assert _fails(server, tmp_path, file(CONTENTS), **error) <= {"vit.npz.partial.validator"}


def test_says_when_a_disk_is_full(server, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_021, limits[1]))
    try:
        _fails(server, tmp_path, file(CONTENTS), error=OSError, match="cannot be written: .*KERAS_VIT_CACHE")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(server.requests) == 1
    assert _download(server, tmp_path, file(CONTENTS)) == CONTENTS


def test_shows_large_downloads_only(server, tmp_path, capsys):
    _download(server, tmp_path, file(b"PK" + bytes(999_997)))
    assert capsys.readouterr().out == ""
    _download(server, tmp_path, file(b"PK" + bytes(1_000_001)))
    shown = capsys.readouterr().out
    assert f"Downloading {server.address('/some/vit.npz')}" in shown
    assert shown.count("1000003/1000003") == 1
