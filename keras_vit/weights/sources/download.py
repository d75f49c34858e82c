"""Downloads one file over HTTP, and tries again if the connection fails."""

import base64
import contextlib
import functools
import hashlib
import http.client
import json
import os
import pathlib
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
"""Maximum number of seconds to wait for the complete headers of a response, and then for each next part of the data."""
SLOWEST_RATE = 1_000
"""Minimum average rate in bytes per second. Slower attempts are aborted after `STALL_SECONDS`."""
LONGEST_SECONDS = 24 * 3600
"""Maximum duration of a download. If it takes longer, a later call can resume it."""
MOST_BYTES = 2**35
"""Maximum size of a file. The largest published file has a quarter of this size."""
PAUSES = (1, 2, 4, 8)
"""Seconds to wait before each new attempt."""
LONGEST_PAUSE = 60
"""Maximum pause in seconds that a server can request with Retry-After. After a longer one, there is no new attempt."""
PASSING_STATUSES = (429, 500, 502, 503, 504)
FORBIDDEN_STATUSES = (401, 403)
"""Answers of servers that send a file only to users with permission."""
CHUNK_BYTES = 2**20
RECORD_BYTES = 2**26
"""Number of received bytes after which the record of a partial file is updated. See `_record`."""
SMALLEST_SHOWN_BYTES = 10**6
"""Downloads of at least this size show a progress bar."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_MD5 = functools.partial(hashlib.md5, usedforsecurity=False)


class _InterruptedError(Exception):
    """Failure of one attempt, caused by the server or the network. `retry`: whether another attempt may succeed."""

    def __init__(self, reason, retry=True, pause=0):
        super().__init__(reason)
        self.retry = retry
        self.pause = pause


def download(address, path, sha256=None):
    """Downloads a file. It is renamed to its final name after it is complete and verified.

    Until then, the data is in `<name>.partial` in the same folder. A later call resumes the download from this file,
    unless the file has changed.

    Args:
        address: `https://…`, or `http://…` of a server on this machine.
        path: `pathlib.Path` of the new file in an existing folder. Only one process at a time may download to it.
        sha256: SHA-256 of the file, or its first digits, or `None`.

    Returns:
        Dictionary with `sha256`, which is computed from the file, and with `etag`, `last_modified` and `md5` from the
        server's headers. A missing header is `None`.

    Raises:
        ConnectionError: If the server cannot be reached, or the connection breaks repeatedly.
        OSError: If the server returns an error, or the folder cannot be written.
        ValueError: If the file is not the expected one.
    """
    partial = path.with_name(f"{path.name}.partial")
    deadline = time.monotonic() + LONGEST_SECONDS
    part = _checked_part(partial)
    for pause in (*PAUSES, None):
        try:
            origin = _receive(address, partial, part, sha256, deadline)
            break
        except _InterruptedError as error:
            if pause is None or not error.retry:
                status = getattr(error.__cause__, "code", None)  # Of an `urllib.error.HTTPError`.
                advice = "Check the address, or call again later: the download then resumes"
                if status in FORBIDDEN_STATUSES:
                    advice = _advice_for_permission(address)
                raise (OSError if status else ConnectionError)(
                    f"Could not download {redacted(address)}: {error}. {advice}. Or download the file elsewhere, and "
                    f"put it at {path} or pass its path."
                ) from error
            time.sleep(max(pause, error.pause))
    origin["sha256"] = _checked_sum(address, partial, sha256, origin["md5"])
    with writing(path):
        os.replace(partial, path)
        sync(path.parent)
        _discard(partial)
    return origin


def _receive(address, partial, part, sha256, deadline):
    """Makes one request for the rest of a partial file, and updates `part`. Returns etag, last_modified and md5."""
    with _open(address, partial, _range_headers(partial, part["validator"], sha256)) as response:
        received, total = _extent(response, partial)
        _check_size(address, partial, total)
        _check_space(partial, total, received)
        if not received:
            part |= {"digest": hashlib.sha256(), "validator": _validator(response.headers)}
        show = _progress(address, total)
        with writing(partial), partial.open("ab") as file, _recorded(file, **part) as record:
            for data in _chunks(response, deadline):
                file.write(data)
                part["digest"].update(data)
                received += len(data)
                show(received)
                if received > MOST_BYTES:
                    break
                if received % RECORD_BYTES < len(data):
                    record()
    _check_size(address, partial, received)
    if total not in (None, received):
        raise _InterruptedError(f"the connection ended after {received} of {total} bytes")
    headers = response.headers
    return {"etag": headers["ETag"], "last_modified": headers["Last-Modified"], "md5": _md5_of(headers)}


def _md5_of(headers):
    """MD5 of the file in hexadecimal digits if Google's storage sent it in the headers, otherwise `None`."""
    if headers.get("x-goog-stored-content-encoding", "identity") != "identity":
        return None  # The header contains the MD5 of the compressed file.
    match = re.search(r"\bmd5=([\w+/]{22}==)", ",".join(headers.get_all("x-goog-hash", [])))
    return match and base64.b64decode(match[1]).hex()


