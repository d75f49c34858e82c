"""Downloads one file over HTTP, whatever the connection does meanwhile."""

import base64
import contextlib
import hashlib
import http.client
import os
import re
import shutil
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from keras_vit.atomic_files import sync

STALL_SECONDS = 30
"""A connection on which nothing arrives for so long is broken; headers must have arrived by then."""
SLOWEST_RATE = 1_000
"""Bytes a second. A connection that is slower, after `STALL_SECONDS`, is broken."""
LONGEST_SECONDS = 24 * 3600
"""A download that takes longer ends; what has arrived is kept for a later call."""
MOST_BYTES = 2**35
"""Longer files are refused: the largest published weights have a quarter of that."""
PAUSES = (1, 2, 4, 8)
"""Seconds before each new attempt."""
LONGEST_PAUSE = 60
"""Seconds that a server may ask for before the next attempt; if it asks for more, there is none."""
PASSING_STATUSES = (429, 500, 502, 503, 504)
CHUNK_BYTES = 2**20
SMALLEST_SHOWN_BYTES = 10**6
"""From this size on a download shows a progress bar."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class _InterruptedError(Exception):
    """An attempt that failed for a reason outside this machine; another may succeed, `pause` seconds later."""

    def __init__(self, reason, retry=True, pause=0):
        super().__init__(reason)
        self.retry = retry
        self.pause = pause


def download(address, path, sha256=None):
    """Downloads a file, which appears under its name only when it is complete.

    Until then it grows as `<name>.partial` in the same folder, from where a later call goes on.

    Args:
        address: `https://…`, or `http://…` of this machine itself.
        path: Where to put it, a `pathlib.Path` in an existing folder. One process at a time may download to a path.
        sha256: SHA-256 of the file, or its first digits, or `None`.

    Returns:
        What is known of the file: `sha256`, computed here, and the publisher's `etag`, `last_modified` and `md5`, each
        `None` where the server does not say.

    Raises:
        ConnectionError: If the server cannot be reached, or the connection keeps breaking.
        OSError: If the server refuses, or the folder cannot be written.
        ValueError: If the file is not what it should be.
    """
    partial = path.with_name(f"{path.name}.partial")
    deadline = time.monotonic() + LONGEST_SECONDS
    for pause in (*PAUSES, None):
        try:
            origin = _receive(address, partial, sha256, deadline)
            break
        except _InterruptedError as error:
            if pause is None or not error.retry:
                kind = OSError if isinstance(error.__cause__, urllib.error.HTTPError) else ConnectionError
                raise kind(
                    f"Could not download {shown(address)}: {error}. Check the address, or call again later (what has "
                    f"arrived is kept), or download it elsewhere and put it at {path}, or pass the path of a file."
                ) from error
            time.sleep(max(pause, error.pause))
    origin["sha256"] = _checked_sum(address, partial, sha256, origin["md5"])
    with writing(path):
        os.replace(partial, path)
        sync(path.parent)
        _discard(partial)
    return origin


def _receive(address, partial, sha256, deadline):
    """Makes one request for what a partial file lacks, and appends the answer; returns what the headers say of it."""
    with _open(address, partial, sha256) as response:
        received, total = _extent(response, partial)
        _check_size(address, partial, total)
        _check_space(partial, total, received)
        show = _progress(address, total)
        with writing(partial), partial.open("ab") as file:
            for data in _chunks(response, deadline):
                file.write(data)
                received += len(data)
                _check_size(address, partial, received)
                show(received)
            file.flush()
            os.fsync(file.fileno())
    if total not in (None, received):
        raise _InterruptedError(f"the connection ended after {received} of {total} bytes")
    headers = response.headers
    return {"etag": headers["ETag"], "last_modified": headers["Last-Modified"], "md5": _md5_of(headers)}


def _md5_of(headers):
    """The MD5 of the file, in hexadecimal digits, as Google's storage says it; `None`: the server does not."""
    if headers.get("x-goog-stored-content-encoding", "identity") != "identity":
        return None  # It is that of the compressed file.
    found = re.search(r"\bmd5=([\w+/]{22}==)", ",".join(headers.get_all("x-goog-hash", [])))
    return found and base64.b64decode(found[1]).hex()


