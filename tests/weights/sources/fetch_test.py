import hashlib
import json
import pathlib
import re
import subprocess
import sys
import threading
import time

import filelock
import pytest

import keras_vit
from keras_vit.weights.sources import fetch as module
from keras_vit.weights.sources.fetch import cache_folder, fetch, locate
from tests.weights.sources import file_server

CONTENTS = b"PK" + bytes(70_001)
SHA256 = hashlib.sha256(CONTENTS).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "cache"


@pytest.fixture
def downloads(monkeypatch):
    """The (address, path) of each download. Nothing is downloaded."""
    made = []
    monkeypatch.setattr(module, "download", lambda address, path, sha256: made.append((address, path)))
    return made


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_HOME", "/keras")
    monkeypatch.setenv("KERAS_VIT_CACHE", "~/weights")
    assert cache_folder() == tmp_path / "weights"
    monkeypatch.setenv("KERAS_VIT_CACHE", "")
    assert cache_folder() == pathlib.Path("/keras/models/keras_vit")
    monkeypatch.delenv("KERAS_VIT_CACHE")
    monkeypatch.delenv("KERAS_HOME")
    assert cache_folder() == tmp_path / ".keras" / "models" / "keras_vit"


def _name_with(query):
    return f"vit-{hashlib.sha256(query.encode()).hexdigest()[:16]}.npz"


@pytest.mark.parametrize(
    ("url", "address", "place"),
    [
        ("https://a.org/x/vit.npz", "https://a.org/x/vit.npz", "a.org/x/vit.npz"),
        ("https://a.org:81/x/vit.npz", "https://a.org:81/x/vit.npz", "a.org+81/x/vit.npz"),
        ("http://localhost/x/vit.npz", "http://localhost/x/vit.npz", "localhost+80/x/vit.npz"),
        ("http://[::1]:82/vit.npz", "http://[::1]:82/vit.npz", "%3A%3A1+82/vit.npz"),
        (
            "gs://bucket/x y/21k+1k%.npz",
            "https://storage.googleapis.com/bucket/x%20y/21k+1k%25.npz",
            "storage.googleapis.com/bucket/x%20y/21k+1k%25.npz",
        ),
        ("https://a.org/x%2F..%2Fvit.npz", "https://a.org/x%2F..%2Fvit.npz", "a.org/x%2F..%2Fvit.npz"),
        ("https://a.org/x\\..\\vit\0.npz", "https://a.org/x%5C..%5Cvit%00.npz", "a.org/x%5C..%5Cvit%00.npz"),
        ("https://a.org/vit.npz?a=1/2", "https://a.org/vit.npz?a=1/2", f"a.org/{_name_with('a=1/2')}"),
        ("https://a.org/vit.npz?a=3", "https://a.org/vit.npz?a=3", f"a.org/{_name_with('a=3')}"),
    ],
)
def test_places_in_the_cache(downloads, cache, url, address, place):
    assert fetch(url) == cache / place
    assert downloads == [(address, cache / place)]


@pytest.mark.parametrize(
    "url",
    [
        *("http://a.org/vit.npz", "http://localhost.a.org/vit.npz", "file:///etc/hostname", "ftp://a.org/vit.npz"),
        *("https:///vit.npz", "https://ann:secret@a.org/vit.npz", "s3://bucket/vit.npz", "vit.npz", ""),
        *(
            "https://[::1/vit.npz",
            "https://a.org:99999/vit.npz",
            "https://a..org/vit.npz",
            "https://\u2100.org/vit.npz",
        ),
        f"https://a.org/{'x/' * 3000}vit.npz",
    ],
)
def test_refuses_other_addresses(downloads, url):
    with pytest.raises(ValueError, match=r"Weights cannot be downloaded from .*Accepted: .*gs://bucket/path"):
        fetch(url)
    assert not downloads


@pytest.mark.parametrize(
    "path", ["", "/", "/x/", "/x//y", "/../x", "/x/..", "/%2e%2E/x", "/./x", "?x=1", f"/{'x' * 201}"]
)
def test_refuses_paths_that_lead_elsewhere(downloads, path):
    with pytest.raises(ValueError, match="does not contain a valid path"):
        fetch(f"https://a.org{path}")
    assert not downloads


def test_uses_the_cache_without_network(server, cache):
    server.answers["/x/vit.npz"] = [file_server.file(CONTENTS)]
    url = server.address("/x/vit.npz")
    path = fetch(url, SHA256)
    assert path == cache / f"localhost+{server.server_port}" / "x" / "vit.npz"
    for sha256 in (None, SHA256, SHA256.upper(), SHA256[:8]):
        assert fetch(url, sha256) == path
    assert path.read_bytes() == CONTENTS
    assert len(server.requests) == 1


def test_checks_what_is_in_the_cache(server):
    server.answers["/vit.npz"] = [file_server.file(CONTENTS)]
    url = server.address("/vit.npz")
    path = fetch(url)
    path.write_bytes(CONTENTS[:-1])
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*expected {SHA256}. Delete it") as caught:
        fetch(url, SHA256)
    assert hashlib.sha256(CONTENTS[:-1]).hexdigest() in str(caught.value)
    path.unlink()
    assert fetch(url, SHA256).read_bytes() == CONTENTS