def advice_for_gated(repository):
    """How to get permission to download a gated or private repository `"owner/name"` of the Hugging Face Hub."""
    return (
        f"If the weights are gated, open https://huggingface.co/{repository} in a browser, log in and accept their "
        f"licence. For gated and private weights, create an access token in the settings of your account, and set the "
        f"environment variable HF_TOKEN to it or call huggingface_hub.login()"
    )


def _advice_for_permission(address):
    repository = re.match(r"https://huggingface\.co/([^/]+/[^/]+)/resolve/", address)
    if repository is None:
        return "The server sends this file only to users with permission, for example after they have logged in"
    return f"{advice_for_gated(repository[1])}. Then pass 'hf://{repository[1]}'"


def redacted(address):
    """An address without its password and without its query, which may contain a signature."""
    if "://" not in address:
        return address
    return re.sub(r"(?<=://)[^/]*@", "", re.split(r"[?#]", address, maxsplit=1)[0])


def is_local(address):
    """Whether an address is `http://…` of a server on this machine, which is safe although it is not encrypted."""
    parts = urllib.parse.urlsplit(address)
    return parts.scheme == "http" and parts.hostname in LOCAL_HOSTS


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects only to https. A server on this machine may also redirect to this machine."""

    def redirect_request(self, request, file, code, message, headers, url):
        is_https = urllib.parse.urlsplit(url).scheme == "https"
        if not is_https and not (is_local(request.full_url) and is_local(url)):
            raise urllib.error.HTTPError(
                request.full_url, code, f"redirects to {redacted(url)}, not https", headers, file
            )
        return super().redirect_request(request, file, code, message, headers, url)

    def http_error_302(self, request, file, code, message, headers):
        try:
            return super().http_error_302(request, file, code, message, headers)
        except ValueError as error:
            reason = f"redirects to an invalid address ({error})"
            raise urllib.error.HTTPError(request.full_url, code, reason, headers, file) from error

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _PunctualConnection(http.client.HTTPConnection):
    """Closes the connection after `STALL_SECONDS` without complete headers, even if single bytes keep arriving."""

    def getresponse(self):
        is_late, connection = threading.Event(), self.sock

        def end():
            is_late.set()
            with contextlib.suppress(OSError):  # The connection may already be closed.
                connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(STALL_SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()
            if is_late.is_set():  # A response cut off by `end` may look complete.
                raise http.client.HTTPException(f"its headers took more than {STALL_SECONDS} seconds")


class _PunctualSecureConnection(_PunctualConnection, http.client.HTTPSConnection):
    pass


class _Connections(urllib.request.HTTPHandler):
    def http_open(self, request):
        return self.do_open(_PunctualConnection, request)


class _SecureConnections(urllib.request.HTTPSHandler):
    def https_open(self, request):
        return self.do_open(_PunctualSecureConnection, request)


def _open(address, partial, range_headers):
    request = urllib.request.Request(address, headers={"User-Agent": "keras_vit", **range_headers})
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
        # If nothing was received yet, this machine is probably offline, so there is no retry.
        is_unreachable = isinstance(error, urllib.error.URLError) and not partial.exists()
        raise _InterruptedError(f"could not reach the server ({error})", retry=not is_unreachable) from error


def _record_file(partial):
    return partial.with_name(f"{partial.name}.validator")


@contextlib.contextmanager
def _recorded(file, validator, digest):
    """Records the size and SHA-256 of a partial file now, at the end, and whenever the yielded function is called.

    The record also contains the ETag or Last-Modified date of the file on the server (RFC 9110, section 13.1.5).
    """
    path = _record_file(pathlib.Path(file.name))

    def record():
        file.flush()
        os.fsync(file.fileno())
        text = json.dumps({"validator": validator, "size": file.tell(), "sha256": digest.hexdigest()})
        # The older, shorter text is overwritten, which also succeeds if the disk is full.
        with path.open("r+" if path.exists() else "w") as stored:
            stored.write(text)

    record()
    try:
        yield record
    finally:
        record()


def _checked_part(partial):
    """{"digest": SHA-256 object, "validator"} of a partial file, which is deleted if it does not start as recorded."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # There is no record, or it is damaged.
        record = json.loads(_record_file(partial).read_text())
        if record["size"] <= partial.stat().st_size:
            os.truncate(partial, record["size"])  # If the process was killed, the last bytes are not in the record.
            with partial.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256")
            if digest.hexdigest() == record["sha256"]:
                return {"digest": digest, "validator": record["validator"]}
    _discard(partial)
    return {"digest": hashlib.sha256(), "validator": None}


