"""Images from disk: each once an epoch, the same batches for any number of processes, crops of the whole picture."""

import io
import os
import signal
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import zoo
import zoo.images.dataset
from train.batches import LANES, ImageBatch, batches, monitored_images, shard_order, share_of
from train.checkpoint import last_checkpoint
from train.gradcache import cached_backward
from train.pretrain import pretrain
from train.recipe import find_recipe
from train.run_log import read_log
from train.views import ViewPolicy, Views
from zoo.errors import BadData
from zoo.images.opening import open_images

PLAIN = ViewPolicy(jitter=0, grey=0)
WHOLE = replace(PLAIN, crop_area=(1, 1), crop_ratio=(1, 1), flip=0)


def picture(number: int, width: int = 32, height: int = 32) -> Image.Image:
    """A smooth picture, another one for every number."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """3 shards of 40 images in row groups of 16, the Hub's columns; image i is picture(i), its label i % 7."""
    folder = tmp_path / "parquet"
    folder.mkdir()
    for shard in range(3):
        numbers = range(40 * shard, 40 * shard + 40)
        cells = [{"bytes": encoded(picture(i)), "path": f"{i}.png"} for i in numbers]
        table = pa.table({"img": cells, "label": [i % 7 for i in numbers]})
        pq.write_table(table, folder / f"train-{shard:05d}-of-00003.parquet", row_group_size=16)
    return folder


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """The same 120 images as 3 WebDataset tars."""
    folder = tmp_path / "tars"
    folder.mkdir()
    for shard in range(3):
        with tarfile.open(folder / f"train-{shard:06d}.tar", "w") as archive:
            for i in range(40 * shard, 40 * shard + 40):
                for ending, content in {"png": encoded(picture(i)), "cls": str(i % 7).encode()}.items():
                    member = tarfile.TarInfo(f"{i:06d}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return folder


def write_tar(path: Path, contents: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("kind", ["parquet", "tars"])
def test_shards_hold_the_images_and_labels_that_were_written(kind, request):
    shards = open_images("cifar10", "train", request.getfixturevalue(kind), stream=True)
    assert shards.labels.tolist() == [i % 7 for i in range(120)]
    for i in (0, 15, 16, 39, 40, 119):
        assert np.array_equal(np.asarray(shards.picture(i)), np.asarray(picture(i)))
    some = shards.sample(30)
    assert np.array_equal(np.asarray(some.picture(3)), np.asarray(picture(int(some.rows[3]))))
    assert some.digest != shards.digest
    assert np.array_equal(some.decoded(32).pixels()[3], np.asarray(picture(int(some.rows[3]))))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_shard_image_is_seen_once_an_epoch_by_one_process_and_every_epoch_differs(parquet, world):
    shards = open_images("cifar10", "train", parquet, stream=True)
    epochs = []
    for epoch in range(2):
        steps = range(15 * epoch, 15 * epoch + 15)
        shares = [share_of(shards, step, 8, 5, rank, world) for step in steps for rank in range(world)]
        epochs.append(np.concatenate(shares).tolist())
        assert sorted(epochs[-1]) == list(range(120))
    assert epochs[0] != epochs[1]
    alone = [share_of(shards, step, 8, 5, 0, 1) for step in range(15)]
    assert np.concatenate(alone).tolist() == epochs[0]


def test_processes_read_shards_of_their_own_and_a_window_at_a_time():
    block = np.repeat(np.arange(400), 100)  # 40,000 images
    order = shard_order(block, 0, 0, 64)
    assert order.shape == (625, 64)
    assert len(set(order.ravel().tolist())) == 40_000
    halves = [set(block[order[:, half]].ravel().tolist()) for half in (slice(0, 32), slice(32, 64))]
    assert len(halves[0] & halves[1]) <= 1
    near = block[order[:16]].ravel()  # 1,024 images: what a process has to hold of 8 lanes' windows
    assert len(set(near.tolist())) <= LANES * 12
    together = Counter(block[order[0]].tolist())
    assert len(together) > 40  # a batch is mixed from many blocks


def test_views_of_a_picture_from_disk_are_those_of_the_same_picture_in_memory():
    views = Views(PLAIN, replace(PLAIN, interpolation="bilinear"), size=24, seed=3)
    pictures = [picture(i, width=61, height=40) for i in range(6)]
    pixels = torch.stack([torch.from_numpy(np.array(p)).permute(2, 0, 1) for p in pictures])
    crops = [views.cut(p, 4, 6 + i, 12) for i, p in enumerate(pictures)]
    cut = tuple(torch.from_numpy(np.stack(column)) for column in zip(*crops, strict=True))
    assert [crop.shape for crop in cut] == [(6, 3, 24, 24)] * 2
    for ours, theirs in zip(views(cut, 4, 1, 2), views(pixels, 4, 1, 2), strict=True):
        assert (ours - theirs).abs().max() <= 1.5 / 255  # Pillow rounds to grey levels after each of two passes


def test_batches_from_disk_are_the_same_from_the_middle_on_and_with_any_number_of_threads(parquet):
    shards = open_images("cifar10", "train", parquet, stream=True)
    views = Views(ViewPolicy(), ViewPolicy(), size=32, seed=1)
    whole = list(batches(shards, views, first=0, last=20, batch_size=8, workers=1))
    later = list(batches(shards, views, first=13, last=20, batch_size=8, workers=3))
    assert len(whole) == 20
    for a, b in zip(whole[13:], later, strict=True):
        assert all(map(torch.equal, a.pixels, b.pixels))
    half = list(batches(shards, views, first=13, last=20, batch_size=8, rank=1, world=2, workers=2))
    for a, b in zip(later, half, strict=True):
        assert all(torch.equal(c[4:], d) for c, d in zip(a.pixels, b.pixels, strict=True))


def without_the_fifth(folder: Path, *, unit: int) -> list[ImageBatch]:
    """The three batches of 8 of picture(0) .. picture(23), uncut, of which one cannot be decoded."""
    for i in range(24):
        picture(i).save(folder / f"{i:02d}.png")
    (folder / "05.png").write_bytes(b"not a picture")
    shards = open_images("cifar10", "train", f"folder:{folder}", stream=True)
    return list(batches(shards, Views(WHOLE, WHOLE, size=32, seed=1), first=0, last=3, batch_size=8, unit=unit))


@pytest.mark.parametrize(("unit", "size"), [(1, 7), (2, 6)])
def test_an_image_that_cannot_be_decoded_shortens_its_batch_to_a_multiple_and_none_comes_twice(tmp_path, unit, size):
    steps = without_the_fifth(tmp_path, unit=unit)
    assert sorted(len(step.indices) for step in steps) == [size, 8, 8]
    rows = np.concatenate([step.indices for step in steps])
    assert len(set(rows.tolist())) == 16 + size
    assert 5 not in rows
    for index, pixels in zip(rows, torch.cat([step.pixels[0] for step in steps]), strict=True):
        assert np.array_equal(pixels.permute(1, 2, 0), picture(int(index)))


def test_a_batch_too_short_to_train_on_is_refused_with_what_cannot_be_decoded(tmp_path):
    with pytest.raises(BadData, match=r"1 of the 8 images .*05\.png: .*only 4 could be trained on.*--batch-size"):
        without_the_fifth(tmp_path, unit=4)


def test_a_shortened_batch_goes_through_the_encoder_in_equal_chunks_and_the_probe_learns_from_it(tmp_path, monkeypatch):
    """16 images in 4 chunks of 4; without the one that cannot be decoded in 3 of them."""
    for i in range(32):
        folder = tmp_path / "own" / f"kind{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        picture(i).save(folder / f"{i:02d}.png")
    (tmp_path / "own" / "kind1" / "05.png").write_bytes(b"not a picture")
    seen = []

    def watched(method, batch, *, chunk, **how):
        seen.append((len(batch.views[0]), chunk))
        return cached_backward(method, batch, chunk=chunk, **how)

    monkeypatch.setattr("train.run.cached_backward", watched)
    recipe = replace(find_recipe("simco-r20-digits"), batch_size=16, epochs=1, warmup_epochs=0)
    data = Path(f"folder:{tmp_path / 'own'}")
    run = pretrain(recipe, data=data, out=tmp_path / "run", stream=True, chunk=4, knn_every=0)
    assert sorted(seen) == [(12, 4), (16, 4)]
    weight = load_file(last_checkpoint(run / "checkpoints"))["method.probe.weight"]
    assert weight[:2].abs().sum() > 0


def test_an_image_that_cannot_be_decoded_costs_a_batch_in_small_chunks_one_of_them(tmp_path):
    """Of 8 chunks of 2 images 7 are left: as many chunks, of the same size, would be 1 image each."""
    for i in range(16):
        picture(i).save(tmp_path / f"{i:02d}.png")
    (tmp_path / "05.png").write_bytes(b"not a picture")
    recipe = replace(find_recipe("simco-r20-digits"), batch_size=16, epochs=1, warmup_epochs=0)
    flags = {"data": Path(f"folder:{tmp_path}"), "stream": True, "knn_every": 0, "chunk": 2}
    run = pretrain(recipe, out=tmp_path / "run", **flags)
    assert zoo.load(run).card.training["steps"] == 1
    assert (run / "skipped.txt").read_text().startswith("05.png: not a picture")


def test_a_run_streamed_from_shards_goes_on_from_the_middle_of_an_epoch(parquet, tmp_path, monkeypatch):
    """5 steps an epoch. SIGTERM comes in the middle of the second one."""
    recipe = replace(find_recipe("simco-r20-digits"), batch_size=24, epochs=3, warmup_epochs=0)
    flags = {"data": parquet, "stream": True, "knn_every": 0}
    whole = pretrain(recipe, out=tmp_path / "whole", **flags)
    called = Views.__call__

    def stop_at_7(self, images, step, rank=0, world=1):
        if step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return called(self, images, step, rank, world)

    with monkeypatch.context() as patch:
        patch.setattr(Views, "__call__", stop_at_7)
        with pytest.raises(SystemExit, match="143"):
            pretrain(recipe, out=tmp_path / "run", **flags)
    assert zoo.load(tmp_path / "run").card.training["steps"] == 8
    run = pretrain(recipe, out=tmp_path / "run", **flags)
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert [line["loss"] for line in read_log(run)] == [line["loss"] for line in read_log(whole)]


# ------------------------------------------------------------------------------------------------ one's own images


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """20 pictures of many sizes at several depths, two of them broken, and a file that is none."""
    folder = tmp_path / "mine"
    (folder / "deep" / "deeper").mkdir(parents=True)
    for i in range(20):
        place = (folder, folder / "deep", folder / "deep" / "deeper")[i % 3]
        picture(i, 40 + 5 * i, 60).save(place / f"{i:02d}.jpg")
    (folder / "03.jpg").write_bytes(b"not a picture")
    (folder / "deep" / "04.jpg").write_bytes((folder / "deep" / "01.jpg").read_bytes()[:300])
    (folder / "notes.txt").write_text("no picture, and no harm")
    return folder


def test_own_small_images_are_decoded_once_and_the_broken_ones_named(mine):
    split = open_images("cifar10", "train", data=f"folder:{mine}")
    assert split.pixels().shape == (18, 32, 32, 3)
    assert (split.labels == -1).all()
    assert list(split.skipped) == ["03.jpg", "deep/04.jpg"]
    with pytest.raises(BadData, match="has no test split; it is for training"):
        open_images("cifar10", "test", data=f"folder:{mine}")
    with pytest.raises(FileNotFoundError, match="folder:PATH takes a folder"):
        open_images("cifar10", "train", data=f"folder:{mine}/nowhere")


def test_folders_directly_below_are_classes_of_any_number(tmp_path):
    for i in range(24):
        (tmp_path / "own" / f"kind{i % 12:02d}").mkdir(parents=True, exist_ok=True)
        picture(i).save(tmp_path / "own" / f"kind{i % 12:02d}" / f"{i}.png")
    for split in (
        open_images("cifar10", "train", data=f"folder:{tmp_path}/own"),
        open_images("cifar10", "train", f"folder:{tmp_path}/own", stream=True),
    ):
        assert split.labels.tolist() == [i for i in range(12) for _ in range(2)]
        assert split.classes[11] == "kind11"


def test_own_large_images_train_an_encoder_and_broken_ones_are_told_once(mine, tmp_path, monkeypatch, capsys):
    row = replace(zoo.images.dataset.DATASETS["cifar10"], image_size=112)
    monkeypatch.setitem(zoo.images.dataset.DATASETS, "cifar10", row)
    recipe = replace(find_recipe("simco-r20-digits"), name="simco-r20-cifar10", batch_size=4, epochs=1, warmup_epochs=0)
    folder = pretrain(recipe, data=Path(f"folder:{mine}"), out=tmp_path / "run", knn_every=0)
    told = [line for line in capsys.readouterr().out.splitlines() if "cannot be decoded" in line]
    assert 1 <= len(told) <= 2
    assert sum("03.jpg" in line for line in told) == sum("04.jpg" in line for line in told) == 1
    assert zoo.load(folder).embed([mine / "00.jpg"]).shape == (1, 64)
    assert zoo.load(folder).image_size == 112


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["cat"] * 3, r"1 classes \(cat \.\.\.\), not 10"),
        ([0.0, 1.5, 2.0], "there is a label 0.0; a label is a class index"),
        ([None, None, "1"], r"1 classes \(1 \.\.\.\), not 10"),
    ],
)
def test_labels_of_shards_that_are_no_classes_of_the_data_set_are_refused(labels, said, tmp_path):
    cells = [{"bytes": encoded(picture(i)), "path": None} for i in range(3)]
    pq.write_table(pa.table({"img": cells, "label": labels}), tmp_path / "train-0.parquet")
    with pytest.raises(BadData, match=said):
        open_images("cifar10", "train", tmp_path, stream=True)


