"""An S3 server for tests and measurements: moto's, with conditions that hold, faults by order, and
the speed of a network.

    python scripts/data/object_server.py --port 0 --latency 0.03 --bandwidth 125e6

prints its address. Objects are in memory. What moto does not do, or not fast enough, is done here:
two conditional writes of one key at once, a request that fails as it was told to, the bodies of GET
at the speed of memory, and the headers of Google Cloud Storage, so that its clients can be tested
too. `ObjectServer` starts it as a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import io
import itertools
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, quote, unquote, unquote_to_bytes
from xml.sax.saxutils import escape

CONTROL = "/_control/"
"""Where the server takes orders. No bucket may have such a name."""

PIECE = 64 << 10
"""Bytes that a connection sends before another one has its turn, where the bandwidth is limited."""

CUT_OFF = struct.pack("ii", 1, 0)
"""SO_LINGER: a close then resets the connection."""

REFUSALS = {
    "503": (503, "SlowDown", "Please reduce your request rate."),
    "403": (403, "AccessDenied", "Access Denied"),
    "404": (404, "NoSuchKey", "The specified key does not exist."),
    "412": (412, "PreconditionFailed", "At least one of the conditions did not hold."),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "redirect": (
        301,
        "PermanentRedirect",
        "The bucket you are attempting to access must be addressed using another endpoint.",
    ),
    "conflict": (
        409,
        "ConditionalRequestConflict",
        "A conflicting operation occurred during the request.",
    ),
}
"""The faults that are an answer: the status, the code and the message of S3."""

KINDS = (*REFUSALS, "slow", "cut", "reset", "lost", "unconditional", "page", "short", "garbled")

PAGE = b"<!DOCTYPE html><html><body>Sign in to use this network</body></html>"
"""What a proxy sends in place of an object."""

MISSING = {
    "NoSuchKey": "The specified key does not exist.",
    "NoSuchBucket": "The specified bucket does not exist.",
}


@dataclass
class Fault:
    """What is to go wrong with the requests of one method whose keys match a pattern.

    `method` is one of those in the log, or *. `times` is how many of them it befalls (None: all),
    `share` which part of them, drawn with `seed`. Kinds: the ones of REFUSALS; slow: answered after
    `seconds`; cut: the connection ends after `size` bytes of the body; reset: not done, and the
    connection is reset; lost: done, and the connection is closed without an answer; unconditional:
    done as if the request had no conditions; page: a page of HTML comes, whatever was asked for;
    short: no more than `size` bytes come, and the headers say so; garbled: as many bytes as there
    should be, and all are wrong.
    """

    kind: str
    method: str = "*"
    key: str = "*"
    times: int | None = None
    share: float = 1.0
    seed: int = 0
    seconds: float = 1.0
    size: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no fault is called {self.kind!r}; there are {', '.join(KINDS)}")
        self._random = random.Random(self.seed)

    def befalls(self, method: str, key: str) -> bool:
        if (
            self.method not in ("*", method)
            or not fnmatch.fnmatchcase(key, self.key)
            or self.times == 0
        ):
            return False
        if self._random.random() >= self.share:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class Line:
    """The network: so many bytes per second for all connections together."""

    def __init__(self, rate: float | None) -> None:
        self.limited = rate is not None
        self._rate, self._free, self._lock = rate, 0.0, threading.Lock()

    def wait(self, size: int) -> None:
        """Return when these bytes have passed."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now) + size / self._rate
            delay = self._free - now
        time.sleep(delay)


class Objects:
    """The objects, which moto keeps; their bodies and generations are kept beside each of them."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import create_backend_app
        from moto.s3.models import s3_backends

        self._application = create_backend_app("s3")
        self._backend = s3_backends["123456789012"]["aws"]
        self._generations = itertools.count(1)
        self._lock = threading.Lock()

    def find(self, bucket: str, key: str) -> Any:
        """Return moto's record of an object; raises KeyError with the code of S3."""
        if bucket not in self._backend.buckets:
            raise KeyError("NoSuchBucket")
        found = self._backend.buckets[bucket].keys.get(key)
        if found is None or not hasattr(type(found), "value"):  # a mark that it was deleted
            raise KeyError("NoSuchKey")
        return found

    def body(self, found: Any) -> bytes:
        """Return the bytes of an object: moto reads them from a file each time."""
        if not hasattr(found, "shardctl_body"):
            found.shardctl_body = found.value
        body: bytes = found.shardctl_body
        return body

    def generation(self, found: Any) -> str:
        """Return what Google Cloud Storage calls the generation of an object: another number each
        time that it is written."""
        with self._lock:
            if not hasattr(found, "shardctl_generation"):
                found.shardctl_generation = str(next(self._generations))
        return str(found.shardctl_generation)

    def call(self, environment: dict[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
        """Let moto answer a request. One at a time may write, so that a condition still holds when
        the object is written."""
        answer: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], _: Any = None) -> Any:
            answer[:] = [int(status.split()[0]), headers]
            return lambda _: None

        reads = environment["REQUEST_METHOD"] in ("GET", "HEAD")
        with contextlib.nullcontext() if reads else self._writing:
            parts = self._application(environment, start)
            body = b"".join(parts)
            if hasattr(parts, "close"):
                parts.close()
        return answer[0], answer[1], body

    _writing = threading.Lock()


