"""Downloads from the Hugging Face Hub, most of them with a fake of its library."""

import collections
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import traceback
import types
import unittest.mock

import pytest

import keras_vit
from keras_vit.licences import licence_of_card
from keras_vit.weights.opening import SETTINGS_FILES
from keras_vit.weights.sources import fetch
from tests.weights.sources import file_server
from tests.weights.sources.fetch_test import CONTENTS, PROGRAM, SHA256

fetch_from_hub = functools.partial(fetch.fetch_from_hub, settings_files=SETTINGS_FILES)


class _Hub:
    """A fake of huggingface_hub's functions, with repositories {name: {file: contents}} and a cache folder."""

    def __init__(self, folder):
        self.folder = folder
        self.repositories = {}
        self.problem = None

    def model_info(self, repo_id, *, revision=None, timeout=None):
        if self.problem:
            raise self.problem
        if repo_id not in self.repositories:
            raise OSError("404 Client Error")
        names = self.repositories[repo_id]
        return types.SimpleNamespace(siblings=[types.SimpleNamespace(rfilename=name) for name in names])

    def snapshot_download(self, repo_id, *, revision=None, allow_patterns, local_files_only=False):
        from huggingface_hub.errors import LocalEntryNotFoundError
        from huggingface_hub.utils import filter_repo_objects

        place = self.folder / repo_id.replace("/", "--") / (revision or "main")
        contents = self.repositories.get(repo_id, {})
        names = list(filter_repo_objects(contents, allow_patterns=allow_patterns))
        if not local_files_only:
            assert self.problem is None
            for name in names:
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(contents[name])
        if not place.exists():
            raise LocalEntryNotFoundError(f"There is no {repo_id}.")
        if missing := [name for name in names if not (place / name).exists()]:
            raise LocalEntryNotFoundError(f"There is no {missing}.")
        return str(place)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    fake = _Hub(tmp_path / "hub")
    for name in ("model_info", "snapshot_download"):
        # The fakes have the signatures of the original functions.
        checked = unittest.mock.create_autospec(getattr(huggingface_hub, name), side_effect=getattr(fake, name))
        monkeypatch.setattr(huggingface_hub, name, checked)
    fake.asked = huggingface_hub.model_info
    return fake


def _names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