def shown(address):
    """An address as messages and files may show it: without the query, which may be a signature, and a password."""
    if "://" not in address:
        return address
    return re.sub(r"(?<=://)[^/]*@", "", re.split(r"[?#]", address, maxsplit=1)[0])


def is_local(address):
    """Whether an address is of this machine itself, where unencrypted HTTP is no danger."""
    parts = urllib.parse.urlsplit(address)
    return parts.scheme == "http" and parts.hostname in LOCAL_HOSTS


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https only; those of this machine's own server also to itself."""

    def redirect_request(self, request, file, code, message, headers, url):
        is_https = urllib.parse.urlsplit(url).scheme == "https"
        if not is_https and not (is_local(request.full_url) and is_local(url)):
            raise urllib.error.HTTPError(request.full_url, code, f"redirects to {shown(url)}, not https", headers, file)
        return super().redirect_request(request, file, code, message, headers, url)


class _PunctualConnection(http.client.HTTPConnection):
    """Ends if the headers have not arrived in time, however small the steps they come in."""

    def getresponse(self):
        is_late, connection = threading.Event(), self.sock

        def end():
            is_late.set()
            with contextlib.suppress(OSError):  # It has ended.
                connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(STALL_SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()
            if is_late.is_set():  # What has arrived may look like complete headers, or like a broken connection.
                raise http.client.HTTPException(f"its headers took more than {STALL_SECONDS} seconds")


class _PunctualSecureConnection(_PunctualConnection, http.client.HTTPSConnection):
    pass


class _Connections(urllib.request.HTTPHandler):
    def http_open(self, request):
        return self.do_open(_PunctualConnection, request)


class _SecureConnections(urllib.request.HTTPSHandler):
    def https_open(self, request):
        return self.do_open(_PunctualSecureConnection, request)


def _open(address, partial, sha256):
    headers = {"User-Agent": "keras_vit", **_range_headers(partial, sha256)}
    request = urllib.request.Request(address, headers=headers)
    try:
        opener = urllib.request.build_opener(_Redirects, _Connections, _SecureConnections)
        return opener.open(request, timeout=STALL_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            _discard(partial)
            raise _InterruptedError("the file on the server has changed") from error
        wanted = error.headers.get("Retry-After", "")
        pause = int(wanted[:9]) if re.fullmatch("[0-9]+", wanted) else 0
        retry = error.code in PASSING_STATUSES and pause <= LONGEST_PAUSE
        raise _InterruptedError(f"the server answered {error.code} {error.reason}", retry, pause) from error
    except (OSError, http.client.HTTPException) as error:
        # A server that was never reached is not waited for: most likely this machine is offline.
        is_unreachable = isinstance(error, urllib.error.URLError) and not partial.exists()
        raise _InterruptedError(f"could not reach it ({error})", retry=not is_unreachable) from error


def _validator_file(partial):
    """Holds what tells the version of a partial file from others (RFC 9110, section 13.1.5)."""
    return partial.with_name(f"{partial.name}.validator")


def _range_headers(partial, sha256):
    """Ask for the rest of a partial file, if something can tell whether the two belong together."""
    if not partial.exists():
        return {}
    rest = {"Range": f"bytes={partial.stat().st_size}-"}
    if _validator_file(partial).exists():
        return rest | {"If-Range": _validator_file(partial).read_text()}
    return rest if sha256 else {}


def _extent(response, partial):
    """Where in the file the answer starts, and the file's size or `None`; the partial file is made to end there."""
    if "html" in response.headers.get_content_subtype():
        raise _web_page(response.url)
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        size = partial.stat().st_size if partial.exists() else 0
        extent = re.fullmatch(r"bytes (\d{1,18})-\d+/(\d{1,18})", response.headers.get("Content-Range", ""))
        if extent and int(extent[1]) == size:
            return size, int(extent[2])
        _discard(partial)
        raise _InterruptedError(f"the server sent another part than that from byte {size} on")
    _discard(partial)
    etag = response.headers.get("ETag", "")
    validator = response.headers.get("Last-Modified") if etag.startswith("W/") or not etag else etag
    if validator:
        with writing(partial):
            _validator_file(partial).write_text(validator)
    return 0, response.length


def _discard(partial):
    partial.unlink(missing_ok=True)
    _validator_file(partial).unlink(missing_ok=True)


def _check_size(address, partial, size):
    if size is not None and size > MOST_BYTES:
        _discard(partial)
        raise ValueError(f"{shown(address)} sends more than {MOST_BYTES:,} bytes, which no published weights have.")


def _check_space(partial, total, received):
    free = shutil.disk_usage(partial.parent).free
    if total is not None and total - received > free:
        raise OSError(
            f"{partial.parent} has room for {free} bytes, and {total - received} are needed. Make room there, or set "
            f"the environment variable KERAS_VIT_CACHE to another folder."
        )


def _chunks(response, deadline):
    received, start = 0, time.monotonic()
    try:
        while data := response.read1(CHUNK_BYTES):
            yield data
            received, now = received + len(data), time.monotonic()
            if now > deadline:
                raise _InterruptedError(f"it took more than {LONGEST_SECONDS} seconds", retry=False)
            if now - start > STALL_SECONDS + received / SLOWEST_RATE:
                raise _InterruptedError(f"less than {SLOWEST_RATE} bytes a second arrive")
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(f"the connection broke ({error!r})") from error


def _progress(address, total):
    """A function that shows how many bytes there are."""
    if total is None or total < SMALLEST_SHOWN_BYTES:
        return lambda received: None
    import keras

    print(f"Downloading {shown(address)}")
    return keras.utils.Progbar(total, interval=1, unit_name="byte").update


def _checked_sum(address, partial, sha256, md5):
    """The SHA-256 of what has arrived, which is deleted if it is not what was expected or announced."""
    with partial.open("rb") as file:
        start = file.read(512).lstrip()
    # A safetensors file starts with eight bytes of its header's length: the first may be "<", the last are NUL.
    if not start or (start.startswith(b"<") and b"\0" not in start):
        _discard(partial)
        raise _web_page(address)
    actual = sha256_of(partial)
    for kind, found, expected in (
        ("SHA-256", actual, sha256),
        ("MD5", md5 and _digest(partial, _md5), md5),
    ):
        if expected and not found.startswith(expected.lower()):
            _discard(partial)
            raise ValueError(
                f"What {shown(address)} sent is not the expected file and was deleted: its {kind} is {found}, expected "
                f"{expected}. Try again; if it stays so, the file has been replaced, or the expected sum is wrong."
            )
    return actual


def _web_page(address):
    return ValueError(
        f"{shown(address)} sent a web page or nothing, not weights. Open it in a browser: the file itself may have "
        f"another address, or need a login; then download it there and pass its path."
    )


def sha256_of(path):
    """SHA-256 of a file, in hexadecimal digits."""
    return _digest(path, "sha256")


def _digest(path, method):
    with path.open("rb") as file:
        return hashlib.file_digest(file, method).hexdigest()


def _md5():
    return hashlib.md5(usedforsecurity=False)


@contextlib.contextmanager
def writing(path):
    """Says of an error of the file system what to do about it."""
    try:
        yield
    except TimeoutError:  # Of the lock.
        raise
    except OSError as error:
        raise OSError(
            f"{path} cannot be written: {error}. Make room or give permission there, or set the environment variable "
            f"KERAS_VIT_CACHE to another folder."
        ) from error