class Server(ThreadingHTTPServer):
    """The server of one address: objects, faults, log."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, latency: float, bandwidth: float | None) -> None:
        self.objects = Objects()
        self.line, self.latency = Line(bandwidth), latency
        self.faults: list[Fault] = []
        self.log: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(
            sys.exception() if sys.version_info >= (3, 11) else sys.exc_info()[1], ConnectionError
        ):
            super().handle_error(request, client_address)


class Request:
    """One request: where it goes, what it asks for, and its name in the log."""

    def __init__(self, verb: str, target: str, headers: dict[str, str], body: bytes) -> None:
        path, _, self.query = target.partition("?")
        self.path = encoded_alike(path)
        self.target = f"{self.path}?{self.query}" if self.query else self.path
        self.verb, self.headers, self.body = verb, headers, body
        self.bucket, _, self.key = unquote(path).lstrip("/").partition("/")
        query = parse_qs(self.query, keep_blank_values=True)
        self.method, self.prefix = self._method(query), "".join(query.get("prefix", []))

    def _method(self, query: Mapping[str, list[str]]) -> str:
        if not self.key:
            listing = self.verb == "GET" and not query.keys() & {
                "location",
                "versioning",
                "uploads",
            }
            return "LIST" if listing else "DELETE" if "delete" in query else self.verb
        if "uploads" in query:
            return "INITIATE"
        if "uploadId" in query:
            return {"PUT": "PART", "POST": "COMPLETE", "DELETE": "ABORT"}.get(self.verb, self.verb)
        if "x-amz-copy-source" in self.headers:
            return "COPY"
        return self.verb

    def environment(self) -> dict[str, Any]:
        """Return it as WSGI has it."""
        host, _, port = self.headers.get("host", "127.0.0.1:80").partition(":")
        return {
            "REQUEST_METHOD": self.verb,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(self.path).decode("latin-1"),
            "QUERY_STRING": self.query,
            "REQUEST_URI": self.target,
            "RAW_URI": self.target,
            "SERVER_NAME": host,
            "SERVER_PORT": port or "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1",
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(self.body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(self.body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            **{
                f"HTTP_{name.upper().replace('-', '_')}": value
                for name, value in self.headers.items()
            },
        }


@dataclass
class Answer:
    """What is sent back. `size` is the length that the headers say, where it is another one than
    that of the body."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes | memoryview = b""
    size: int | None = None

    @classmethod
    def error(cls, status: int, code: str, message: str, resource: str) -> Answer:
        text = f"<Error><Code>{code}</Code><Message>{message}</Message><Resource>{escape(resource)}</Resource></Error>"
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
        return cls(status, [("Content-Type", "application/xml")], body)