def test_shards_may_lack_some_labels(tmp_path):
    cells = [{"bytes": encoded(picture(i)), "path": None} for i in range(3)]
    pq.write_table(pa.table({"img": cells, "label": [4, None, 2]}), tmp_path / "train-0.parquet")
    pq.write_table(pa.table({"img": cells}), tmp_path / "train-1.parquet")
    assert open_images("cifar10", "train", tmp_path, stream=True).labels.tolist() == [4, -1, 2, -1, -1, -1]


def test_shards_may_name_their_image_column_differently(tmp_path):
    for nth, column in enumerate(("img", "image")):
        pq.write_table(
            pa.table({column: [{"bytes": encoded(picture(nth)), "path": None}]}), tmp_path / f"train-{nth}.parquet"
        )
    shards = open_images("cifar10", "train", tmp_path, stream=True)
    assert [np.array_equal(shards.picture(i), picture(i)) for i in (0, 1)] == [True, True]


@pytest.mark.parametrize("damage", ["page", "cut", "gone", "fewer"])
def test_a_shard_that_is_damaged_within_or_changes_while_it_is_read_is_named(damage, tmp_path):
    path = tmp_path / "train-0.parquet"
    table = pa.table({"img": [{"bytes": encoded(picture(i)), "path": None} for i in range(4)]})
    pq.write_table(table, path)
    content = path.read_bytes()
    if damage == "page":
        path.write_bytes(content[:4] + b"\xff" * 200 + content[204:])
    shards = open_images("cifar10", "train", tmp_path, stream=True)
    if damage == "cut":
        path.write_bytes(content[:-20])
    if damage == "gone":
        path.unlink()
    if damage == "fewer":
        pq.write_table(table.slice(2), path)
    with pytest.raises(BadData, match=r"train-0\.parquet: (cannot be read|has been replaced)"):
        shards.picture(3)


