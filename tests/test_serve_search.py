"""serve/index.py and serve/search.py: a folder indexed, searched, brought up to date while served."""

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_http import TOLERANCE
from serve_model import NAME, OTHER, gap, png

import serve.index
import serve.search
from serve.client import Client
from serve.index import build
from serve.search import Index, Indexes, index_paths_from_environment, read_index
from serve.session import Session
from zoo.errors import BadData, CorruptFile, NotInstalled, NoWeights, ZooError
from zoo.model.encoder import Encoder

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
    assert "is as it was; the same command goes on from here" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_build_that_was_stopped_goes_on_from_there(
    exported: Path,
    folder: Path,
    torch_encoder: Encoder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for seed in range(20, 40):
        (folder / f"{seed}.png").write_bytes(png(seed))
    whole, runs = Session.embed_pixels, []

    def stopped(self: Session, pixels: np.ndarray) -> np.ndarray:
        runs.append(len(pixels))
        if len(runs) == 3:
            raise KeyboardInterrupt
        return whole(self, pixels)

    monkeypatch.setattr(Session, "embed_pixels", stopped)
    with pytest.raises(KeyboardInterrupt):
        build(str(exported / "model.onnx"), folder)
    path = build(str(exported / "model.onnx"), folder)
    assert runs == [8, 8, 8, 8, 1]
    assert "25 images, 9 of them new, 0 left out" in capsys.readouterr().out
    facts, vectors = read_index(path)
    expected = torch_encoder.embed([folder / entry.path for entry in facts.entries], normalize=True)
    assert gap(vectors, expected) < TOLERANCE
    assert list((path.parent / serve.index.ASIDE).iterdir()) == []


KILLED = """
import os, signal, sys
import serve.index
import serve.search
from serve.session import Session

embed, runs = Session.embed_pixels, []

def killed(self, pixels):
    runs.append(pixels)
    if len(runs) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return embed(self, pixels)

Session.embed_pixels, serve.index.PAUSE = killed, -1
serve.index.main()
"""


def test_a_build_that_was_killed_goes_on_from_its_last_saving_and_its_index_was_untouched(
    exported: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(exported / "model.onnx")
    path = build(model, folder)
    before = path.read_bytes()
    for seed in range(20, 40):
        (folder / f"{seed}.png").write_bytes(png(seed))
    done = subprocess.run([sys.executable, "-c", KILLED, model, str(folder)], cwd=Path(__file__).parents[1])
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    aside = path.parent / serve.index.ASIDE
    (aside / f".{path.name}.abcd1234").write_bytes(b"half")  # as when it is killed while it writes
    capsys.readouterr()
    assert build(model, folder) == path
    assert "25 images, 4 of them new, 0 left out" in capsys.readouterr().out
    assert list(aside.iterdir()) == []


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


def test_a_rebuilt_index_is_read_by_one_request_alone_while_others_get_the_earlier(
    exported: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build(str(exported), folder)
    indexes, read = Indexes(), []
    indexes.start([path], {NAME: read_index(path)[0].weights_sha256})
    (folder / "new.png").write_bytes(png(51))
    build(str(exported), folder)

    def slowly(path: Path) -> Any:
        read.append(path)
        time.sleep(0.2)
        return read_index(path)

    monkeypatch.setattr(serve.search, "read_index", slowly)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: len(indexes.get()), range(8)))
    assert set(found) == {5, 6}
    assert len(indexes.get()) == 6
    assert read == [path]


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
    with pytest.raises(NotInstalled, match=r'pip install "\.\[index\]"'):
        Index(indexed[1])
