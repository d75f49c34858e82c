"""Downloads files of published weights from the web, a bucket or the Hugging Face Hub."""

import contextlib
import fnmatch
import functools
import glob
import hashlib
import json
import os
import pathlib
import re
import string
import urllib.parse
import warnings

from keras_vit.atomic_files import replace_file_atomically
from keras_vit.checks import shown
from keras_vit.weights.sources.download import (
    FORBIDDEN_STATUSES,
    advice_for_gated,
    digest_of,
    download,
    is_local,
    redacted,
    writing,
)

ACCEPTED = (
    "Accepted: the path of a file or folder, 'https://…', 'gs://bucket/path', 'hf://owner/repository', "
    "'hf://owner/repository@revision', 'hf://owner/repository/path/of/file.npz'; 'http://…' only on this machine, "
    "because unencrypted files could be changed during the transfer"
)

MAX_ADDRESS_LENGTH = 4000
"""Maximum number of characters of a source. Signed addresses have about 2,000."""
MAX_NAME_LENGTH = 200
"""Maximum number of characters of a name in an address. File systems limit names to 255, with their endings."""
LONGEST_WAIT = 3600
"""Maximum number of seconds to wait for another process that downloads the same file."""

LONGEST_WAIT_WITH_COPY = 3
"""Maximum number of seconds to wait for an answer of the Hugging Face Hub if its cache has a copy of the repository."""

_MAX_NAMES_SHOWN = 20  # Of a repository, in messages.
COMPANIONS = ("lock", "origin", "partial", "validator")
"""Endings of the files that are stored beside a cached file, such as `vit.npz.lock`."""

_CARD = "README.md"
_INDEXES = ("model.safetensors.index.json", "model.weights.json")  # Of the shards of transformers and KerasHub.
HUB_WEIGHTS = (
    *("model.safetensors", "model-*-of-*.safetensors", "*.weights.h5", "*.npz"),
    "open_clip_model.safetensors",
)
"""Patterns of weight files on the Hub. The files of the first pattern that matches are downloaded."""


def locate(source, sha256=None, settings_files=()):
    """Finds the file or folder of a source of weights, and downloads it if it is not on this machine.

    Args:
        source: Path of a file or folder, or a source that `fetch` or `fetch_from_hub` accepts.
        sha256: Same as in `fetch`.
        settings_files: Same as in `fetch_from_hub`.

    Returns:
        `pathlib.Path` of the file or folder on this machine.

    Raises:
        FileNotFoundError: If there is nothing at the path.
        ImportError: If the source is on the Hugging Face Hub and `huggingface_hub` is not installed.
        OSError: If the source cannot be downloaded.
        ValueError: If the kind of source is not accepted.
    """
    text = os.fspath(source)
    if text.startswith("hf://"):
        return fetch_from_hub(text, settings_files)
    if "://" in text:
        return fetch(text, sha256)
    path = pathlib.Path(text).expanduser()
    if not os.path.exists(path):  # `path.exists()` raises an error if the name is too long.
        raise FileNotFoundError(f"There is no file or folder {shown(text)} (working folder: {os.getcwd()}). {ACCEPTED}")
    return path


def cache_folder():
    """`pathlib.Path` of the folder for downloads, which may not exist yet.

    The environment variable `KERAS_VIT_CACHE` sets the folder. By default it is `models/keras_vit` in the folder of
    Keras, which is `KERAS_HOME` or `~/.keras`.
    """
    chosen = os.environ.get("KERAS_VIT_CACHE")
    keras_home = os.environ.get("KERAS_HOME") or "~/.keras"
    return (pathlib.Path(chosen) if chosen else pathlib.Path(keras_home, "models", "keras_vit")).expanduser()


def fetch(url, sha256=None):
    """Downloads a file once. Later calls, also in other processes, use the cached file without network access.

    If a download is interrupted, several attempts are made to resume it, and a later call can also resume it. The file
    gets its final name only after it is complete. `<name>.origin` in the same folder contains the SHA-256 of the file
    and the server's ETag, Last-Modified date and MD5. In later calls, the SHA-256 shows whether the cached file has
    changed.

    Args:
        url: `https://…`, `gs://bucket/path`, or `http://…` of a server on this machine.
        sha256: SHA-256 of the file, or the first digits of the SHA-256. `None` if the publisher provides no SHA-256.

    Returns:
        `pathlib.Path` of the file in the cache.

    Raises:
        ConnectionError: If the server cannot be reached, or the connection breaks repeatedly.
        OSError: If the server returns an error, or the cache cannot be written.
        ValueError: If the URL is not accepted, or the file is not the expected one.

    Example:

    >>> from keras_vit.weights.sources import fetch
    >>> fetch.fetch("gs://vit_models/sam/ViT-B_16.npz")  # doctest: +SKIP
    PosixPath('/home/ann/.keras/models/keras_vit/storage.googleapis.com/vit_models/sam/ViT-B_16.npz')
    """
    address = _address(url)
    path = _cached_path(address)
    if path.is_dir():
        raise OSError(
            f"{path} is a folder, but the cache needs this path for {redacted(url)}. Remove or rename the folder."
        )
    if not path.is_file():
        with _locked(path):
            if not path.is_file():
                origin = download(address, path, sha256)
                with writing(path), replace_file_atomically(_origin_of(path)) as unfinished:
                    unfinished.write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
                return path
    _check_cached(path, url, sha256)
    return path


