"""serve/bulk.py, serve/inputs.py: one row an image from every kind of input, and a killed run goes on where it was."""

import io
import json
import os
import sys
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
from serve.bulk import EmbedShard, bad_file, bulk, part, remove_unfinished, rows_of, write_plan
from serve.inputs import images_of, shards_of
from serve.limits import MAX_IMAGE
from serve.session import Session
from zoo.errors import BadData, ZooError
from zoo.model.encoder import Encoder

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
    with pytest.raises(BadData, match=r"no .*\.jpeg, .*, \.tgz or \.parquet file"):
        shards_of(str(tmp_path))
    with pytest.raises(BadData, match=r"ftp://x: .*s3, gs"):
        shards_of("ftp://x")


@pytest.mark.parametrize("column", [{"x": [1]}, {"image": ["/etc/hostname"]}, {"image": [{"path": "a.png"}]}])
def test_a_parquet_file_without_encoded_images_is_told_before_anything_runs(
    tmp_path: Path, column: dict[str, list[object]]
) -> None:
    pq.write_table(pa.table(column), tmp_path / "a.parquet")
    with pytest.raises(BadData, match=rf"a\.parquet: no image column.* it has {next(iter(column))} \("):
        shards_of(str(tmp_path))
    (tmp_path / "a.parquet").write_bytes(b"damaged")
    with pytest.raises(BadData, match=r"a\.parquet: not a sound Parquet file"):
        shards_of(str(tmp_path))


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
def test_a_damaged_member_of_any_packing_is_told(exported: Path, tmp_path: Path, kind: int) -> None:
    (source := tmp_path / "in").mkdir()
    with zipfile.ZipFile(source / "a.zip", "w", kind) as archive:
        archive.writestr("a.png", png(height=90))
    content = bytearray((source / "a.zip").read_bytes())
    content[60:120] = bytes(60)
    (source / "a.zip").write_bytes(content)
    found = EmbedShard(str(exported / "model.onnx"), str(source), str(tmp_path))(shards_of(str(source))[0]._asdict())
    assert found["rows"] == 0
    assert found["error"]


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


def test_links_give_every_image_once_and_never_go_in_circles(source: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "14.png").write_bytes(png(14))
    for name, target in {"up": source, "again": source / "deep", "linked": elsewhere, "gone.png": "nowhere"}.items():
        (source / name).symlink_to(target)
    (elsewhere / "back").symlink_to(source)
    (elsewhere / "14 too.png").symlink_to("14.png")  # a file of its own name, as every link to a file is
    names = [name for shard in shards_of(str(source)) for name, _ in images_of(str(source), shard)]
    bad = {"cut.png", "a.zip/cut.png", "c.parquet#4"}
    assert sorted(names) == sorted({*EXPECTED, *bad, "linked/14.png", "linked/14 too.png"})


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take no such name")
def test_a_file_name_that_is_not_unicode_is_told(source: Path) -> None:
    Path(os.fsdecode(os.fsencode(source) + b"/caf\xe9.png")).write_bytes(png())
    with pytest.raises(BadData, match=r"caf\\udce9\.png: .* not UTF-8. Rename it"):
        shards_of(str(source))


def test_names_in_archives_that_are_not_unicode_still_have_their_row(exported: Path, tmp_path: Path) -> None:
    (source := tmp_path / "in").mkdir()
    with tarfile.open(source / "a.tar", "w", format=tarfile.USTAR_FORMAT, encoding="latin-1") as tar:
        for name, content in {"café.png": png(), "è.png": b"no picture"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    embed_all(exported, source, tmp_path / "out")
    assert pq.read_table(part(tmp_path / "out", 0))["id"].to_pylist() == [r"a.tar/caf\udce9.png"]
    assert json.loads(bad_file(tmp_path / "out", 0).read_text())["id"] == r"a.tar/\udce8.png"


def test_parts_are_not_written_into_the_input(exported: Path, source: Path) -> None:
    for at, out in ((str(source), source), (str(source), source / "out"), (source.as_uri(), source / "deep")):
        with pytest.raises(ZooError, match=f"-o {out} lies in the input"):
            bulk(str(exported), at, output=out)
    assert not (source / "plan.json").exists()


def test_what_killed_runs_left_half_written_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    whole = ["part-00000.parquet", "bad-00000.jsonl", "plan.json"]
    for name in [*whole, ".part-00001.parquet.x7f", ".bad-00001.jsonl.abc", ".plan.json.q"]:
        (tmp_path / name).write_bytes(b"1")
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(whole)


def test_a_part_that_was_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "part-00000.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(BadData, match=r"part-00000\.parquet: not a sound part .* Delete it"):
        rows_of(part(tmp_path, 0))


def test_a_shard_that_cannot_be_written_says_why(exported: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"a file")
    found = EmbedShard(str(exported / "model.onnx"), str(source), str(tmp_path / "out"))(
        shards_of(str(source))[0]._asdict()
    )
    assert (found["rows"], found["error"].startswith(f"cannot write {tmp_path}/out/part-00000.parquet: ")) == (0, True)


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