class Handler(BaseHTTPRequestHandler):
    """One connection, for as many requests as the client sends over it."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: requests are in the log."""

    def do_GET(self) -> None:
        body = self._body()
        if self.path.startswith(CONTROL):
            self._send(self._control(body), None)
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        copied = headers.get("x-goog-copy-source")
        if copied:
            headers["x-amz-copy-source"] = encoded_alike(copied)
        request = Request(self.command, self.path, headers, body)
        if self.server.latency:
            time.sleep(self.server.latency)
        self._serve(request, self._fault(request))

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            size = int(self.headers.get("Content-Length", 0))
            if not self.server.line.limited:
                return self.rfile.read(size)
            pieces = []
            for at in range(0, size, PIECE):
                pieces.append(self.rfile.read(min(PIECE, size - at)))
                self.server.line.wait(len(pieces[-1]))
            return b"".join(pieces)
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _fault(self, request: Request) -> Fault | None:
        with self.server.lock:
            return next(
                (
                    fault
                    for fault in self.server.faults
                    if fault.befalls(request.method, request.key)
                ),
                None,
            )

    def _serve(self, request: Request, fault: Fault | None) -> None:
        kind = fault.kind if fault else ""
        entry = self._note(request, kind)
        if kind == "reset":
            self._reset()
            return
        if kind == "slow" and fault:
            time.sleep(fault.seconds)
        if kind == "unconditional":
            for name in ("if-match", "if-none-match", "x-goog-if-generation-match"):
                request.headers.pop(name, None)
        answer = (
            Answer.error(*REFUSALS[kind], request.path)
            if kind in REFUSALS
            else self._answer(request)
        )
        if kind == "page":
            answer = Answer(200, [("Content-Type", "text/html")], PAGE)
        elif kind == "short" and fault:
            answer.body, answer.size = (
                answer.body[: fault.size],
                min(fault.size, answer.size or len(answer.body)),
            )
        elif kind == "garbled":
            answer.body = bytes(byte ^ 255 for byte in answer.body)
        entry["status"], entry["time"] = answer.status, time.monotonic()
        if kind == "lost":
            self.close_connection = True
        else:
            self._send(answer, fault.size if fault and kind == "cut" else None)

    def _note(self, request: Request, kind: str) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "method": request.method,
            "bucket": request.bucket,
            "key": request.key,
            "prefix": request.prefix,
            "range": request.headers.get("range"),
            "size": len(request.body),
            "authorization": request.headers.get("authorization"),
            "status": None,
            "fault": kind,
            "time": time.monotonic(),
        }
        with self.server.lock:
            self.server.log.append(entry)
        return entry

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CUT_OFF)
        self.connection.close()
        self.close_connection = True

    def _answer(self, request: Request) -> Answer:
        if request.verb in ("GET", "HEAD") and request.key and not request.query:
            return self._read(request)
        generation = request.headers.pop("x-goog-if-generation-match", None)
        objects = self.server.objects
        with objects_written_one_at_a_time if generation else contextlib.nullcontext():
            if generation == "0":
                request.headers["if-none-match"] = "*"
            elif generation:
                try:
                    found = objects.find(request.bucket, request.key)
                except KeyError:
                    found = None
                if found is None or objects.generation(found) != generation:
                    return Answer.error(
                        412, "PreconditionFailed", "The generation is another one.", request.path
                    )
            if request.method == "DELETE" and request.headers.get("authorization", "").startswith(
                "Bearer"
            ):
                try:
                    objects.find(request.bucket, request.key)
                except KeyError as error:  # Google says so, and S3 does not
                    return Answer.error(404, error.args[0], MISSING[error.args[0]], request.path)
            status, headers, body = objects.call(request.environment())
        if status < 300 and request.method in ("PUT", "COMPLETE", "COPY"):
            with contextlib.suppress(KeyError):
                headers = [
                    *headers,
                    (
                        "x-goog-generation",
                        objects.generation(objects.find(request.bucket, request.key)),
                    ),
                ]
        return Answer(status, headers, body)

    def _read(self, request: Request) -> Answer:
        """Answer GET and HEAD of an object, whole or a range, with its bytes in memory."""
        objects = self.server.objects
        try:
            found = objects.find(request.bucket, request.key)
        except KeyError as error:
            code = error.args[0]
            answer = Answer.error(404, code, MISSING[code], request.path)
            return (
                answer
                if request.verb == "GET"
                else Answer(404, answer.headers, b"", len(answer.body))
            )
        body, headers = objects.body(found), request.headers
        if headers.get("if-match", found.etag) not in ("*", found.etag):
            return Answer.error(
                412,
                "PreconditionFailed",
                "At least one of the conditions did not hold.",
                request.path,
            )
        if headers.get("if-none-match") in ("*", found.etag):
            return Answer(304, [("ETag", found.etag)])
        sent = [
            ("ETag", found.etag),
            ("Last-Modified", found.last_modified_RFC1123),
            ("Accept-Ranges", "bytes"),
            ("Content-Type", "application/octet-stream"),
            ("x-goog-generation", objects.generation(found)),
        ]
        start, end, status = 0, len(body), 200
        if "range" in headers:
            try:
                start, end = stretch(headers["range"], len(body))
            except ValueError:
                return Answer.error(
                    416, "InvalidRange", "The requested range is not satisfiable", request.path
                )
            status = 206
            sent.append(("Content-Range", f"bytes {start}-{end - 1}/{len(body)}"))
        if request.verb == "HEAD":
            return Answer(status, sent, b"", end - start)
        return Answer(status, sent, memoryview(body)[start:end])

    def _send(self, answer: Answer, cut: int | None) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in (
                "content-length",
                "connection",
                "transfer-encoding",
                "date",
                "server",
            ):
                self.send_header(name, value)
        body = memoryview(answer.body)
        if answer.status not in (204, 304):
            length = len(body) if answer.size is None else answer.size
            if self.command == "HEAD" and answer.size is None and not body:  # moto's own
                length = int(
                    next(
                        (
                            value
                            for name, value in answer.headers
                            if name.lower() == "content-length"
                        ),
                        "0",
                    )
                )
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "HEAD":
            body = body[:0]
        if cut is not None:
            body = body[:cut]
            self.close_connection = True
        if not body:
            return
        self.wfile.flush()
        if not self.server.line.limited:
            self.connection.sendall(body)
            return
        for at in range(0, len(body), PIECE):
            self.server.line.wait(len(body[at : at + PIECE]))
            self.connection.sendall(body[at : at + PIECE])

    def _control(self, body: bytes) -> Answer:
        what = self.path[len(CONTROL) :]
        with self.server.lock:
            if what == "fault":
                self.server.faults.append(Fault(**json.loads(body)))
            elif what == "clear":
                self.server.faults.clear()
                self.server.log.clear()
            elif what == "writes":
                writes = [
                    entry["key"]
                    for entry in self.server.log
                    if entry["method"] not in ("GET", "HEAD", "LIST")
                ]
                counts = len(writes), sum(key.endswith("manifest.json") for key in writes)
                return Answer(
                    200, [("Content-Type", "application/json")], json.dumps(counts).encode()
                )
            elif what == "log":
                return Answer(
                    200,
                    [("Content-Type", "application/json")],
                    json.dumps(self.server.log).encode(),
                )
        return Answer(204, [])