SHARDED = {"model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
KERAS_HUB = {"config.json", "task.json", "image_converter.json", "model.weights.h5", "task.weights.h5"}


@pytest.mark.parametrize(
    ("brought", "left_out"),
    [
        ({"README.md", "config.json", "model.safetensors"}, {"pytorch_model.bin"}),
        ({"model.safetensors"}, {"vit.npz", "tf_model.h5", "open_clip_model.safetensors", "model.weights.h5"}),
        (SHARDED | {"config.json", "preprocessor_config.json"}, {"model.onnx", "tokenizer.json"}),
        (KERAS_HUB, {"metadata.json", "flax_model.msgpack", "vit.npz"}),
        ({"vit.npz"}, {"vit.pth"}),
        ({"open_clip_config.json", "open_clip_model.safetensors"}, {"open_clip_pytorch_model.bin"}),
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


def test_names_the_first_files_of_a_large_repository(hub):
    hub.repositories["owner/name"] = dict.fromkeys([f"{index:03}.bin" for index in range(200)], b"")
    with pytest.raises(ValueError, match=r"It has: 000\.bin, .*, 019\.bin and 180 more\. Pass one"):
        fetch_from_hub("hf://owner/name")


def test_brings_a_revision_and_a_file(hub):
    described = {"config.json": b"3", "README.md": b"---\nlicense: mit\n---\n"}
    described["open_clip_config.json"] = b"5"
    hub.repositories["owner/name"] = {"a/config.json": b"1", "a/vit.npz": b"2", "vit.npz": b"4", **described}
    place = hub.folder / "owner--name"
    assert fetch_from_hub("hf://owner/name@v1.0/a/vit.npz") == place / "v1.0" / "a" / "vit.npz"
    assert _names(place) == {"v1.0/a/vit.npz", "v1.0/a/config.json"}
    assert fetch_from_hub("hf://owner/name/vit.npz") == place / "main" / "vit.npz"
    assert (place / "main" / "config.json").read_bytes() == b"3"
    assert (place / "main" / "open_clip_config.json").read_bytes() == b"5"
    assert licence_of_card(place / "main" / "README.md") == "MIT"  # The licence of a file is in the model card.
    del hub.repositories["owner/name"]["a/vit.npz"]
    assert fetch_from_hub("hf://owner/name@refs%2Fpr%2F1/") == place / "refs" / "pr" / "1"


NO_NETWORK = RuntimeError("ConnectError of some HTTP library")


@pytest.mark.combination("hf://owner/repository without network, complete copy in the cache", "used after one attempt")
@pytest.mark.parametrize(("variable", "seconds"), [(None, 3), ("20", 20)])
def test_uses_an_earlier_copy_without_network(hub, monkeypatch, variable, seconds):
    hub.repositories["owner/name"] = dict.fromkeys({"config.json", "model.safetensors", "pytorch_model.bin"}, b"")
    folder = fetch_from_hub("hf://owner/name")
    hub.problem = NO_NETWORK
    if variable:
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", variable)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", seconds)
    hub.asked.reset_mock()
    assert fetch_from_hub("hf://owner/name") == folder
    hub.asked.assert_called_once_with("owner/name", revision=None, timeout=seconds)
    assert fetch_from_hub("hf://owner/name/model.safetensors") == folder / "model.safetensors"
    for source in ("hf://owner/other", "hf://owner/name@v2", "hf://owner/name/vit.npz"):
        with pytest.raises(OSError, match=f"Could not download {source}: ConnectError .*pass the path of a local copy"):
            fetch_from_hub(source)


@pytest.mark.combination("hf://owner/repository, a file has changed on the Hub since the last call", "the new file")
def test_asks_for_a_newer_version(hub):
    hub.repositories["owner/name"] = {"config.json": b"1", "model.safetensors": b"2"}
    folder = fetch_from_hub("hf://owner/name")
    hub.repositories["owner/name"]["model.safetensors"] = b"3"
    assert fetch_from_hub("hf://owner/name") == folder
    assert (folder / "model.safetensors").read_bytes() == b"3"


@pytest.mark.combination("hf://owner/repository without network, incomplete copy in the cache", "refused")
def test_says_what_a_copy_lacks(hub):
    hub.repositories["owner/name"] = {"config.json": b"1", "model.safetensors": b"2", "vit.npz": b"3"}
    folder = fetch_from_hub("hf://owner/name")
    hub.problem = NO_NETWORK
    (folder / "vit.npz").touch()  # The library would download the better file.
    for removed, problem in {
        "config.json": "no .'config.json'",
        "model.safetensors": "no .*'model.safetensors'",
    }.items():
        (folder / removed).unlink()
        with pytest.raises(
            OSError, match=f"ConnectError .*copy in the cache is incomplete: .*{problem}.* With a network"
        ):
            fetch_from_hub("hf://owner/name")
    (folder / "vit.npz").unlink()
    with pytest.raises(OSError, match=r"incomplete: hf://owner/name must have a model\.safetensors.* With a network"):
        fetch_from_hub("hf://owner/name")


@pytest.mark.combination("hf://owner/repository, copy in the cache, the Hub answers 401 or 503", "the copy, a warning")
def test_warns_that_a_copy_could_not_be_checked(hub):
    hub.repositories["owner/name"] = {"model.safetensors": b"2"}
    folder = fetch_from_hub("hf://owner/name")
    hub.problem = OSError("503 for https://hf.co/a?X-Amz-Signature=secret\nmore")
    hub.problem.response = types.SimpleNamespace(status_code=503)
    with pytest.warns(UserWarning, match=r"owner/name is used from the cache .*outdated: 503 for https://hf\.co/a$"):
        assert fetch_from_hub("hf://owner/name") == folder


def test_says_that_a_repository_does_not_exist(hub):
    with pytest.raises(OSError, match=r"Could not download hf://owner/name: 404 .*Check the name"):
        fetch_from_hub("hf://owner/name")


@pytest.mark.parametrize("code", [pytest.param(401, marks=pytest.mark.slow), 403])
def test_says_how_to_get_gated_weights(server, tmp_path, code):
    """Without a token, the list of files of a gated repository can be read, but the files cannot."""
    pytest.importorskip("huggingface_hub")
    files = [{"type": "file", "path": "vit.npz", "size": 3, "oid": "1"}]
    facts = {"id": "facebook/vit", "sha": "0" * 40, "siblings": [{"rfilename": "vit.npz"}]}

    def answer(handler):
        listed = json.dumps(files if "/tree/" in handler.path else facts).encode()
        answer = file_server.file(listed, Content_Type="application/json")
        is_list = handler.path.startswith("/api/")
        (answer if is_list else file_server.status(code, X_Error_Code="GatedRepo"))(handler)

    server.answers = collections.defaultdict(lambda: [answer])
    program = (
        PROGRAM + "\nfrom keras_vit.weights.sources.fetch import fetch_from_hub\nfetch_from_hub('hf://facebook/vit')"
    )
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
    hub.problem = NO_NETWORK
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
    with pytest.raises(ValueError, match=r"'hf://owner/n+ … n+' is not a valid name"):
        fetch_from_hub("hf://owner/" + "n" * 30_000)


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="hf://owner/name needs huggingface_hub: pip install huggingface_hub"):
        fetch_from_hub("hf://owner/name")
