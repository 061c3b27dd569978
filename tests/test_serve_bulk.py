"""serve/bulk.py, serve/inputs.py: one row an image from every kind of input, and a killed run goes on where it was."""

import io
import json
import os
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from serve_http import TOLERANCE
from serve_model import gap, png

import serve.bulk
import serve.inputs
from serve.bulk import EmbedShard, bad_file, bulk, part, write_plan
from serve.inputs import images_of, shards_of
from serve.limits import MAX_IMAGE
from serve.session import Session
from zoo.encoder import Encoder
from zoo.errors import BadData, ZooError

pytest_plugins = ["serve_fixtures"]
CUT = png(height=90)[:-500]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """14 images: four files, three in a zip, three in a tar, four in two row groups of a Parquet file; and bad ones."""
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    for seed in range(4):
        (folder / "deep" / f"{seed}.png").write_bytes(png(seed))
    (folder / "cut.png").write_bytes(CUT)
    (folder / "notes.txt").write_text("no image")
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for seed in range(4, 7):
            archive.writestr(f"{seed}.png", png(seed))
        archive.writestr("cut.png", CUT)
    with tarfile.open(folder / "b.tar", "w") as tar:
        for seed in range(7, 10):
            info = tarfile.TarInfo(f"x/{seed}.png")
            info.size = len(png(seed))
            tar.addfile(info, io.BytesIO(png(seed)))
    rows = [{"bytes": png(seed), "path": None} for seed in range(10, 14)] + [{"bytes": None, "path": None}]
    pq.write_table(pa.table({"img": rows, "label": [0] * 5}), folder / "c.parquet", row_group_size=3)
    return folder


EXPECTED = {f"deep/{seed}.png": seed for seed in range(4)}
EXPECTED |= {f"a.zip/{seed}.png": seed for seed in range(4, 7)}
EXPECTED |= {f"b.tar/x/{seed}.png": seed for seed in range(7, 10)}
EXPECTED |= {f"c.parquet#{seed - 10}": seed for seed in range(10, 14)}


def embed_all(exported: Path, source: Path, out: Path) -> None:
    worker = EmbedShard(str(exported / "model.onnx"), str(source), str(out))
    for shard in shards_of(str(source)):
        worker(shard._asdict())


def check(out: Path, source: Path, encoder: Encoder) -> None:
    """Every image stands once in the parts or once in the side files, with the encoder's embedding."""
    shards = shards_of(str(source))
    rows = [row for shard in shards for row in pq.read_table(part(out, shard.number)).to_pylist()]
    bad = [json.loads(line) for shard in shards for line in bad_file(out, shard.number).read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == sorted(EXPECTED)
    expected = encoder.embed([png(EXPECTED[row["id"]]) for row in rows])
    assert gap(np.array([row["embedding"] for row in rows]), expected) < TOLERANCE
    assert sorted(row["id"] for row in bad) == ["a.zip/cut.png", "c.parquet#4", "cut.png"]
    assert all(row["reason"] for row in bad)


def test_every_image_of_every_kind_of_input_has_exactly_one_row(
    exported: Path, source: Path, tmp_path: Path, torch_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve.inputs, "FILES", 3)
    monkeypatch.setattr(serve.bulk, "BATCH", 2)
    assert len(shards_of(str(source))) == 6
    embed_all(exported, source, tmp_path / "out")
    check(tmp_path / "out", source, torch_encoder)


def test_a_url_is_read_as_a_path_is(source: Path) -> None:
    shards = shards_of(source.as_uri())
    assert shards == shards_of(str(source))
    found = [name for shard in shards for name, _ in images_of(source.as_uri(), shard)]
    assert sorted(found) == sorted([*EXPECTED, "cut.png", "a.zip/cut.png", "c.parquet#4"])


def test_a_part_appears_whole_and_after_its_side_file(
    exported: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: Session, pixels: np.ndarray) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "embed_pixels", stopped)
    with pytest.raises(KeyboardInterrupt):
        embed_all(exported, source, tmp_path / "out")
    assert list((tmp_path / "out").glob("*")) == []