def _check_cached(path, url, sha256):
    """Checks that a cached file has the expected SHA-256, and that it has not changed since its download."""
    origin, record = None, _origin_of(path)
    if record.exists():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            origin = json.loads(record.read_text("utf-8"))["sha256"]
        if not isinstance(origin, str):
            raise ValueError(f"{record} is damaged. Delete it and {path.name} to download the file again.")
    actual = digest_of(path) if sha256 or origin else None
    if sha256 and actual and not actual.startswith(sha256.lower()):
        raise ValueError(
            f"{path}, from an earlier download of {redacted(url)}, is not the expected file: its SHA-256 is {actual}, "
            f"expected {sha256}. Delete it to download it again."
        )
    if origin and actual != origin:
        raise ValueError(
            f"{path} has changed since it was downloaded from {redacted(url)}: its SHA-256 is {actual}, and was "
            f"{origin}. Delete it to download it again. To use the changed file, delete {record.name}."
        )


def _origin_of(path):
    return path.with_name(f"{path.name}.origin")


def fetch_from_hub(source, settings_files=()):
    """Downloads a repository of weights, or one of its files, from the Hugging Face Hub into the Hub's own cache.

    The repository's model card, its settings and one kind of weights are downloaded. The first kind that exists is
    used: `model.safetensors` (also in shards), the `.weights.h5` files of a KerasHub preset, the only `.npz` file, or
    `open_clip_model.safetensors`. The Hub is asked for the newest version of the repository. If it cannot be reached,
    the cached copy is used, and if it answers with an error, the cached copy is used with a warning.

    Args:
        source: `"hf://owner/repository"`, `"hf://owner/repository@revision"` (a slash in a revision is written `%2F`),
            or one of these followed by `/path/of/file`.
        settings_files: Names of JSON files that describe weights. They are downloaded if they are in the repository or,
            for a single file, in its folder.

    Returns:
        `pathlib.Path` of the folder or file.

    Raises:
        ImportError: If `huggingface_hub` is not installed.
        OSError: If the repository or file does not exist, needs permission, or cannot be reached.
        ValueError: If the source is malformed, if the repository has none of these weights or several `.npz` files, or
            if a file in the Hub's cache has changed since its download.
    """
    parts = re.fullmatch(r"hf://([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+))?", source.rstrip("/"))
    if not parts or ".." in source.split("/") or len(source) > MAX_ADDRESS_LENGTH:
        raise ValueError(f"{shown(redacted(source))} is not a valid name on the Hugging Face Hub. {ACCEPTED}")
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise ImportError(
            f"Downloading {redacted(source)} needs huggingface_hub: pip install huggingface_hub"
        ) from error
    repository, revision, file = parts.groups()
    revision = revision and urllib.parse.unquote(revision)
    try:
        folder = _hub_folder(hub, repository, revision, file, (_CARD, *settings_files))
    except OSError as error:
        problem = _unsigned(error).rstrip(".")
        advice = "Without a network connection, pass the path of a local copy"
        if getattr(getattr(error, "response", None), "status_code", None) in FORBIDDEN_STATUSES:
            advice = advice_for_gated(repository)
        # The error is not chained, because its message may contain signed addresses.
        raise OSError(f"Could not download {redacted(source)}: {problem}. Check the name. {advice}.") from None
    return folder / file if file else folder


def _hub_folder(hub, repository, revision, file, descriptions):
    """Folder with one file of a repository or, if `file` is `None`, its weights, and the files that describe them."""
    from huggingface_hub import constants

    download = functools.partial(hub.snapshot_download, repository, revision=revision)
    cached, problem = None, None
    with contextlib.suppress(OSError):  # The cache has no copy. A copy may lack files.
        cached = pathlib.Path(download(allow_patterns=[], local_files_only=True))
    try:
        is_short = cached and "HF_HUB_ETAG_TIMEOUT" not in os.environ
        timeout = LONGEST_WAIT_WITH_COPY if is_short else constants.HF_HUB_ETAG_TIMEOUT
        listing = hub.model_info(repository, revision=revision, timeout=timeout)
        names = [sibling.rfilename for sibling in listing.siblings or ()]
    except Exception as error:  # The type of this error depends on the version of the library.
        if cached is None:
            raise (error if isinstance(error, OSError) else OSError(str(error))) from None
        problem = _unsigned(error).split("\n")[0].rstrip(".")
        if getattr(error, "response", None) is not None:
            warnings.warn(f"hf://{repository} is used from the cache and may be outdated: {problem}", stacklevel=2)
        names = [path.relative_to(cached).as_posix() for path in cached.rglob("*") if path.is_file()]
        download = functools.partial(download, local_files_only=True)
    try:
        weights, patterns = _wanted_files(repository, names, file, descriptions)
        folder = pathlib.Path(download(allow_patterns=patterns))
    except (OSError, ValueError) as error:
        if problem is None:
            raise
        raise OSError(
            f"{problem}. The copy in the cache is incomplete: {error} With a network connection, the missing files are "
            f"downloaded"
        ) from None
    for name in weights:
        _check_hub_file(folder / name)
    return folder


