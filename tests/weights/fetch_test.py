import collections
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import traceback
import unittest.mock

import filelock
import pytest

import keras_vit
from keras_vit.licences import licence_of_card
from keras_vit.weights import fetch as module
from keras_vit.weights.fetch import cache_folder, fetch, fetch_from_hub, locate
from tests.weights import file_server

CONTENTS = b"PK" + bytes(70_001)
SHA256 = hashlib.sha256(CONTENTS).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "cache"


@pytest.fixture
def server():
    with file_server.running() as running:
        yield running


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
    ],
)
def test_refuses_other_addresses(downloads, url):
    with pytest.raises(ValueError, match=r"Weights cannot be downloaded from .*Accepted: .*gs://bucket/path"):
        fetch(url)
    assert not downloads


@pytest.mark.parametrize("path", ["", "/", "/x/", "/x//y", "/../x", "/x/..", "/%2e%2E/x", "/./x", "?x=1"])
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


# Imports the module without what its package imports: Keras takes seconds.
_PROGRAM = """
import pathlib, sys, types
for name in ("keras_vit", "keras_vit.weights"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [str(pathlib.Path(sys.argv[1], *name.split(".")))]
"""
_DOWNLOAD = f"""{_PROGRAM}
from keras_vit.weights.fetch import fetch
print(fetch(sys.argv[2]), flush=True)
"""


def _until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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
    monkeypatch.setattr(module, "fetch_from_hub", lambda source: f"hub: {source}")
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


class _Hub:
    """A fake of huggingface_hub's functions, with repositories {name: {file: contents}} and a cache folder."""

    def __init__(self, folder):
        self.folder = folder
        self.repositories = {}
        self.is_reachable = True

    def list_repo_files(self, repo_id, *, revision=None):
        if not self.is_reachable:
            raise RuntimeError("ConnectError of some HTTP library")
        if repo_id not in self.repositories:
            raise OSError("404 Client Error")
        return list(self.repositories[repo_id])

    def hf_hub_download(self, repo_id, filename, *, revision=None):
        from huggingface_hub.errors import LocalEntryNotFoundError

        place = self.folder / repo_id.replace("/", "--") / (revision or "main") / filename
        if self.is_reachable and filename in self.repositories.get(repo_id, {}):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(self.repositories[repo_id][filename])
        if not place.exists():
            raise LocalEntryNotFoundError(f"There is no {filename}.")
        return str(place)

    def snapshot_download(self, repo_id, *, revision=None, allow_patterns, local_files_only=False):
        from huggingface_hub.errors import LocalEntryNotFoundError
        from huggingface_hub.utils import filter_repo_objects

        place = self.folder / repo_id.replace("/", "--") / (revision or "main")
        if self.is_reachable and not local_files_only:
            for name in filter_repo_objects(self.repositories[repo_id], allow_patterns=allow_patterns):
                self.hf_hub_download(repo_id, name, revision=revision)
        if not place.exists():
            raise LocalEntryNotFoundError(f"There is no {repo_id}.")
        return str(place)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    fake = _Hub(tmp_path / "hub")
    for name in ("list_repo_files", "hf_hub_download", "snapshot_download"):
        # The fakes have the signatures of the original functions.
        checked = unittest.mock.create_autospec(getattr(huggingface_hub, name), side_effect=getattr(fake, name))
        monkeypatch.setattr(huggingface_hub, name, checked)
    return fake


def _names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