def _range_headers(partial, validator, sha256):
    """Headers that request the rest of a partial file, or {} if no validator or SHA-256 can verify the result."""
    if not partial.exists() or not (validator or sha256):
        return {}
    return {"Range": f"bytes={partial.stat().st_size}-"} | ({"If-Range": validator} if validator else {})


def _validator(headers):
    """ETag or Last-Modified date of a file if it identifies the bytes of the file, otherwise `None`."""
    etag = headers.get("ETag", "")
    validator = headers.get("Last-Modified") if etag.startswith("W/") or not etag else etag
    return validator if re.fullmatch(r"[ -~]+", validator or "") else None  # Other characters cannot be sent back.


def _extent(response, partial):
    """(offset of the response in the file, size of the file or `None`). If the offset is 0, `partial` is deleted."""
    if "html" in response.headers.get_content_subtype():
        raise _web_page(response.url)
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        size = partial.stat().st_size if partial.exists() else 0
        extent = re.fullmatch(r"bytes (\d{1,18})-\d+/(\d{1,18})", response.headers.get("Content-Range", ""))
        if extent and int(extent[1]) == size:
            return size, int(extent[2])
        _discard(partial)
        raise _InterruptedError(f"the server did not send the part that starts at byte {size}")
    _discard(partial)
    return 0, response.length


def _discard(partial):
    partial.unlink(missing_ok=True)
    _record_file(partial).unlink(missing_ok=True)


def _check_size(address, partial, size):
    if size is not None and size > MOST_BYTES:
        _discard(partial)
        raise ValueError(f"{redacted(address)} sends more than {MOST_BYTES:,} bytes. No published file is so large.")


def _check_space(partial, total, received):
    free = shutil.disk_usage(partial.parent).free
    if total is not None and total - received > free:
        raise OSError(
            f"{partial.parent} has {free} bytes of free space, and {total - received} are needed. Free some space, or "
            f"set the environment variable KERAS_VIT_CACHE to another folder."
        )


def _chunks(response, deadline):
    received, start = 0, time.monotonic()
    try:
        while data := response.read1(CHUNK_BYTES):
            yield data
            received, now = received + len(data), time.monotonic()
            if now > deadline:
                raise _InterruptedError(f"the download took more than {LONGEST_SECONDS} seconds", retry=False)
            if now - start > STALL_SECONDS + received / SLOWEST_RATE:
                raise _InterruptedError(f"the server sends less than {SLOWEST_RATE} bytes per second")
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(f"the connection broke ({error!r})") from error


def _progress(address, total):
    """Returns a function that updates a progress bar. Its argument is the number of bytes received so far."""
    if total is None or total < SMALLEST_SHOWN_BYTES:
        return lambda received: None
    import keras

    print(f"Downloading {redacted(address)}")
    return keras.utils.Progbar(total, interval=1, unit_name="byte").update


def _checked_sum(address, partial, sha256, md5):
    """SHA-256 of the received file. The file is deleted if its SHA-256 or MD5 is not as expected."""
    with partial.open("rb") as file:
        start = file.read(512).lstrip()
    # A safetensors file may also start with "<", but its first eight bytes, the header's length, contain a NUL.
    if not start or (start.startswith(b"<") and b"\0" not in start):
        _discard(partial)
        raise _web_page(address)
    actual = digest_of(partial)
    sums = ("SHA-256", actual, sha256), ("MD5", md5 and digest_of(partial, _MD5), md5)
    for kind, received, expected in sums:
        if expected and not received.startswith(expected.lower()):
            _discard(partial)
            raise ValueError(
                f"{redacted(address)} did not send the expected file: its {kind} is {received}, expected {expected}. "
                f"The file was deleted. Try again. If the error occurs again, the file on the server has changed, or "
                f"the expected {kind} is wrong."
            )
    return actual


def _web_page(address):
    return ValueError(
        f"{redacted(address)} sent a web page or an empty file instead of weights. Open the address in a browser. "
        f"The file may have another address or require a login. Download it in the browser and pass its path."
    )


def digest_of(path, method="sha256"):
    """Digest of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, method).hexdigest()


@contextlib.contextmanager
def writing(path):
    """Adds advice to file-system errors that occur while `path` is written."""
    try:
        yield
    except TimeoutError:  # `filelock` raises this error if another process has the lock.
        raise
    except OSError as error:
        raise OSError(
            f"{path} cannot be written: {error}. Free some space or grant permission there, or set the environment "
            f"variable KERAS_VIT_CACHE to another folder."
        ) from error