objects_written_one_at_a_time = threading.Lock()
"""Held from the look at a generation until the object is written. All writers of Google's clients
give one."""


def encoded_alike(path: str) -> str:
    """Return a path with the usual characters as they are: Google's clients encode each that is no
    letter, and / too."""
    return quote(unquote(path), safe="/~")


def stretch(text: str, size: int) -> tuple[int, int]:
    """Return where a range of HTTP begins and ends in so many bytes; raises ValueError for one
    outside of them."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    if not match or not (match[1] or match[2]):
        raise ValueError(text)
    if not match[1]:
        return max(0, size - int(match[2])), size
    start, end = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    if start >= end:
        raise ValueError(text)
    return start, end


class ObjectServer:
    """The server as a process, while the block runs: with an address, and orders for it."""

    def __init__(self, latency: float = 0.0, bandwidth: float | None = None) -> None:
        command = [sys.executable, __file__, "--with-parent", "--latency", str(latency)]
        self._command = command if bandwidth is None else [*command, "--bandwidth", str(bandwidth)]

    def __enter__(self) -> ObjectServer:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            self.__exit__(None, None, None)
            raise RuntimeError("the object server did not start; what it printed is above")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead S3's and Google's clients to this server."""
        nobody = {
            "gcs_base_url": self.address,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "GOOGLE_ALLOW_HTTP": "true",
            "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(nobody),
        }

    def make_bucket(self, name: str) -> str:
        """Make an empty bucket, and return its name."""
        self._call("PUT", f"/{name}")
        return name

    def fault(self, kind: str, **details: Any) -> None:
        """Order a fault; the details are the fields of `Fault`."""
        self._call("POST", f"{CONTROL}fault", json.dumps(asdict(Fault(kind, **details))).encode())

    def clear(self) -> None:
        """Take back all faults, and forget the log."""
        self._call("POST", f"{CONTROL}clear")

    def log(self) -> list[dict[str, Any]]:
        """Return the requests so far: method (LIST, PART … too), bucket, key, of a LIST its prefix, range, status (None:
        not answered), the fault that befell them ("": none), and when they were done, by the
        monotonic clock."""
        requests: list[dict[str, Any]] = json.loads(self._call("GET", f"{CONTROL}log"))
        return requests

    def writes(self) -> tuple[int, int]:
        """Return how many requests of the log were to write, and how many of those were for a
        manifest.json."""
        count, manifests = json.loads(self._call("GET", f"{CONTROL}writes"))
        return count, manifests

    def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        request = urllib.request.Request(self.address + path, data=body or None, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=60
        ) as answer:
            data: bytes = answer.read()
            return data


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument(
        "--bandwidth", type=float, help="bytes per second of all connections together"
    )
    parser.add_argument(
        "--with-parent", action="store_true", help="end when standard input is closed"
    )
    chosen = parser.parse_args(None if arguments is None else list(arguments))
    server = Server(chosen.port, chosen.latency, chosen.bandwidth)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    if chosen.with_parent:
        threading.Thread(target=_end_with_input, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


def _end_with_input() -> None:
    with contextlib.suppress(OSError):
        sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