SHARDED = {"model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
KERAS_HUB = {"config.json", "metadata.json", "preprocessor.json", "task.json", "model.weights.h5", "task.weights.h5"}


@pytest.mark.parametrize(
    ("brought", "left_out"),
    [
        ({"README.md", "config.json", "model.safetensors"}, {"pytorch_model.bin"}),
        ({"model.safetensors"}, {"vit.npz", "tf_model.h5", "open_clip_model.safetensors", "model.weights.h5"}),
        (SHARDED | {"config.json", "preprocessor_config.json"}, {"model.onnx", "tokenizer.json"}),
        (KERAS_HUB, {".gitattributes", "flax_model.msgpack", "vit.npz"}),
        ({"vit.npz"}, {"vit.pth"}),
    ],
)
def test_brings_a_repository(hub, brought, left_out):
    hub.repositories["owner/some.name"] = {name: name.encode() for name in brought | left_out}
    folder = fetch_from_hub("hf://owner/some.name")
    assert _names(folder) == brought
    assert all((folder / name).read_bytes() == name.encode() for name in brought)


@pytest.mark.parametrize(
    "names", [{"config.json", "pytorch_model.bin", "tf_model.h5"}, {"b16.npz", "l16.npz"}, {"open_clip.safetensors"}]
)
def test_refuses_a_repository_without_one_readable_file(hub, names):
    hub.repositories["owner/name"] = dict.fromkeys(names, b"")
    with pytest.raises(ValueError, match="hf://owner/name must have") as caught:
        fetch_from_hub("hf://owner/name")
    assert all(name in str(caught.value) for name in names)
    assert not hub.folder.exists()


def test_brings_a_revision_and_a_file(hub):
    described = {"config.json": b"3", "README.md": b"---\nlicense: mit\n---\n"}
    hub.repositories["owner/name"] = {"a/config.json": b"1", "a/vit.npz": b"2", "vit.npz": b"4", **described}
    place = hub.folder / "owner--name"
    assert fetch_from_hub("hf://owner/name@v1.0/a/vit.npz") == place / "v1.0" / "a" / "vit.npz"
    assert _names(place) == {"v1.0/a/vit.npz", "v1.0/a/config.json"}
    assert fetch_from_hub("hf://owner/name/vit.npz") == place / "main" / "vit.npz"
    assert (place / "main" / "config.json").read_bytes() == b"3"
    assert licence_of_card(place / "main" / "README.md") == "MIT"  # The licence of a file is in the model card.
    del hub.repositories["owner/name"]["a/vit.npz"]
    assert fetch_from_hub("hf://owner/name@refs%2Fpr%2F1/") == place / "refs" / "pr" / "1"


def test_uses_an_earlier_copy_without_network(hub):
    hub.repositories["owner/name"] = dict.fromkeys({"config.json", "model.safetensors", "pytorch_model.bin"}, b"")
    folder = fetch_from_hub("hf://owner/name")
    hub.is_reachable = False
    assert fetch_from_hub("hf://owner/name") == folder
    assert fetch_from_hub("hf://owner/name/model.safetensors") == folder / "model.safetensors"
    for source in ("hf://owner/other", "hf://owner/name@v2", "hf://owner/name/vit.npz"):
        with pytest.raises(OSError, match=f"Could not download {source}: .*pass the path of a local copy"):
            fetch_from_hub(source)


def test_says_that_a_repository_does_not_exist(hub):
    with pytest.raises(OSError, match=r"Could not download hf://owner/name: 404 .*Check the name"):
        fetch_from_hub("hf://owner/name")


@pytest.mark.parametrize("code", [401, 403])
def test_says_how_to_get_gated_weights(server, tmp_path, code):
    """The list of files of a gated repository can be read without a token, but not the files."""
    pytest.importorskip("huggingface_hub")
    files = [{"type": "file", "path": "vit.npz", "size": 3, "oid": "1"}]
    facts = {"id": "facebook/vit", "sha": "0" * 40, "siblings": [{"rfilename": "vit.npz"}]}

    def answer(handler):
        listed = json.dumps(files if "/tree/" in handler.path else facts).encode()
        answer = file_server.file(listed, Content_Type="application/json")
        is_list = handler.path.startswith("/api/")
        (answer if is_list else file_server.status(code, X_Error_Code="GatedRepo"))(handler)

    server.answers = collections.defaultdict(lambda: [answer])
    program = _PROGRAM + "\nfrom keras_vit.weights.fetch import fetch_from_hub\nfetch_from_hub('hf://facebook/vit')"
    arguments = [sys.executable, "-c", program, pathlib.Path(keras_vit.__file__).parent.parent]
    places = {"HF_ENDPOINT": server.address(""), "HF_HOME": str(tmp_path), "no_proxy": "*"}
    process = subprocess.run(arguments, env=os.environ | places, capture_output=True, text=True, timeout=60)
    message = process.stderr.splitlines()[-1]
    assert re.search(r"open https://huggingface\.co/facebook/vit in a browser.* HF_TOKEN", message), process.stderr
    assert "/resolve/" in server.requests[-1][0]


def test_checks_what_is_in_the_hubs_cache(hub):
    """The cache names large files by their SHA-256."""
    hub.repositories["owner/name"] = {"model.safetensors": CONTENTS}
    folder = fetch_from_hub("hf://owner/name")
    blob = hub.folder / SHA256
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    hub.is_reachable = False
    for source in ("hf://owner/name", "hf://owner/name/model.safetensors"):
        blob.write_bytes(CONTENTS)
        fetch_from_hub(source)
        blob.write_bytes(CONTENTS[:-1])
        with pytest.raises(ValueError, match=f"was {SHA256}. Delete {blob} to download it again"):
            fetch_from_hub(source)


def test_addresses_that_the_hub_has_signed_are_shown_nowhere(hub, monkeypatch):
    def fail(*_, **__):
        raise OSError("403 for url: https://cdn.hf.co/a?X-Amz-Signature=secret (Forbidden)")

    hub.repositories["owner/name"] = {"model.safetensors": CONTENTS}
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(OSError, match=r"403 for url: https://cdn\.hf\.co/a \(Forbidden\)") as caught:
        fetch_from_hub("hf://owner/name")
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("source", ["hf://", "hf://name", "hf://owner/name/../x.npz", "hf://owner/name@", "hf:///a/b"])
def test_refuses_other_names(hub, source):
    with pytest.raises(ValueError, match=f"'{source}' is not a valid name on the .*hf://owner/repository"):
        fetch_from_hub(source)


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="hf://owner/name needs huggingface_hub: pip install huggingface_hub"):
        fetch_from_hub("hf://owner/name")
