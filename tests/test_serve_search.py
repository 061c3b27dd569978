"""serve/index.py, serve/search.py and serve/client.py: a folder indexed, searched, brought up to date while served."""

import os
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from serve_http import TOLERANCE
from serve_model import NAME, OTHER, encode, gap, noise, png

import serve.index
from serve.client import Client, ServerRefused
from serve.index import build
from serve.limits import MAX_BODY, MAX_IMAGE
from serve.search import Index, Indexes, index_paths_from_environment, read_index
from serve.session import Session
from zoo.encoder import Encoder
from zoo.errors import BadData, CorruptFile, NotInstalled, NoWeights, ZooError

pytest_plugins = ["serve_fixtures"]


@pytest.fixture
def folder(indexed: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(indexed[0], tmp_path / "pictures"))


def test_an_index_holds_the_encoders_unit_rows_in_the_order_of_the_paths(
    indexed: tuple[Path, Path], torch_encoder: Encoder
) -> None:
    facts, vectors = read_index(indexed[1])
    paths = ["a/0 🙂.png", "a/2 🙂.png", "a/4 🙂.png", "b/1 🙂.png", "b/3 🙂.png"]
    assert [entry.path for entry in facts.entries] == paths
    expected = torch_encoder.embed([indexed[0] / path for path in paths], normalize=True)
    assert gap(vectors, expected) < TOLERANCE


def test_the_nearest_images_come_first_with_their_cosines(
    live: str, indexed: tuple[Path, Path], torch_encoder: Encoder
) -> None:
    rows = torch_encoder.embed([png(seed) for seed in (0, 2, 4, 1, 3)], normalize=True)
    names = ["a/0 🙂.png", "a/2 🙂.png", "a/4 🙂.png", "b/1 🙂.png", "b/3 🙂.png"]
    with Client(live) as client:
        for query in (1, 4):
            found = client.search(indexed[0] / "ab"[query % 2] / f"{query} 🙂.png", k=3)
            cosines = rows @ torch_encoder.embed([png(query)], normalize=True)[0]
            order = np.argsort(-cosines)[:3]
            assert [row.path for row in found] == [names[place] for place in order]
            assert np.abs([row.similarity for row in found] - cosines[order]).max() < TOLERANCE
            assert found[0].similarity == pytest.approx(1)
        assert len(client.search(png(9), k=100)) == 5


