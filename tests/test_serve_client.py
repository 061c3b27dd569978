"""serve/client.py: arrays in order from any server of ours, patience with a busy one, plain words about the others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from serve_http import TOLERANCE
from serve_model import NAME, OTHER, encode, gap, noise, png

from serve.client import Client, ServerRefused
from serve.limits import MAX_BODY, MAX_IMAGE
from zoo.errors import ZooError
from zoo.model.encoder import Encoder

pytest_plugins = ["serve_fixtures"]


@contextmanager
def answering(kind: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server of that kind on loopback."""
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_client_gets_any_number_of_embeddings_in_their_order(
    live: str, torch_encoder: Encoder, other_encoder: Encoder, tmp_path: Path
) -> None:
    contents = [png(seed) for seed in range(19)]
    (tmp_path / "7.png").write_bytes(contents[7])
    pictures = [*contents[:7], tmp_path / "7.png", *contents[8:]]
    with Client(live) as client:
        assert [row["id"] for row in client.models()] == [NAME, OTHER]
        assert gap(client.embed(pictures), torch_encoder.embed(contents)) < TOLERANCE
        found = client.embed(pictures, model=OTHER, normalize=True)
        assert gap(found, other_encoder.embed(contents, normalize=True)) < TOLERANCE
        assert client.embed(pictures, dimensions=3).shape == (19, 3)
        units = torch_encoder.embed(contents[:3], normalize=True)
        assert np.abs(client.similarity(contents[0], contents[1:3]) - units[1:] @ units[0]).max() < TOLERANCE
        pictures[17] = b"no picture"
        with pytest.raises(ServerRefused, match=r"^picture 17: 415") as caught:
            client.embed(pictures)
        (tmp_path / "bad.png").write_bytes(b"no picture")
        with pytest.raises(ServerRefused, match=r"^.*/bad\.png: 415 .*image 2"):
            client.embed([*contents[:10], tmp_path / "bad.png"])
        assert (caught.value.index, caught.value.code) == (17, "unsupported_media_type")


def test_the_client_says_what_is_wrong_with_a_call(live: str) -> None:
    with Client(live, key=" schlüssel\n") as client:  # this server asks for none
        for wrong in ("cat.png", b"bytes", Path("cat.png")):
            with pytest.raises(ZooError, match=r"takes a list of pictures; .* embed\(\[picture\]\)"):
                client.embed(wrong)  # type: ignore[arg-type]
        with pytest.raises(ZooError, match="at least one"):
            client.embed([])
        with pytest.raises(ZooError, match="picture 1 has 33,554,432 bytes; one request holds at most 32,505,856"):
            client.embed([png(), bytes(MAX_BODY)])
        assert client.models()[0]["id"] == NAME
    with Client("localhost:3000") as client, pytest.raises(ZooError, match="A URL is such as http://127"):
        client.models()


class _Other(BaseHTTPRequestHandler):
    """A server of something else, which answers everything with a page."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", "14")
        self.end_headers()
        self.wfile.write(b"<p>welcome</p>")

    def log_message(self, *_: object) -> None: ...


def test_a_server_of_something_else_is_told() -> None:
    with answering(_Other) as url, Client(url) as client:
        calls = client.models, lambda: client.embed([png()]), lambda: client.search(png())
        for call in (*calls, lambda: client.similarity(png(), [png()])):
            with pytest.raises(ZooError, match=r"/v1/\w+ answered with text/html, as no `zoo serve` does"):
                call()


def test_the_client_splits_what_one_request_cannot_hold(live: str, torch_encoder: Encoder) -> None:
    large = encode(Image.fromarray(noise(1700, 1700, 3)), "PNG", compress_level=0)
    contents = [png(1), *[large] * 4, png(2)]
    assert MAX_IMAGE > len(large) > MAX_BODY / 4
    with Client(live) as client:
        assert gap(client.embed(contents), torch_encoder.embed(contents)) < TOLERANCE


class _Busy(BaseHTTPRequestHandler):
    """A server that is busy twice, then answers with its models."""

    seen = 0

    def do_GET(self) -> None:
        type(self).seen += 1
        status, body = (503, b"<html>busy</html>") if self.seen < 3 else (200, b'{"data": [{"id": "x"}]}')
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_a_busy_server_is_asked_again_and_an_absent_one_is_named() -> None:
    with answering(_Busy) as url:
        with Client(url, retries=1) as client, pytest.raises(ServerRefused, match="503"):
            client.models()
        _Busy.seen = 0
        with Client(url) as client:
            assert client.models() == [{"id": "x"}]
    with Client(url, retries=1) as client, pytest.raises(ZooError, match="zoo serve"):
        client.models()


class _Dropping(_Busy):
    """A server that hangs up without a word, then within its answer, then answers."""

    seen = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).seen += 1
        body = b'{"similarities": [0.5]}'
        if self.seen > 1:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: 9 if self.seen == 2 else None])
        self.close_connection = True


def test_a_request_whose_connection_was_dropped_is_sent_again() -> None:
    with answering(_Dropping) as url:
        with Client(url, retries=1) as client, pytest.raises(ZooError, match="no answer"):
            client.similarity(png(), [png(1)])
        _Dropping.seen = 0
        with Client(url) as client:
            assert client.similarity(png(), [png(1)]).tolist() == [0.5]
        assert _Dropping.seen == 3