@pytest.mark.parametrize("label", [b"99999999999999999999", b"10"])
def test_a_label_of_a_tar_beyond_the_classes_is_refused_however_large(label, tmp_path):
    write_tar(tmp_path / "train-0.tar", {"0.png": encoded(picture(0)), "0.cls": label})
    with pytest.raises(BadData, match=rf"labels {label.decode()}\.\.{label.decode()}[,;] (allowed 0\.\.9|a label is)"):
        open_images("cifar10", "train", tmp_path, stream=True)


def test_a_tar_whose_middle_is_damaged_or_whose_end_is_missing_is_refused_not_read_to_there(tmp_path):
    """tarfile alone takes either for the end, and the images behind it would be lost without a word."""
    path = tmp_path / "train-0.tar"
    write_tar(path, {f"{i}.png": encoded(picture(i)) for i in range(3)})
    with tarfile.open(path) as archive:
        second = archive.getmembers()[1].offset
    content = path.read_bytes()
    for broken in (content[:second] + b"?" + content[second + 1 :], content[: second + 100]):
        path.write_bytes(broken)
        with pytest.raises(BadData, match=rf"train-0\.tar: truncated, damaged .*damaged header at byte {second:,}\)"):
            open_images("cifar10", "train", tmp_path, stream=True)
    path.write_bytes(content[:second])  # without the zeros at the end, which not every writer writes
    assert len(open_images("cifar10", "train", tmp_path, stream=True)) == 1