def test_keeps_what_is_known_of_a_file_and_checks_it_later(server):
    """A damaged or replaced file is detected by the checksum of its download, without a published checksum."""
    url = server.address("/vit.npz?X-Amz-Signature=secret")
    server.answers = {"/vit.npz?X-Amz-Signature=secret": [file_server.file(CONTENTS)]}
    path = fetch(url)
    origin = path.with_name(f"{path.name}.origin")
    known = json.loads(origin.read_text())
    assert known == {"sha256": SHA256, "etag": '"one"', "last_modified": None, "md5": None}
    assert fetch(url) == path
    path.write_bytes(CONTENTS[:-1] + b"?")
    with pytest.raises(ValueError, match=rf"has changed since .*/vit\.npz: .*and was {SHA256}\. Delete it") as caught:
        fetch(url)
    assert "secret" not in str(caught.value)
    origin.unlink()
    assert fetch(url) == path  # Without the record, the file is not checked.
    for damaged in ("", "{}", '["sha256"]'):
        origin.write_text(damaged)
        with pytest.raises(ValueError, match=r"\.origin is damaged\. Delete it and vit-"):
            fetch(url)
    path.unlink()
    assert fetch(url).read_bytes() == CONTENTS


@pytest.mark.parametrize("ending", ["lock", "Partial", "partial.validator", "origin"])
@pytest.mark.parametrize("rest", ["", "/vit.npz"])
def test_files_are_not_taken_for_what_stands_beside_others(server, ending, rest):
    files = {f"/vit.npz.{ending}{rest}": b"PK other", "/vit.npz": CONTENTS}
    for path, contents in files.items():
        server.answers[path] = [file_server.file(contents)]
        assert fetch(server.address(path)).read_bytes() == contents
    for path, contents in files.items():
        assert fetch(server.address(path)).read_bytes() == contents
    assert len(server.requests) == 2


def test_says_that_the_cache_cannot_be_written(server, cache):
    cache.write_text("A file where the folder should be.")
    with pytest.raises(OSError, match=r"cannot be written: .*set the environment variable KERAS_VIT_CACHE") as caught:
        fetch(server.address("/vit.npz"))
    assert str(cache) in str(caught.value)
    assert not server.requests


@pytest.mark.combination("a folder where a download is cached", "refused before the download")
def test_says_that_a_folder_is_in_the_way(server, cache):
    server.answers["/x/vit.npz"] = [file_server.file(CONTENTS)]
    folder = fetch(server.address("/x/vit.npz")).parent
    with pytest.raises(
        OSError, match=rf"{re.escape(str(folder))} is a folder, but the cache needs this path for .*/x\. Remove or"
    ):
        fetch(server.address("/x"))
    assert len(server.requests) == 1


# Imports the module without its package, which would import Keras. This import takes seconds.
PROGRAM = """
import pathlib, sys, types
for name in ("keras_vit", "keras_vit.weights"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [str(pathlib.Path(sys.argv[1], *name.split(".")))]
"""
_DOWNLOAD = f"""{PROGRAM}
from keras_vit.weights.sources.fetch import fetch
print(fetch(sys.argv[2]), flush=True)
"""


def _until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_one_process_downloads_and_the_others_wait(server, cache, tmp_path):
    released = threading.Event()

    def answer(handler):
        released.wait(timeout=60)
        file_server.file(CONTENTS)(handler)

    server.answers["/vit.npz"] = [answer]
    outputs = [tmp_path / f"{i}.txt" for i in range(3)]
    arguments = [sys.executable, "-uc", _DOWNLOAD, pathlib.Path(keras_vit.__file__).parent.parent]
    processes = []
    for output in outputs:
        with output.open("w") as file:
            processes.append(subprocess.Popen([*arguments, server.address("/vit.npz")], stdout=file))
    path = cache / f"localhost+{server.server_port}" / "vit.npz"
    try:
        _until(lambda: sum(output.read_text().startswith("Waiting for") for output in outputs) == 2)
        assert not path.exists()
    finally:
        released.set()
        codes = [process.wait(timeout=30) for process in processes]
    assert codes == [0, 0, 0]
    assert {output.read_text().splitlines()[-1] for output in outputs} == {str(path)}
    assert path.read_bytes() == CONTENTS
    assert len(server.requests) == 1


def test_does_not_wait_forever(server, cache, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.1)
    folder = cache / f"localhost+{server.server_port}"
    folder.mkdir(parents=True)
    with (
        filelock.FileLock(folder / "vit.npz.lock"),
        pytest.raises(TimeoutError, match=r"downloading .*vit.npz for 0.1 seconds. Stop it"),
    ):
        fetch(server.address("/vit.npz"))
    assert not server.requests


def test_locate(server, cache, tmp_path, monkeypatch):
    server.answers["/vit.npz"] = [file_server.file(CONTENTS)]
    assert locate(server.address("/vit.npz")).read_bytes() == CONTENTS
    monkeypatch.setattr(module, "fetch_from_hub", lambda source, settings_files: f"hub: {source}")
    assert locate("hf://owner/name") == "hub: hf://owner/name"
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "vit.npz").touch()
    for source in (tmp_path, str(tmp_path / "vit.npz"), "~/vit.npz"):
        assert locate(source) == pathlib.Path(source).expanduser()


@pytest.mark.parametrize("source", ["vit.npz", pathlib.Path("folder/vit.npz"), "B/16"])
def test_says_that_there_is_no_such_path(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"no file or folder '{source}'.*Accepted: .*hf://") as caught:
        locate(source)
    assert str(tmp_path) in str(caught.value)