def test_a_second_run_embeds_only_what_changed(
    exported: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = build(str(exported), folder)
    assert "5 images, 5 of them new, 0 left out" in capsys.readouterr().out
    first = read_index(path)[1]
    (folder / "a" / "0 🙂.png").write_bytes(png(50))
    (folder / "a" / "2 🙂.png").unlink()
    (folder / "new.png").write_bytes(png(51))
    (folder / "cut.png").write_bytes(png(height=90)[:-500])
    build(str(exported), folder)
    said = capsys.readouterr()
    assert "5 images, 2 of them new, 1 left out" in said.out
    assert "cut.png" in said.err
    facts, vectors = read_index(path)
    assert [entry.path for entry in facts.entries] == [
        "a/0 🙂.png",
        "a/4 🙂.png",
        "b/1 🙂.png",
        "b/3 🙂.png",
        "new.png",
    ]
    assert np.array_equal(vectors[1:4], first[2:])
    assert not np.array_equal(vectors[0], first[0])


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take no such name")
def test_a_file_name_that_no_answer_can_hold_is_left_out(
    exported: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.png")).write_bytes(png(50))
    facts, _ = read_index(build(str(exported), folder))
    assert len(facts.entries) == 5
    said = capsys.readouterr()
    assert "5 images, 5 of them new, 1 left out" in said.out
    assert r"pictures/caf\udce9.png: the name of this file is not UTF-8" in said.err


def test_an_index_is_not_replaced_by_that_of_another_folder_of_the_same_name(
    exported: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build(str(exported), folder)
    before, other = path.read_bytes(), folder.parent / "other" / folder.name
    other.mkdir(parents=True)
    (other / "new.png").write_bytes(png(50))
    monkeypatch.chdir(other.parent)
    with pytest.raises(ZooError, match=rf"is the index of {folder}\. Name another file .* -o NAME\.index\.npz"):
        build(str(exported), Path(folder.name))
    assert path.read_bytes() == before
    (link := folder.parent / "link" / folder.name).parent.mkdir()
    link.symlink_to(folder)
    assert build(str(exported), link) == path  # the same by another path
    shutil.rmtree(other)
    shutil.move(folder, other)  # moved: the index is taken along
    assert build(str(exported), other) == path
    assert read_index(path)[0].folder == str(other)


def test_ctrl_c_leaves_the_earlier_index_and_says_so(
    exported: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = build(str(exported), folder)
    before = path.read_bytes()
    (folder / "new.png").write_bytes(png(50))

    def stopped(self: Session, pixels: np.ndarray) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "embed_pixels", stopped)
    monkeypatch.setattr(sys, "argv", ["zoo index", str(exported / "model.onnx"), str(folder)])
    with pytest.raises(SystemExit) as caught:
        serve.index.main()
    assert caught.value.code == 130
    assert "earlier index, if there was one, is as it was" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_vectors_of_another_model_are_not_used_again(
    exported: Path, other_exported: Path, folder: Path, other_encoder: Encoder
) -> None:
    path = build(str(exported), folder)
    build(str(other_exported), folder)
    facts, vectors = read_index(path)
    assert facts.model == OTHER
    assert gap(vectors[:1], other_encoder.embed([png(0)], normalize=True)) < TOLERANCE


def test_a_rebuilt_index_is_served_at_once_and_a_damaged_one_does_no_harm(exported: Path, folder: Path) -> None:
    path = build(str(exported), folder)
    indexes = Indexes()
    indexes.start([path], {NAME: read_index(path)[0].weights_sha256})
    before = indexes.get()
    assert indexes.get() is before
    (folder / "new.png").write_bytes(png(51))
    build(str(exported), folder)
    assert [len(before), len(indexes.get())] == [5, 6]
    path.write_bytes(b"damaged")
    assert len(indexes.get()) == 6
    path.unlink()
    assert len(indexes.get()) == 6
    (folder / "new.png").unlink()
    build(str(exported), folder)
    assert len(indexes.get()) == 5
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.write_bytes(b"")  # nothing can be looked up below a file
    assert len(indexes.get()) == 5


def test_index_files_are_named_with_commas_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_INDEX", "a.index.npz, b c.index.npz ,")
    assert index_paths_from_environment() == [Path("a.index.npz"), Path("b c.index.npz")]


def test_an_index_of_a_model_that_is_not_served_is_refused(indexed: tuple[Path, Path]) -> None:
    with pytest.raises(ZooError, match="was made with simco-r20-digits"):
        Indexes().start([indexed[1]], {OTHER: "0" * 64, NAME: "1" * 64})


def test_two_indexes_of_one_name_are_refused(indexed: tuple[Path, Path], tmp_path: Path) -> None:
    copy = shutil.copy(indexed[1], tmp_path)
    with pytest.raises(ZooError, match="both named pictures"):
        Indexes().start([indexed[1], Path(copy)], {NAME: read_index(indexed[1])[0].weights_sha256})


def test_what_is_no_index_is_told_clearly(indexed: tuple[Path, Path], exported: Path, tmp_path: Path) -> None:
    with pytest.raises(NoWeights, match="zoo index"):
        Index(tmp_path / "a.index.npz")
    for content in (b"", b"no zip", indexed[1].read_bytes()[:-200]):
        (tmp_path / "a.index.npz").write_bytes(content)
        with pytest.raises(CorruptFile, match="Delete it and make it again") as caught:
            build(str(exported), indexed[0], output=tmp_path / "a.index.npz")
        assert "pickle.load" not in str(caught.value)  # numpy's advice
        with pytest.raises(CorruptFile, match="Delete it and make it again"):
            Index(tmp_path / "a.index.npz")
    with pytest.raises(BadData, match="no image file"):
        build(str(exported), tmp_path)
    with pytest.raises(ZooError, match=r"ends in \.index\.npz"):
        build(str(exported), indexed[0], output=tmp_path / "a.npz")


def test_without_faiss_an_index_says_what_to_install(
    indexed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(NotInstalled, match=r"contrastive-zoo\[index\]"):
        Index(indexed[1])


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
        with pytest.raises(ServerRefused, match="415") as caught:
            client.embed(pictures)
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
    with HTTPServer(("127.0.0.1", 0), _Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with Client(f"http://127.0.0.1:{server.server_port}") as client:
            calls = client.models, lambda: client.embed([png()]), lambda: client.search(png())
            for call in (*calls, lambda: client.similarity(png(), [png()])):
                with pytest.raises(ZooError, match=r"/v1/\w+ answered with text/html, as no `zoo serve` does"):
                    call()
        server.shutdown()
        thread.join()


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
    with HTTPServer(("127.0.0.1", 0), _Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        with Client(url, retries=1) as client, pytest.raises(ServerRefused, match="503"):
            client.models()
        _Busy.seen = 0
        with Client(url) as client:
            assert client.models() == [{"id": "x"}]
        server.shutdown()
        thread.join()
    with Client(url, retries=1) as client, pytest.raises(ZooError, match="zoo serve"):
        client.models()
