"""Brings files of published weights onto this machine: from the web, a bucket or the Hugging Face Hub."""

import contextlib
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import string
import urllib.parse

from keras_vit.atomic_files import replacing
from keras_vit.weights.download import download, is_local, sha256_of, shown, writing

ACCEPTED = (
    "Accepted: the path of a file or folder, 'https://…', 'gs://bucket/path', 'hf://owner/repository', "
    "'hf://owner/repository@revision', 'hf://owner/repository/path/of/file.npz'; 'http://…' only for this machine "
    "itself, because anyone on the way could change the file"
)

LONGEST_WAIT = 3600
"""Seconds to wait for another process that downloads the same file."""

COMPANIONS = ("lock", "origin", "partial", "validator")
"""Endings of what stands beside a file in the cache: `vit.npz.lock`."""

HUB_DESCRIPTIONS = (
    *("config.json", "preprocessor_config.json", "processor_config.json", "model.safetensors.index.json"),
    *("metadata.json", "task.json", "preprocessor.json", "image_converter.json", "model.weights.json"),  # KerasHub's
)
HUB_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "*.weights.h5", "*.npz")
"""Of a repository on the Hub the first of these that it has is brought."""


def locate(source):
    """Finds the file or folder that a source of weights names, and brings it onto this machine if need be.

    Args:
        source: Path of a file or folder, or what `fetch` and `fetch_from_hub` accept.

    Returns:
        Its path on this machine, as a `pathlib.Path`.

    Raises:
        FileNotFoundError: If there is nothing at the path.
        ImportError: If the source is on the Hugging Face Hub and `huggingface_hub` is not installed.
        OSError: If it cannot be brought.
        ValueError: If it is of a kind that is not accepted.

    Example:

    >>> from keras_vit.weights import fetch
    >>> fetch.locate("gs://vit_models/sam/ViT-B_16.npz").name  # doctest: +SKIP
    'ViT-B_16.npz'
    """
    text = os.fspath(source)
    if text.startswith("hf://"):
        return fetch_from_hub(text)
    if "://" in text:
        return fetch(text)
    path = pathlib.Path(text).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"There is no file or folder {text!r} (working folder: {os.getcwd()}). {ACCEPTED}")
    return path


def cache_folder():
    """The folder for downloads: the environment's `KERAS_VIT_CACHE`, or `models/keras_vit` where Keras keeps its own.

    That is under the environment's `KERAS_HOME`, or under `~/.keras`.

    Returns:
        A `pathlib.Path`; the folder need not exist.

    Example:

    >>> from keras_vit.weights import fetch
    >>> fetch.cache_folder()  # doctest: +SKIP
    PosixPath('/home/ann/.keras/models/keras_vit')
    """
    chosen = os.environ.get("KERAS_VIT_CACHE")
    keras_home = os.environ.get("KERAS_HOME") or "~/.keras"
    return (pathlib.Path(chosen) if chosen else pathlib.Path(keras_home, "models", "keras_vit")).expanduser()


def fetch(url, sha256=None):
    """Downloads a file once; later calls, also of other processes, use the file in the cache and no network.

    A download that breaks is tried again and goes on where it ended, also in a later call. The file appears under its
    name only when it is complete. Beside it a file `<name>.origin` keeps its SHA-256 and what the server says of its
    version, so that later calls notice if the file in the cache is not the one that was downloaded.

    Args:
        url: `https://…`, `gs://bucket/path`, or `http://…` of this machine itself.
        sha256: SHA-256 of the file, or its first digits, or `None`, if its publisher names none.

    Returns:
        The file's path in the cache, as a `pathlib.Path`.

    Raises:
        ConnectionError: If the server cannot be reached, or the connection keeps breaking.
        OSError: If the server refuses, or the cache cannot be written.
        ValueError: If the URL is not accepted, or the file is not what it should be.

    Example:

    >>> from keras_vit.weights import fetch
    >>> fetch.fetch("gs://vit_models/sam/ViT-B_16.npz")  # doctest: +SKIP
    PosixPath('/home/ann/.keras/models/keras_vit/storage.googleapis.com/vit_models/sam/ViT-B_16.npz')
    """
    address = _address(url)
    path = _cached_path(address)
    if not path.is_file():
        with _locked(path):
            if not path.is_file():
                origin = download(address, path, sha256)
                with writing(path), replacing(_origin_of(path)) as unfinished:
                    unfinished.write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
                return path
    _check_cached(path, url, sha256)
    return path


