import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from zoo.errors import BadData, CorruptFile, UnknownName, ZooError
from zoo.images.dataset import DATASETS
from zoo.images.image_set import ImageSet, from_pixels
from zoo.images.opening import open_images

LABELS = [3, 1, 4, 1, 5, 9, 2, 6]


def picture(seed: int, side: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def png(seed: int, side: int = 32) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture(seed, side)).save(buffer, "PNG")
    return buffer.getvalue()


Row = tuple[bytes | None, str | None, object]
ROWS: list[Row] = [(png(i), f"{i}.png", label) for i, label in enumerate(LABELS)]


def write_shard(path: Path, rows: list[Row], label: str = "label", names: list[str] | None = None) -> None:
    """A Parquet shard as the Hub writes it: the image a struct of bytes and path, features in the schema."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"img": [{"bytes": b, "path": p} for b, p, _ in rows], label: [value for *_, value in rows]})
    if names:
        features = {"img": {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path)


def write_folder(root: Path, files: dict[str, int]) -> Path:
    for name, seed in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(seed))
    return root


PETS = {"train/dog/1.png": 0, "train/cat/1.png": 1, "train/cat/2.png": 2, "train/emu/1.png": 3}
PETS |= {"test/emu/7.png": 4, "test/cat/7.png": 5}  # no dog


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """The cifar10 layout: two train shards and a test shard."""
    names = [f"class {i}" for i in range(10)]
    write_shard(tmp_path / "hub" / "train-00000-of-00002.parquet", ROWS[:5], names=names)
    write_shard(tmp_path / "hub" / "train-00001-of-00002.parquet", ROWS[5:], names=names)
    write_shard(tmp_path / "hub" / "test-00000-of-00001.parquet", ROWS[2:4], names=names)
    return tmp_path / "hub"


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "pets", PETS)


def assert_holds(split: ImageSet, seeds: list[int], labels: list[int]) -> None:
    assert split.labels.tolist() == labels
    assert split.labels.dtype == np.int64
    assert np.array_equal(split.pixels(), np.stack([picture(seed) for seed in seeds]))


# --- digits and the table ---------------------------------------------------------------------------------------------


def test_digits_are_scikit_learns_in_its_order():
    train, test = open_images("digits", "train"), open_images("digits", "test")
    assert (len(train), len(test)) == (1438, 359)
    assert train.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert test.labels[-5:].tolist() == [9, 0, 8, 9, 8]
    assert np.bincount(np.concatenate([train.labels, test.labels])).tolist() == [
        *(178, 182, 177, 183, 181),
        *(182, 181, 179, 174, 180),
    ]
    assert train.classes == tuple("0123456789")


def test_digits_are_grey_levels_0_to_16_spread_over_0_to_255():
    pixels = open_images("digits", "train").pixels()
    assert (pixels.dtype, pixels.shape) == (np.uint8, (1438, 8, 8, 3))
    assert pixels[0, 0, :, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0 0 5 13 9 1 0 0 times 255 / 16
    assert (pixels[..., 0] == pixels[..., 1]).all()
    assert (pixels[..., 0] == pixels[..., 2]).all()
    assert (pixels.min(), pixels.max()) == (0, 255)


def assert_table_holds(name: str, pixels: np.ndarray) -> None:
    for channel in range(3):
        counts = np.bincount(pixels[..., channel].ravel(), minlength=256)
        levels, share = np.arange(256) / 255, counts / counts.sum()
        mean = (levels * share).sum()
        std = np.sqrt(((levels - mean) ** 2 * share).sum())
        assert DATASETS[name].mean[channel] == pytest.approx(mean, abs=1e-3)
        assert DATASETS[name].std[channel] == pytest.approx(std, abs=1e-3)


def test_mean_and_std_of_digits_are_those_of_its_train_split():
    assert_table_holds("digits", open_images("digits", "train").pixels())


@pytest.mark.realdata
def test_mean_and_std_of_cifar100_are_those_of_its_train_split(realdata: Path):
    train = open_images("cifar100", "train", data=realdata / "cifar100")
    assert len(train) == 50_000
    assert np.bincount(train.labels).tolist() == [500] * 100
    assert train.skipped == {}
    assert_table_holds("cifar100", train.pixels())


@pytest.mark.realdata
def test_cifar100_has_100_images_of_each_class_in_its_test_split(realdata: Path):
    test = open_images("cifar100", "test", data=realdata / "cifar100")
    assert np.bincount(test.labels).tolist() == [100] * 100
    assert test.classes[:3] == ("apple", "aquarium_fish", "baby")
    assert test.pixels().shape == (10_000, 32, 32, 3)


def test_unknown_data_sets_and_splits_are_told_the_nearest():
    with pytest.raises(UnknownName, match="unknown data set 'cifar'; nearest: cifar10"):
        open_images("cifar", "train")
    with pytest.raises(UnknownName, match="unknown split 'training'; nearest: train"):
        open_images("digits", "training")
    with pytest.raises(UnknownName, match="unknown split 'val'; known: train, test"):
        open_images("digits", "val")


# --- layouts ----------------------------------------------------------------------------------------------------------


def test_parquet_shards_are_read_in_order_and_to_the_pixel(parquet: Path):
    train = open_images("cifar10", "train", data=parquet)
    assert_holds(train, list(range(8)), LABELS)
    assert train.classes == tuple(f"class {i}" for i in range(10))
    assert_holds(open_images("cifar10", "test", data=parquet), [2, 3], LABELS[2:4])


def test_shards_may_lie_deeper_and_in_folders_of_any_name(tmp_path: Path):
    for name in ("deep/data", "we[ir]d", "st*r", "a b#?"):
        write_shard(tmp_path / name / "train-0.parquet", ROWS)
        assert_holds(open_images("cifar10", "train", data=str(tmp_path / name)), list(range(8)), LABELS)


def test_a_shard_of_another_split_is_not_mixed_in(tmp_path: Path):
    """train_extra and training are no shards of train."""
    write_shard(tmp_path / "train-0.parquet", ROWS[:2])
    write_shard(tmp_path / "train_extra-0.parquet", ROWS[2:])
    write_shard(tmp_path / "training-0.parquet", ROWS[2:])
    assert len(open_images("cifar10", "train", data=tmp_path)) == 2


def test_the_label_column_is_that_of_the_row(tmp_path: Path):
    rows = [{"bytes": b, "path": p} for b, p, _ in ROWS]
    table = pa.table({"img": rows, "label": [0] * 8, "coarse_label": [1] * 8, "fine_label": LABELS})
    pq.write_table(table, tmp_path / "train-0.parquet")
    assert open_images("cifar100", "train", data=tmp_path).labels.tolist() == LABELS


def test_images_without_label_have_minus_one(tmp_path: Path):
    write_shard(tmp_path / "a" / "train-0.parquet", [*ROWS[:2], (png(2), "2.png", None)])
    assert open_images("cifar10", "train", data=tmp_path / "a").labels.tolist() == [3, 1, -1]
    write_shard(tmp_path / "b" / "train-0.parquet", ROWS, label="something")
    assert open_images("cifar10", "train", data=tmp_path / "b").labels.tolist() == [-1] * 8
    write_folder(tmp_path / "c", {"train/1.png": 0, "train/2.png": 1})
    assert_holds(open_images("cifar10", "train", data=tmp_path / "c"), [0, 1], [-1, -1])


def test_an_image_folder_has_its_classes_in_alphabetical_order(pets: Path):
    train = open_images("cifar10", "train", data=pets)
    assert train.classes == ("cat", "dog", "emu")
    assert_holds(train, [1, 2, 0, 3], [0, 0, 1, 2])


def test_a_class_has_the_same_label_in_both_splits_even_if_one_lacks_another_class(pets: Path):
    test = open_images("cifar10", "test", data=pets)
    assert test.classes == ("cat", "dog", "emu")
    assert_holds(test, [5, 4], [0, 2])


def test_one_class_alone_is_a_class_and_deeper_images_belong_to_it(tmp_path: Path):
    write_folder(tmp_path, {"train/cat/1.png": 0, "train/cat/more/2.png": 1})
    assert_holds(open_images("cifar10", "train", data=tmp_path), [0, 1], [0, 0])


def test_hidden_files_are_no_images(pets: Path):
    (pets / "train" / "cat" / ".DS_Store").write_bytes(b"x")
    (pets / "train" / ".cache").mkdir()
    (pets / "train" / ".cache" / "1.png").write_bytes(png(9))
    train = open_images("cifar10", "train", data=pets)
    assert (train.classes, len(train), train.skipped) == (("cat", "dog", "emu"), 4, {})


def test_images_of_other_sizes_are_resized(tmp_path: Path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "1.png").write_bytes(png(0, side=64))
    expected = Image.fromarray(picture(0, 64)).resize((32, 32), Image.Resampling.BICUBIC)
    assert np.array_equal(open_images("cifar10", "train", data=tmp_path).pixels()[0], np.asarray(expected))


def as_zip(source: Path, path: Path, root: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(source.rglob("*")):
            if file.is_file():
                archive.write(file, f"{root}{file.relative_to(source)}")
        archive.writestr("__MACOSX/._x", b"x")
    return path


def as_tar(source: Path, path: Path, root: str) -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        archive.add(source, root or ".")
    return path


@pytest.mark.parametrize("root", ["", "top/"])
@pytest.mark.parametrize(
    ("pack", "ending"), [(as_zip, ".zip"), (as_tar, ".tar.gz"), (as_tar, ".tgz"), (as_tar, ".tar")]
)
def test_archives_hold_what_their_folders_hold(
    pets: Path, parquet: Path, tmp_path: Path, root: str, pack: Callable[[Path, Path, str], Path], ending: str
):
    archive = pack(pets, tmp_path / f"pets{ending}", root)
    assert_holds(open_images("cifar10", "train", data=archive), [1, 2, 0, 3], [0, 0, 1, 2])
    assert_holds(open_images("cifar10", "test", data=archive), [5, 4], [0, 2])
    archive = pack(parquet, tmp_path / f"hub{ending}", root)
    assert_holds(open_images("cifar10", "train", data=archive), list(range(8)), LABELS)


def test_an_archive_of_the_train_folder_alone_is_a_train_split(tmp_path: Path):
    write_folder(tmp_path / "pets", {name: seed for name, seed in PETS.items() if name.startswith("train")})
    archive = as_tar(tmp_path / "pets" / "train", tmp_path / "pets.tar", "train")
    assert_holds(open_images("cifar10", "train", data=archive), [1, 2, 0, 3], [0, 0, 1, 2])


# --- what is broken ---------------------------------------------------------------------------------------------------


def test_images_that_cannot_be_decoded_are_left_out_and_named(tmp_path: Path):
    rows: list[Row] = [ROWS[0], (png(9)[:200], "half.png", 7), (b"", "none.png", 7), (None, None, 7), ROWS[1]]
    write_shard(tmp_path / "train-0.parquet", rows)
    train = open_images("cifar10", "train", data=tmp_path)
    assert_holds(train, [0, 1], LABELS[:2])
    starts = [f"train-0.parquet#{row}: {why}" for row, why in enumerate(("cannot be decoded", "holds", "holds"), 1)]
    assert len(train.skipped) == 3
    lines = [f"{name}: {reason}" for name, reason in train.skipped.items()]
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))


def test_corrupt_files_of_an_image_folder_are_named_by_their_path(pets: Path):
    (pets / "train" / "cat" / "2.png").write_bytes(png(2)[:300])
    train = open_images("cifar10", "train", data=pets)
    assert_holds(train, [1, 0, 3], [0, 1, 2])
    assert len(train.skipped) == 1
    assert train.skipped["cat/2.png"].startswith("cannot be decoded")


def test_the_path_in_a_shard_is_never_opened(tmp_path: Path):
    (tmp_path / "secret.png").write_bytes(png(0))
    rows: list[Row] = [ROWS[0], (None, str(tmp_path / "secret.png"), 1), (b"", str(tmp_path / "secret.png"), 1)]
    write_shard(tmp_path / "data" / "train-0.parquet", rows)
    assert_holds(open_images("cifar10", "train", data=tmp_path / "data"), [0], [3])


def test_a_missing_source_is_a_file_not_found(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"none\.zip: no such folder or archive"):
        open_images("cifar10", "train", data=tmp_path / "none.zip")


@pytest.mark.parametrize("files", [{}, {"test/cat/1.png": 0}, {"cat/1.png": 0}, {"training/cat/1.png": 0}])
def test_a_missing_split_is_told_what_was_expected(tmp_path: Path, files: dict[str, int]):
    write_folder(tmp_path, files)
    with pytest.raises(
        BadData,
        match=r"no train split of cifar10; expected train-\*\.parquet or train-\*\.tar shards, or a folder train/",
    ):
        open_images("cifar10", "train", data=tmp_path)


def test_a_split_without_readable_image_is_bad_data_and_leaves_no_cache(tmp_path: Path, home: Path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(BadData, match="train: no image in it, at any depth; an image ends in one of"):
        open_images("cifar10", "train", data=tmp_path)
    (tmp_path / "train" / "cat" / "1.png").write_bytes(b"junk")
    with pytest.raises(BadData, match=r"none of 1 images can be decoded, such as cat/1\.png: not a picture"):
        open_images("cifar10", "train", data=tmp_path)
    assert [path for path in (home / "cache").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(("label", "said"), [(10, "labels 1..10, allowed 0..9"), (-2, "labels -2..9, allowed 0..9")])
def test_labels_out_of_range_are_bad_data(tmp_path: Path, label: int, said: str):
    write_shard(tmp_path / "train-0.parquet", [*ROWS, (png(9), "9.png", label)])
    with pytest.raises(BadData, match=said):
        open_images("cifar10", "train", data=tmp_path)


@pytest.mark.parametrize(
    ("label", "said"),
    [("cat", r"1 classes \(cat \.\.\.\), not 10; another data set"), (1.5, "there is a label 1.5; a")],
)
def test_labels_that_are_no_classes_of_the_data_set_are_bad_data(tmp_path: Path, label: object, said: str):
    write_shard(tmp_path / "train-0.parquet", [(png(9), "9.png", label)])
    with pytest.raises(BadData, match=said):
        open_images("cifar10", "train", data=tmp_path)


def test_a_table_without_images_is_bad_data(tmp_path: Path):
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), tmp_path / "train-0.parquet")
    with pytest.raises(BadData, match=r"no image column, .* it has text \(string\), label"):
        open_images("cifar10", "train", data=tmp_path)


def test_a_damaged_shard_is_bad_data_and_not_a_smaller_data_set(tmp_path: Path):
    path = tmp_path / "train-0.parquet"
    write_shard(path, ROWS)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:4] + b"\xff" * 40 + whole[44:]):
        path.write_bytes(damaged)
        with pytest.raises(BadData, match=r"(?s)cannot be read .*Download it again"):
            open_images("cifar10", "train", data=tmp_path)


@pytest.mark.parametrize(("pack", "name"), [(as_zip, "pets.zip"), (as_tar, "pets.tar.gz"), (as_tar, "pets.tar")])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_a_truncated_archive_is_bad_data_and_leaves_nothing(
    pets: Path, tmp_path: Path, home: Path, pack: Callable[[Path, Path, str], Path], name: str, share: float
):
    archive = pack(pets, tmp_path / name, "")
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BadData, match=rf"(?s){name}: truncated, damaged or no archive .*Download it again"):
        open_images("cifar10", "train", data=archive)
    assert [path for path in (home / "cache").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_one_damaged_byte_of_a_tar_gz_is_bad_data(pets: Path, tmp_path: Path, place: float):
    """Also in the last bytes, and in an image whose own format has no checksum: nothing is decoded from it."""
    archive = as_tar(pets, tmp_path / "pets.tar.gz", "")
    whole = bytearray(archive.read_bytes())
    whole[int(place * (len(whole) - 1))] ^= 1
    archive.write_bytes(whole)
    with pytest.raises(BadData, match=r"(?s)pets\.tar\.gz: truncated, damaged or no archive"):
        open_images("cifar10", "train", data=archive)


def test_one_damaged_byte_of_an_image_in_a_zip_is_bad_data(pets: Path, tmp_path: Path):
    archive = as_zip(pets, tmp_path / "pets.zip", "")
    whole = bytearray(archive.read_bytes())
    whole[whole.index(png(4)) + 1000] ^= 1
    archive.write_bytes(whole)
    with pytest.raises(BadData, match=r"pets\.zip: truncated, damaged or no archive \(Bad CRC-32"):
        open_images("cifar10", "train", data=archive)


def test_a_file_that_is_no_archive_is_told_the_endings(tmp_path: Path):
    (tmp_path / "data.rar").write_bytes(b"x")
    with pytest.raises(BadData, match=r"neither a folder nor an archive \(\.zip, \.tar, \.tar\.gz, \.tgz\)"):
        open_images("cifar10", "train", data=tmp_path / "data.rar")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "evil",
    [
        member("../evil"),
        member("train/../../evil"),
        member("train/link", tarfile.SYMTYPE, "../../.."),
        member("train/link", tarfile.SYMTYPE, "/etc/passwd"),
        member("train/link", tarfile.LNKTYPE, "../../../../etc/passwd"),
        member("train/device", tarfile.CHRTYPE),
    ],
)
def test_a_tar_that_reaches_outside_is_refused_whole(pets: Path, tmp_path: Path, home: Path, evil: tarfile.TarInfo):
    path = as_tar(pets, tmp_path / "evil.tar", "")
    with tarfile.open(path, "a") as archive:
        archive.addfile(evil)
    with pytest.raises(BadData, match=r"evil\.tar: truncated, damaged or no archive"):
        open_images("cifar10", "train", data=path)
    assert not list(home.rglob("evil")) + list(tmp_path.rglob("evil"))
    assert [path for path in home.rglob("*") if not path.is_dir()] == []


def test_a_zip_cannot_reach_outside(pets: Path, tmp_path: Path, home: Path):
    path = as_zip(pets, tmp_path / "evil.zip", "")
    link = zipfile.ZipInfo("train/cat/link.png")
    link.external_attr = 0o120777 << 16  # a symbolic link
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../../evil", b"x")
        archive.writestr(link, "/etc/passwd")
    train = open_images("cifar10", "train", data=path)
    assert_holds(train, [1, 2, 0, 3], [0, 0, 1, 2])
    assert list(train.skipped) == ["cat/link.png"]  # a file with the link's text
    assert [found.parent.name.split("-")[0] for found in home.rglob("evil")] == ["evil"]  # inside its own folder
    assert not [found for found in home.rglob("*") if found.is_symlink()]


def test_a_home_that_cannot_be_written_is_a_zoo_error(pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "file"))
    with pytest.raises(ZooError, match="cannot write"):
        open_images("cifar10", "train", data=pets)


# --- the cache --------------------------------------------------------------------------------------------------------


def cache_files(home: Path) -> dict[Path, tuple[int, int]]:
    """Inode and time of every file of the pixel cache."""
    files = [path for path in (home / "cache" / "pixels").rglob("*") if path.is_file()]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def test_a_split_is_decoded_once(pets: Path, home: Path):
    first = open_images("cifar10", "train", data=pets)
    files = cache_files(home)
    assert sorted(path.name for path in files) == ["labels.npy", "pixels.u8", "rows.npy", "split.json"]
    second = open_images("cifar10", "train", data=pets)
    assert cache_files(home) == files
    assert isinstance(second.pixels(), np.memmap)
    assert np.array_equal(first.pixels(), second.pixels())
    assert (first.digest, first.classes, first.skipped) == (second.digest, second.classes, second.skipped)


def test_changed_files_are_decoded_again(pets: Path):
    before = open_images("cifar10", "train", data=pets)
    (pets / "train" / "cat" / "3.png").write_bytes(png(6))
    assert_holds(open_images("cifar10", "train", data=pets), [1, 2, 6, 0, 3], [0, 0, 0, 1, 2])
    (pets / "train" / "cat" / "3.png").unlink()
    (pets / "train" / "cat" / "2.png").write_bytes(png(7))
    os.utime(pets / "train" / "cat" / "2.png", ns=(1, 1))
    after = open_images("cifar10", "train", data=pets)
    assert_holds(after, [1, 7, 0, 3], [0, 0, 1, 2])
    assert before.digest != after.digest
    assert_holds(before, [1, 2, 0, 3], [0, 0, 1, 2])  # an open split stays what it was


def test_a_replaced_archive_is_unpacked_again(pets: Path, tmp_path: Path):
    archive = as_zip(pets, tmp_path / "pets.zip", "")
    open_images("cifar10", "train", data=archive)
    (pets / "train" / "dog" / "1.png").write_bytes(png(8))
    as_zip(pets, archive, "")
    assert_holds(open_images("cifar10", "train", data=archive), [1, 2, 8, 3], [0, 0, 1, 2])


def test_the_hash_is_that_of_pixels_and_labels(pets: Path, tmp_path: Path):
    train = open_images("cifar10", "train", data=pets)
    relabelled = write_folder(tmp_path / "other", {"train/a/1.png": 1, "train/a/2.png": 2, "train/b/1.png": 0})
    (relabelled / "train" / "b" / "2.png").write_bytes(png(3))
    other = open_images("cifar10", "train", data=relabelled)
    assert np.array_equal(train.pixels(), other.pixels())
    assert train.digest != other.digest


def test_processes_that_open_a_split_at_once_decode_it_once(tmp_path: Path, home: Path):
    write_folder(tmp_path / "data", {f"train/c{i % 3}/{i}.png": i for i in range(300)})
    as_zip(tmp_path / "data", tmp_path / "data.zip", "")
    code = """if True:
        import sys
        from zoo.images.opening import open_images
        split = open_images("cifar10", "train", data=sys.argv[1])
        print(split.digest, len(split), split.labels.sum())
    """
    command = [sys.executable, "-c", code, str(tmp_path / "data.zip")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert len(set(said)) == 1
    assert said[0].split()[1:] == ["300", "300"]
    assert len(cache_files(home)) == 4
    times = [time for _, time in cache_files(home).values()]
    assert open_images("cifar10", "train", data=tmp_path / "data.zip").digest == said[0].split()[0]
    assert [time for _, time in cache_files(home).values()] == times


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("name", ["labels.npy", "pixels.u8", "rows.npy", "split.json"])
@pytest.mark.parametrize("how", ["empty", "half", "missing", "pickle"])
def test_a_damaged_cache_says_which_folder_to_delete(
    pets: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
):
    monkeypatch.chdir(tmp_path)
    train = open_images("cifar10", "train", data=pets)
    path = next(path for path in cache_files(home) if path.name == name)
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "pickle":
        array = np.empty(4, object)
        array[:] = [Bomb()] * 4
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=True)
        path.write_bytes(pickle.dumps(Bomb()) if not name.endswith("npy") else buffer.getvalue())
    else:
        path.write_bytes(content[: len(content) // 2 if how == "half" else 0])
    if (name, how) == ("split.json", "missing"):  # as if never decoded
        assert open_images("cifar10", "train", data=pets).digest == train.digest
    else:
        with pytest.raises(CorruptFile, match=rf"{path.parent.name}: damaged cache .*Delete the folder and try again"):
            open_images("cifar10", "train", data=pets)
    assert not (tmp_path / "exploded").exists()


# --- sample -----------------------------------------------------------------------------------------------------------


def test_a_sample_is_reproducible_in_order_and_without_replacement():
    train = open_images("digits", "train")
    marked = from_pixels("digits", "train", train.pixels(), np.arange(len(train)), train.classes, train.digest)
    for n in (1, 100, 1437):
        one, two = marked.sample(n, seed=3), marked.sample(n, seed=3)
        assert np.array_equal(one.labels, two.labels)
        assert len(set(one.labels.tolist())) == n
        assert (np.diff(one.labels) > 0).all()
        assert np.array_equal(one.pixels(), train.pixels()[one.labels])
        assert one.digest == two.digest


def test_other_seeds_and_sizes_are_other_samples_with_other_hashes():
    train = open_images("digits", "train")
    samples = [train.sample(n, seed=seed) for n, seed in [(100, 0), (100, 1), (101, 0), (None, 0)]]
    assert len({sample.digest for sample in samples}) == 4
    assert not np.array_equal(samples[0].pixels(), samples[1].pixels())


def test_a_sample_of_all_is_the_split_itself_and_of_none_is_empty():
    test = open_images("digits", "test")
    assert test.sample(None) is test
    assert test.sample(359) is test
    assert test.sample(10_000) is test
    assert len(test.sample(0)) == 0
    with pytest.raises(ValueError, match="-1 images; at least 0"):
        test.sample(-1)


@pytest.mark.realdata
def test_cifar10_is_not_taken_for_cifar100(realdata: Path):
    with pytest.raises(BadData, match=r"10 classes \(airplane, .* not 100; another data set"):
        open_images("cifar100", "test", data=realdata / "cifar10")