def test_what_a_mac_hides_beside_the_files_of_a_tar_is_no_image(tmp_path):
    contents = {"./a/0.png": encoded(picture(0)), "./a/._0.png": b"mac", "./a/0.cls": b"3", "./a/._0.cls": b"no number"}
    write_tar(tmp_path / "train-0.tar", contents)
    assert open_images("cifar10", "train", tmp_path, stream=True).labels.tolist() == [3]


def test_a_data_set_of_broken_files_is_refused(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(b"no")
    shards = open_images("cifar10", "train", f"folder:{tmp_path}", stream=True)
    assert shards.picture(1) is None
    assert list(shards.skipped) == ["1.png"]
    with pytest.raises(BadData, match=r"none of 3 images can be decoded, such as .*1\.png: "):
        shards.decoded(32)
    with pytest.raises(BadData, match=r"2 of the 2 images that a process has of one batch cannot be decoded \(.*\.png"):
        next(batches(shards, Views(PLAIN, PLAIN, size=32, seed=0), first=0, last=1, batch_size=2))


def test_a_shard_damaged_behind_its_index_is_named_when_its_images_are_read(parquet):
    path = sorted(parquet.iterdir())[1]
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 12 + content[16:])
    shards = open_images("cifar10", "train", parquet, stream=True)
    assert shards.picture(39) is not None
    with pytest.raises(BadData, match=rf"{path.name}: cannot be read \(.*\)\. Download it again"):
        shards.picture(40)