def _unsigned(error):
    """Message of an error of the Hub's library. Signatures are removed from addresses."""
    return re.sub(r"(://[^\s?#]+)[?#]\S*", r"\1", str(error))


def _wanted_files(repository, names, file, descriptions):
    """Names of the weights in a list of names, and patterns that match the weights and the files that describe them."""
    if file:
        if file not in names:
            raise FileNotFoundError(f"hf://{repository} has no {file}. It has: {_first(names)}.")
        beside = [str(pathlib.PurePosixPath(file).with_name(name)) for name in descriptions]
        return [file], [glob.escape(name) for name in (file, *beside)]
    for number, pattern in enumerate(HUB_WEIGHTS, start=1):
        weights = fnmatch.filter(names, pattern)
        if len(weights) == 1 or (weights and pattern != "*.npz"):
            # An incomplete cached copy may lack files of the previous patterns.
            return weights, [*descriptions, *_INDEXES, *HUB_WEIGHTS[:number]]
    raise ValueError(
        f"hf://{repository} must have a model.safetensors, a KerasHub preset (*.weights.h5), one .npz or an "
        f"open_clip_model.safetensors. It has: {_first(names)}. Pass one .safetensors, .weights.h5 or .npz file as "
        f"hf://{repository}/FILE, or pass another repository. Convert weights of other formats first."
    )


def _first(names):
    """The first names of a repository as text, and the number of the other ones."""
    rest = len(names) - _MAX_NAMES_SHOWN
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _check_hub_file(path):
    """Checks that a file has not changed. In the Hub's cache, the name of a large file is its SHA-256."""
    blob = path.resolve()
    if re.fullmatch("[0-9a-f]{64}", blob.name) and (actual := digest_of(blob)) != blob.name:
        raise ValueError(
            f"{path} has changed since it was downloaded: its SHA-256 is {actual}, and was {blob.name}. Delete "
            f"{blob} to download it again."
        )


def _address(url):
    """The https or http address of a URL. Characters that are not allowed are percent-encoded."""
    if url.startswith("gs://"):
        path = urllib.parse.quote(url.removeprefix("gs://"), safe="/!$&'()*+,;=:@")
        address = f"https://storage.googleapis.com/{path}"
    else:
        address = urllib.parse.quote(url, safe=string.punctuation.replace("\\", ""))
    try:
        parts = urllib.parse.urlsplit(address)
        # `http.client` encodes the host in this way too, and would raise a UnicodeError, which is no OSError.
        is_host = bool((parts.hostname or "").encode("idna")) and not {"%", "@"} & {*parts.netloc}
        is_safe = parts.port != 0 and (parts.scheme == "https" or is_local(address))
    except ValueError:  # The port, the name of the host or its IPv6 address is not valid.
        is_host = is_safe = False
    if not is_host or not is_safe or len(address) > MAX_ADDRESS_LENGTH:
        raise ValueError(f"Weights cannot be downloaded from {shown(redacted(url))}. {ACCEPTED}")
    return address


def _cached_path(address):
    """Path of an address in the cache. Names remain percent-encoded, so that each address has its own path."""
    parts = urllib.parse.urlsplit(address)
    port = 80 if parts.scheme == "http" and parts.port is None else parts.port
    host = parts.hostname if port is None else f"{parts.hostname}+{port}"
    names = parts.path.split("/")[1:]
    if not names or any(urllib.parse.unquote(name) in ("", ".", "..") or len(name) > MAX_NAME_LENGTH for name in names):
        raise ValueError(
            f"{shown(redacted(address))} does not contain a valid path. Accepted: names of at most {MAX_NAME_LENGTH} "
            f"characters that are separated by single slashes, without '..'"
        )
    if parts.query:
        name = pathlib.PurePosixPath(names[-1])
        names[-1] = f"{name.stem}-{hashlib.sha256(parts.query.encode()).hexdigest()[:16]}{name.suffix}"
    companion = re.compile(rf"\.(?=({'|'.join(COMPANIONS)})$)", re.IGNORECASE)
    return cache_folder().joinpath(*(companion.sub("%2E", name.replace(":", "%3A")) for name in (host, *names)))


@contextlib.contextmanager
def _locked(path):
    """Waits until no other process downloads to a path, then locks the path for a download."""
    import filelock

    lock = filelock.FileLock(f"{path}.lock")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            print(f"Waiting for another process that is downloading {path}")
            try:
                lock.acquire(timeout=LONGEST_WAIT)
            except filelock.Timeout:
                raise TimeoutError(
                    f"Another process has been downloading {path} for {LONGEST_WAIT} seconds. Stop it and call again."
                ) from None
    try:
        yield
    finally:
        lock.release()
