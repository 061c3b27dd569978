"""A publisher's file server on this machine: real HTTP with Range and ETag, faults on demand."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from zoo.hub.author_files import AUTHOR_FILES, AuthorFile

PIECE = 16384  # bytes
NAME = "mocov2-r20-digits"  # what is published here in the tests
PATH = "/moco/moco_v2.pth.tar"


@dataclass
class Trouble:
    """What goes wrong with the next `times` GETs: a status, a broken connection, a flipped bit, or pauses."""

    kind: str  # "status", "break", "corrupt" or "slow"
    times: int
    status: int = 503
    wait: float = 0.0  # seconds between two pieces


@dataclass
class FileServer(ThreadingHTTPServer):
    files: dict[str, bytes] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)  # path -> where a redirect leads
    types: dict[str, str] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    log: list[str] = field(default_factory=list)  # "GET /path bytes=0-"

    daemon_threads = True

    def __post_init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()

    __hash__ = ThreadingHTTPServer.__hash__

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def requests(self, pattern: str) -> list[str]:
        return [line for line in self.log if re.search(pattern, line)]

    def trouble(self) -> Trouble | None:
        with self.lock:
            for trouble in self.troubles:
                if trouble.times:
                    trouble.times -= 1
                    return trouble
        return None

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error of the server."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FileServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.server.log.append(f"{self.command} {self.path} {self.headers.get('Range') or ''}".strip())
        trouble = self.server.trouble() if self.command == "GET" else None
        if self.path in self.server.moved:
            return self.head(302, {"Location": self.server.moved[self.path], "Content-Length": "0"})
        content = self.server.files.get(self.path)
        if content is None or (trouble and trouble.kind == "status"):
            return self.head(404 if content is None else trouble.status, {"Content-Length": "0"})
        first = re.match(r"bytes=(\d+)-", self.headers.get("Range") or "")
        part = content[int(first[1]) :] if first else content
        headers = {"Content-Length": str(len(part)), "ETag": f'"{hashlib.md5(content).hexdigest()}"'}
        headers["Content-Type"] = self.server.types.get(self.path, "binary/octet-stream")
        if first:
            headers["Content-Range"] = f"bytes {first[1]}-{len(content) - 1}/{len(content)}"
        self.head(206 if first else 200, headers)
        if self.command == "GET":
            self.send(part, trouble)
        return None

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def send(self, part: bytes, trouble: Trouble | None) -> None:
        kind = trouble.kind if trouble else ""
        if kind == "corrupt":
            middle = len(part) // 2
            part = part[:middle] + bytes([part[middle] ^ 1]) + part[middle + 1 :]
        if kind == "break":
            part = part[: len(part) // 2]
            self.close_connection = True
        for at in range(0, len(part), PIECE):
            self.wfile.write(part[at : at + PIECE])
            if trouble and trouble.wait:
                self.wfile.flush()
                threading.Event().wait(trouble.wait)


def state_hash(server: FileServer, monkeypatch: pytest.MonkeyPatch, digest: str, path: str = PATH) -> None:
    row = AuthorFile(server.url + path, 67.7, "CC-BY-NC-4.0", "moco", "somebody/moco README.md", digest)
    monkeypatch.setitem(AUTHOR_FILES, NAME, row)


@contextmanager
def file_server() -> Iterator[FileServer]:
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