def test_what_cannot_be_read_says_what_can(tmp_path):
    with pytest.raises(BadData, match=r"expected train-\*\.parquet or train-\*\.tar shards, or a folder train/"):
        open_images("cifar10", "train", tmp_path, stream=True)
    with pytest.raises(BadData, match="no image in it"):
        open_images("cifar10", "train", f"folder:{tmp_path}", stream=True)
    (tmp_path / "train-0.tar").write_bytes(b"x" * 1000)
    with pytest.raises(BadData, match=r"train-0\.tar: truncated, damaged"):
        open_images("cifar10", "train", tmp_path, stream=True)
    (tmp_path / "train-0.parquet").write_bytes(b"x" * 1000)
    with pytest.raises(BadData, match=r"train-0\.parquet: cannot be read"):
        open_images("cifar10", "train", tmp_path, stream=True)


@pytest.mark.realdata
def test_cifar100_shards_read_by_two_processes_and_two_threads_give_every_image_once(realdata):
    """And the pixels of 20 of each process's images are those of the shards read plainly."""
    shards = open_images("cifar100", "train", realdata / "cifar100", stream=True)
    assert len(shards) == 50_000
    rows = np.concatenate([share_of(shards, step, 200, 0, rank, 2) for step in range(250) for rank in (0, 1)])
    assert np.array_equal(np.sort(rows), np.arange(50_000))
    views = Views(WHOLE, PLAIN, size=32, seed=0)
    for rank in (0, 1):
        share = next(batches(shards, views, first=3, last=4, batch_size=200, rank=rank, world=2, workers=2)).pixels
        mine = share_of(shards, 3, 200, 0, rank, 2)
        for cut, index in zip(share[0][:20], mine, strict=False):
            assert np.array_equal(cut.permute(1, 2, 0).numpy(), np.asarray(shards.picture(int(index))))


@pytest.mark.realdata
@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_cifar100_streamed_by_two_ranks_and_two_workers_each_comes_whole_and_goes_on_from_the_middle(
    kind, realdata, tmp_path
):
    """1,200 of its images in 4 shards, pixels and all: none twice in an epoch, none lost, the same from step 7 on."""
    source = open_images("cifar100", "train", realdata / "cifar100", stream=True).sample(1200)
    pictures = [source.picture(i) for i in range(len(source))]
    for shard in range(4):
        contents = [encoded(image) for image in pictures[300 * shard : 300 * shard + 300]]
        path = tmp_path / f"train-{shard:05d}.{kind}"
        if kind == "parquet":
            cells = [{"bytes": content, "path": None} for content in contents]
            pq.write_table(pa.table({"img": cells, "fine_label": [0] * 300}), path, row_group_size=100)
            continue
        with tarfile.open(path, "w") as archive:
            for nth, content in enumerate(contents):
                member = tarfile.TarInfo(f"{shard}-{nth}.png")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    shards = open_images("cifar100", "train", tmp_path, stream=True)
    views = Views(WHOLE, PLAIN, size=32, seed=0)

    def streamed(first: int) -> list[bytes]:
        ranks = [
            batches(shards, views, first=first, last=12, batch_size=100, rank=rank, world=2, workers=2)
            for rank in (0, 1)
        ]
        steps = [
            torch.cat([part.pixels[0] for part in parts]).permute(0, 2, 3, 1).numpy()
            for parts in zip(*ranks, strict=True)
        ]
        return [image.tobytes() for step in steps for image in step]

    epoch = streamed(0)
    assert Counter(epoch) == Counter(np.asarray(image).tobytes() for image in pictures)
    assert streamed(7) == epoch[700:]


def test_monitored_images_fit_their_memory(mine):
    monitored, indices = monitored_images(open_images("cifar10", "train", f"folder:{mine}", stream=True), 224)
    assert monitored.pixels().shape == (18, 224, 224, 3)
    assert len(set(indices.tolist())) == 18
