"""A web server on this machine that answers as well or as badly as a test asks."""

import contextlib
import http.server
import re
import threading


class FileServer(http.server.ThreadingHTTPServer):
    """Answers the requests for a path with the functions in `answers[path]` in turn, the last of them from then on.

    `requests` holds the path and headers of each request, in order.
    """

    def __init__(self):
        super().__init__(("localhost", 0), _Handler)
        self.answers = {}
        self.requests = []

    def address(self, path):
        return f"http://localhost:{self.server_port}{path}"

    def ranges(self):
        """What part each request asked for."""
        return [headers["Range"] for _, headers in self.requests]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.requests.append((self.path, dict(self.headers) | {"Range": self.headers["Range"]}))
        answers = self.server.answers[self.path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        with contextlib.suppress(ConnectionError):
            answer(self)

    def reply(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def running():
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def file(contents, validator=("ETag", '"one"'), limit=None, before_end=None, **headers):
    """An answer with a file, or with the part of it that is asked for, as RFC 9110 has it.

    Args:
        contents: The whole file.
        validator: Header that tells versions apart, or `None`.
        limit: Bytes after which the connection ends, whatever was announced.
        before_end: Function of the handler, called before the connection ends.
        headers: Others, or other values.
    """

    def answer(handler):
        wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        is_same = handler.headers["If-Range"] in (None, validator and validator[1])
        start = int(wanted[1]) if wanted and is_same else 0
        extent = {"Content-Range": f"bytes {start}-{len(contents) - 1}/{len(contents)}"} if wanted and is_same else {}
        status = 206 if extent else 200
        if extent and start >= len(contents):
            status, extent = 416, {"Content-Range": f"bytes */{len(contents)}"}
        body = contents[start:]
        lines = {"Content-Length": str(len(body)), "Content-Type": "application/octet-stream"} | extent
        lines |= dict([validator] if validator else [])
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        handler.reply(status, body[:limit], lines)
        if before_end:
            before_end(handler)

    return answer


def status(code, **headers):
    """An answer without a file."""
    lines = {"Content-Length": "0"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.reply(code, b"", lines)


def without_ranges(contents, limit=None):
    """An answer with the whole file, whatever is asked for."""
    lines = {"Content-Length": str(len(contents)), "ETag": '"one"'}
    return lambda handler: handler.reply(200, contents[:limit], lines)


def chunked(contents, complete=True):
    """An answer that does not announce its length."""
    body = b"%x\r\n%b\r\n" % (len(contents), contents) + (b"0\r\n\r\n" if complete else b"")
    return lambda handler: handler.reply(200, body, {"Transfer-Encoding": "chunked"})


def slowly(contents, pause, headers=False):
    """An answer that comes byte by byte: the file, or also its headers."""

    def answer(handler):
        lines = f"HTTP/1.1 200 OK\r\nContent-Length: {len(contents)}\r\nETag: {'1' * 100}\r\n\r\n".encode()
        if not headers:
            handler.wfile.write(lines)
        for byte in lines * headers + contents:
            handler.wfile.write(bytes([byte]))
            pause()

    return answer


def until_left(handler):
    """Waits until the other side closes the connection."""
    handler.rfile.read(1)
