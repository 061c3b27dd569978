"""Requests, servers, and the promises of every error, for all tests of `serve`."""

import base64
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PNG = {"content-type": "image/png"}
JSON = {"content-type": "application/json"}
TOLERANCE = 1e-5  # of float32 sums in another order, relative to the largest value


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def files(*contents: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (f"{number} 🙂.png", content)) for number, content in enumerate(contents)]


def refused(response: Any, status: int, code: str, *, index: int | None = None, says: str = "") -> dict[str, Any]:
    """The error of a response, after every promise about its shape was checked."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json"), response.text
    assert response.json().keys() == {"error"}
    error = response.json()["error"]
    assert error.keys() == {"code", "message", "param", "index", "request_id"}
    assert (error["code"], error["index"]) == (code, index), error
    assert says in error["message"]
    assert "Traceback" not in error["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    retry_after = response.headers.get("retry-after")
    assert (retry_after is not None) == (status in (429, 503))
    assert retry_after is None or 1 <= int(retry_after) <= 8
    return error


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises width x height black pixels, a few bytes long."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(1000))), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(url: str, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):
                return
        except OSError:
            assert server.poll() is None, "the server died"
            time.sleep(0.1)
    raise AssertionError("the server did not become ready within 60 seconds")


def start_server(command: list[str], log: Path, **settings: str) -> "subprocess.Popen[bytes]":
    """A program of this interpreter's, with the environment `settings`, in a process group of its own."""
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=Path(__file__).parents[1],
            env=os.environ | settings,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@contextmanager
def running_server(model: Path, log: Path, *options: str, **settings: str) -> Iterator[tuple[str, Any]]:
    """`zoo serve` of a run folder on a free port: its URL and its process; ended afterwards, whatever happens."""
    port = free_port()
    command = ["zoo.cli", "serve", str(model), "--port", str(port), *options]
    server = start_server(command, log, BENTOML_HOME=str(log.parent), **settings)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", server)
        yield f"http://127.0.0.1:{port}", server
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
