"""A local web server with correct and faulty answers for tests."""

import contextlib
import http.server
import re
import threading


class FileServer(http.server.ThreadingHTTPServer):
    """Answers the requests for a path with the functions in `answers[path]` in turn. The last function is repeated.

    `requests` contains the path and headers of each request, in order.
    """

    def __init__(self):
        super().__init__(("localhost", 0), _Handler)
        self.answers = {}
        self.requests = []

    def address(self, path):
        return f"http://localhost:{self.server_port}{path}"

    def ranges(self):
        """The requested byte range of each request."""
        return [headers["Range"] for _, headers in self.requests]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.requests.append((self.path, dict(self.headers) | {"Range": self.headers["Range"]}))
        answers = self.server.answers[self.path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        with contextlib.suppress(ConnectionError):
            answer(self)

    do_HEAD = do_GET  # noqa: N815

    def reply(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
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
    """An answer with a file, or with its requested range according to RFC 9110.

    Args:
        contents: The whole file.
        validator: Header that identifies the file's version, or `None`.
        limit: Number of bytes after which the connection ends, whatever length was announced.
        before_end: Function (handler) that is called before the connection ends.
        headers: Additional or changed headers.
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
    """An answer with the whole file, whatever range is requested."""
    lines = {"Content-Length": str(len(contents)), "ETag": '"one"'}
    return lambda handler: handler.reply(200, contents[:limit], lines)


def chunked(contents, complete=True):
    """An answer without a Content-Length header."""
    body = b"%x\r\n%b\r\n" % (len(contents), contents) + (b"0\r\n\r\n" if complete else b"")
    return lambda handler: handler.reply(200, body, {"Transfer-Encoding": "chunked"})


def slowly(contents, pause, headers=False):
    """An answer that sends the file, and optionally its headers, byte by byte."""

    def answer(handler):
        lines = f"HTTP/1.1 200 OK\r\nContent-Length: {len(contents)}\r\nETag: {'1' * 100}\r\n\r\n".encode()
        if not headers:
            handler.wfile.write(lines)
        for byte in lines * headers + contents:
            handler.wfile.write(bytes([byte]))
            pause()

    return answer


def until_left(handler):
    """Waits until the client closes the connection."""
    handler.rfile.read(1)