def _check_cached(path, url, sha256):
    """Refuses a file in the cache that is not the expected one, nor the one that was downloaded."""
    origin = _read_origin(path)
    actual = sha256_of(path) if sha256 or origin else None
    if sha256 and not actual.startswith(sha256.lower()):
        raise ValueError(
            f"{path}, from an earlier download of {shown(url)}, is not the expected file: its SHA-256 is {actual}, "
            f"expected {sha256}. Delete it, and it is downloaded anew."
        )
    if origin and actual != origin:
        raise ValueError(
            f"{path} has changed since it was downloaded from {shown(url)}: its SHA-256 is {actual}, and was {origin}. "
            f"Delete it, and it is downloaded anew. To read it as it is, delete {_origin_of(path).name} beside it."
        )


def _origin_of(path):
    return path.with_name(f"{path.name}.origin")


def _read_origin(path):
    """The SHA-256 that a file in the cache had when it was downloaded; `None` if it was put there in another way."""
    try:
        origin = json.loads(_origin_of(path).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        origin = None
    if not isinstance(origin, dict) or not isinstance(origin.get("sha256"), str):
        raise ValueError(f"{_origin_of(path)} is damaged. Delete it and {path.name}, which is then downloaded anew.")
    return origin["sha256"]


def fetch_from_hub(source):
    """Brings a repository of weights, or one file of it, from the Hugging Face Hub, into the Hub's own cache.

    Of a repository come its descriptions and one kind of weights: `model.safetensors`, also in shards, otherwise the
    `.weights.h5` of a KerasHub preset, otherwise the only `.npz`. Without network an earlier copy is used.

    Args:
        source: `"hf://owner/repository"`, `"hf://owner/repository@revision"` (a slash in a revision is written `%2F`),
            or either followed by `/path/of/file`.

    Returns:
        The path of the folder or file, as a `pathlib.Path`. Beside a file stand the `config.json` and
        `preprocessor_config.json` that its folder on the Hub has.

    Raises:
        ImportError: If `huggingface_hub` is not installed.
        OSError: If the repository or file does not exist, needs permission, or cannot be reached.
        ValueError: If the source cannot be read, the repository has no such weights or several, or a file in the Hub's
            cache is not the one that was downloaded.

    Example:

    >>> from keras_vit.weights import fetch
    >>> fetch.fetch_from_hub("hf://google/vit-base-patch16-224")  # doctest: +SKIP
    PosixPath('/home/ann/.cache/huggingface/hub/models--google--vit-base-patch16-224/snapshots/3f49326eb077')
    """
    parts = re.fullmatch(r"hf://([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+))?", source.rstrip("/"))
    if not parts or ".." in source.split("/"):
        raise ValueError(f"{shown(source)!r} names nothing on the Hugging Face Hub. {ACCEPTED}")
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise ImportError(f"Bringing {shown(source)} needs huggingface_hub: pip install huggingface_hub") from error
    repository, revision, file = parts.groups()
    revision = revision and urllib.parse.unquote(revision)
    try:
        if file:
            return _hub_file(hub, repository, revision, file)
        return _hub_folder(hub, repository, revision)
    except OSError as error:
        # The Hub's messages name addresses that it has signed, so they are not passed on, not even as a cause.
        problem = re.sub(r"(://[^\s?#]+)[?#]\S*", r"\1", str(error))
        raise OSError(
            f"Could not bring {shown(source)}: {problem}. Check the name; for a gated or private repository call "
            f"huggingface_hub.login(); without network pass the path of a copy."
        ) from None


def _hub_file(hub, repository, revision, file):
    from huggingface_hub.errors import EntryNotFoundError

    for name in ("config.json", "preprocessor_config.json"):
        with contextlib.suppress(EntryNotFoundError):
            hub.hf_hub_download(repository, str(pathlib.PurePosixPath(file).with_name(name)), revision=revision)
    return _checked_hub_file(pathlib.Path(hub.hf_hub_download(repository, file, revision=revision)))


def _hub_folder(hub, repository, revision):
    names = _hub_names(hub, repository, revision)
    found = (fnmatch.filter(names, pattern) for pattern in HUB_WEIGHTS)
    weights = next(filter(None, found), [])
    if not weights or len(fnmatch.filter(weights, "*.npz")) > 1:
        raise ValueError(
            f"hf://{repository} must have a model.safetensors, a KerasHub preset (*.weights.h5) or one .npz. It has: "
            f"{', '.join(names)}. Name one file that is .safetensors, .weights.h5 or .npz, hf://{repository}/FILE, or "
            f"another repository; weights of another format have to be converted first."
        )
    wanted = [*HUB_DESCRIPTIONS, *weights]
    folder = pathlib.Path(hub.snapshot_download(repository, revision=revision, allow_patterns=wanted))
    for name in weights:
        _checked_hub_file(folder / name)
    return folder


def _checked_hub_file(path):
    """Refuses a file that is not the one that the Hub's cache names: it names large files by their SHA-256."""
    place = path.resolve()
    if re.fullmatch("[0-9a-f]{64}", place.name) and (actual := sha256_of(place)) != place.name:
        raise ValueError(
            f"{path} has changed since it was downloaded: its SHA-256 is {actual}, and was {place.name}. Delete "
            f"{place}, and it is downloaded anew."
        )
    return path


def _hub_names(hub, repository, revision):
    """Names of a repository's files; without network, of those that an earlier call has brought."""
    try:
        return hub.list_repo_files(repository, revision=revision)
    except Exception as error:  # The Hub's, or those of its HTTP library, which changes with its versions.
        try:
            brought = hub.snapshot_download(
                repository, revision=revision, allow_patterns="config.json", local_files_only=True
            )
        except OSError:
            raise OSError(str(error)) from error
    return [path.relative_to(brought).as_posix() for path in pathlib.Path(brought).rglob("*") if path.is_file()]


def _address(url):
    """The address that a URL stands for, with whatever may not stand in one percent-encoded."""
    if url.startswith("gs://"):
        path = urllib.parse.quote(url.removeprefix("gs://"), safe="/!$&'()*+,;=:@")
        address = f"https://storage.googleapis.com/{path}"
    else:
        address = urllib.parse.quote(url, safe=string.punctuation.replace("\\", ""))
    parts = urllib.parse.urlsplit(address)
    if not (parts.hostname and (parts.scheme == "https" or is_local(address))) or "@" in parts.netloc:
        raise ValueError(f"Weights cannot be fetched from {shown(url)!r}. {ACCEPTED}")
    return address


def _cached_path(address):
    """The place of an address in the cache. Names stay percent-encoded, so that no two addresses share one."""
    parts = urllib.parse.urlsplit(address)
    port = 80 if parts.scheme == "http" and parts.port is None else parts.port
    host = parts.hostname if port is None else f"{parts.hostname}+{port}"
    names = parts.path.split("/")[1:]
    if not names or any(urllib.parse.unquote(name) in ("", ".", "..") for name in names):
        raise ValueError(
            f"The path of {shown(address)!r} names no file. Accepted: names between single slashes, not '..'"
        )
    if parts.query:
        name = pathlib.PurePosixPath(names[-1])
        names[-1] = f"{name.stem}-{hashlib.sha256(parts.query.encode()).hexdigest()[:16]}{name.suffix}"
    return cache_folder().joinpath(*map(_cached_name, (host, *names)))


def _cached_name(name):
    """A name in the cache, other than those of what stands beside a file there."""
    name = name.replace(":", "%3A")
    return re.sub(rf"\.(?=({'|'.join(COMPANIONS)})$)", "%2E", name, flags=re.IGNORECASE)


@contextlib.contextmanager
def _locked(path):
    """Lets one process at a time download to a path; the others wait."""
    import filelock

    lock = filelock.FileLock(f"{path}.lock")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            _wait(lock, path)
    try:
        yield
    finally:
        lock.release()


def _wait(lock, path):
    print(f"Waiting for another process that downloads {path}")
    try:
        lock.acquire(timeout=LONGEST_WAIT)
    except TimeoutError:
        raise TimeoutError(
            f"Another process has been downloading {path} for {LONGEST_WAIT} seconds. End it, and call again."
        ) from None