def test_parts_of_something_else_are_not_mixed_in(exported: Path, other_exported: Path, source: Path) -> None:
    out, shards = source.parent / "out", shards_of(str(source))
    session = Session(exported / "model.onnx")
    write_plan(out, session, str(source), shards)
    write_plan(out, session, str(source), shards)
    with pytest.raises(ZooError, match="another model"):
        write_plan(out, Session(other_exported / "model.onnx"), str(source), shards)
    with pytest.raises(ZooError, match="other images"):
        write_plan(out, session, str(source), shards[1:])


def test_an_input_without_images_is_told(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no such file"):
        shards_of(str(tmp_path / "nothing"))
    (tmp_path / "labels.csv.gz").write_bytes(b"no archive of images")
    with pytest.raises(BadData, match=r"no \.jpeg, .*, \.tar\.gz or \.parquet file"):
        shards_of(str(tmp_path))
    with pytest.raises(BadData, match=r"ftp://x: .*s3, gs"):
        shards_of("ftp://x")


@pytest.mark.parametrize("column", [{"x": [1]}, {"image": ["/etc/hostname"]}, {"image": [{"path": "a.png"}]}])
def test_a_parquet_file_without_encoded_images_is_told_before_anything_runs(
    tmp_path: Path, column: dict[str, list[object]]
) -> None:
    pq.write_table(pa.table(column), tmp_path / "a.parquet")
    with pytest.raises(BadData, match=rf"a\.parquet: no column image.* it has {next(iter(column))} \("):
        shards_of(str(tmp_path))
    (tmp_path / "a.parquet").write_bytes(b"damaged")
    with pytest.raises(BadData, match=r"a\.parquet: not a sound Parquet file"):
        shards_of(str(tmp_path))


@pytest.mark.parametrize("name", ["a.zip", "b.tar"])
def test_a_damaged_archive_is_named_and_its_shard_not_done(exported: Path, source: Path, name: str) -> None:
    path, out = source / name, source.parent / "out"
    path.write_bytes(path.read_bytes()[:-200] if name == "a.zip" else b"\0garbage" * 200)
    shard = next(shard for shard in shards_of(str(source)) if shard.files[0].endswith(name))
    found = EmbedShard(str(exported / "model.onnx"), str(source), str(out))(shard._asdict())
    assert found["error"].startswith(f"{name}: not a sound zip or tar archive (")
    assert list(out.glob("*")) == []


def test_an_image_that_is_too_large_is_told_so_in_a_file_and_in_an_archive(exported: Path, tmp_path: Path) -> None:
    (source := tmp_path / "in").mkdir()
    large = png() + bytes(MAX_IMAGE)
    (source / "a.png").write_bytes(large)
    with zipfile.ZipFile(source / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", large)
    embed_all(exported, source, tmp_path / "out")
    bad = [json.loads(bad_file(tmp_path / "out", number).read_text()) for number in range(2)]
    reason = "larger than 10,485,760 bytes"
    assert bad == [{"id": "a.png", "reason": reason}, {"id": "b.zip/a.png", "reason": reason}]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's
def test_with_ray_a_run_that_lost_parts_makes_only_those_again(
    exported: Path, source: Path, tmp_path: Path, torch_encoder: Encoder, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bulk(str(exported), str(source), output=out)
        check(out, source, torch_encoder)
        times = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
        part(out, 1).unlink()
        bulk(str(exported), os.path.relpath(source), output=out)  # the same input by another path
    check(out, source, torch_encoder)
    assert "5 shards, 4 done already" in capsys.readouterr().out
    again = {path.name for path in out.glob("part-*") if path.stat().st_mtime_ns != times[path.name]}
    assert again == {"part-00001.parquet"}
    part(out, 1).unlink()
    part(out, 2).unlink()
    archive = (source / "b.tar").read_bytes()
    (source / "b.tar").write_bytes(b"damaged")
    with pytest.raises(BadData, match=r"1 of 2 shards are not done, the others are. b\.tar: not a sound"):
        bulk(str(exported), str(source), output=out)
    (source / "b.tar").write_bytes(archive)
    bulk(str(exported), str(source), output=out)
    check(out, source, torch_encoder)
