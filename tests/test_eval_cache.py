"""Features on disk: the same numbers as without, resumable, shared by index, and loud about damage."""

import json
import resource

import numpy as np
import pytest

import eval.cache
from eval.cache import cached_features
from eval.features import RawPixels, extract
from zoo.errors import BadData, CorruptFile, ZooError
from zoo.files import zoo_home
from zoo.images.image_set import ImageSet, from_pixels


class Counting(RawPixels):
    """Raw pixels that count how many images they were asked for, and may refuse to go on."""

    def __init__(self, *, stop_after: int = 10**9, factor: float = 1.0) -> None:
        super().__init__(4)
        self.asked, self.stop_after, self.factor = 0, stop_after, factor

    def embed_pixels(self, pixels):
        if self.asked >= self.stop_after:
            raise KeyboardInterrupt
        self.asked += len(pixels)
        return super().embed_pixels(pixels) * np.float32(self.factor)


@pytest.fixture
def split(monkeypatch) -> ImageSet:
    """50 images of 4 px, the 8th without a label; each batch is a block of its own."""
    monkeypatch.setattr(eval.cache, "BLOCK_SECONDS", 0.0)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 50)
    labels[7] = -1
    return from_pixels("digits", "train", rng.integers(0, 256, (50, 4, 4, 3), np.uint8), labels, tuple("012"), "a" * 64)


def read(encoder, split, **more):
    return cached_features(encoder, split, encoder_sha256="e" * 64, batch_size=10, **more)


def test_cached_features_are_the_extracted_ones_to_half_precision_and_are_asked_for_once(split):
    encoder = Counting()
    first, again, plain = read(encoder, split), read(encoder, split), extract(RawPixels(4), split)
    assert encoder.asked == 49
    assert np.array_equal(first.rows, again.rows)
    assert first.labels.tolist() == plain.labels.tolist()
    assert np.abs(first.rows - plain.rows).max() <= 2**-11  # relative to the row's largest entry, which is <= 1


@pytest.mark.parametrize("factor", [1e-12, 1e12])
def test_the_scale_of_features_costs_no_precision(split, factor):
    features, plain = read(Counting(factor=factor), split), extract(RawPixels(4), split)
    assert np.abs(features.rows / factor - plain.rows).max() <= 2**-11


def test_an_interrupted_extraction_goes_on_with_the_block_it_was_at(split):
    first = Counting(stop_after=20)
    with pytest.raises(KeyboardInterrupt):
        read(first, split)
    second = Counting()
    features = read(second, split)
    assert second.asked == 49 - 20  # two blocks of 10 were whole
    assert np.abs(features.rows - extract(RawPixels(4), split).rows).max() <= 2**-11


@pytest.mark.parametrize("batch_size", [1, 10])
def test_a_stop_costs_about_20_seconds_of_work_whatever_the_size_of_an_image(split, monkeypatch, batch_size):
    """A clock that each batch moves on by 7 seconds: three batches are a block."""
    monkeypatch.setattr(eval.cache, "BLOCK_SECONDS", 20.0)
    clock = [0.0]
    monkeypatch.setattr("eval.cache.time.monotonic", lambda: clock[0])

    class Timed(Counting):
        def embed_pixels(self, pixels):
            clock[0] += 7
            return super().embed_pixels(pixels)

    with pytest.raises(KeyboardInterrupt):
        cached_features(Timed(stop_after=4 * batch_size), split, encoder_sha256="e", batch_size=batch_size)
    second = Timed()
    features = cached_features(second, split, encoder_sha256="e", batch_size=batch_size)
    assert second.asked == 49 - 3 * batch_size
    assert np.abs(features.rows - extract(RawPixels(4), split).rows).max() <= 2**-11


def test_blocks_of_an_earlier_version_are_used(split):
    with pytest.raises(KeyboardInterrupt):
        read(Counting(stop_after=20), split)
    for path in zoo_home().rglob("*.blocks/*.npz"):
        with np.load(path) as arrays:
            old = {name: arrays[name] for name in ("rows", "scales")}
        np.savez(path, **old)
    second = Counting()
    features = read(second, split)
    assert second.asked == 29
    assert np.abs(features.rows - extract(RawPixels(4), split).rows).max() <= 2**-11


def test_processes_share_the_batches_and_no_image_is_done_twice(split):
    """When rank 0 waits before its work, rank 1 of 2 does its own and ends; rank 0 then finds it all."""
    one, two, waits = Counting(), Counting(), []

    def other_rank():
        waits.append(None)
        if len(waits) == 2:
            with pytest.raises(StopIteration):
                read(one, split, rank=1, processes=2, wait=iter([None, None]).__next__)

    features = read(two, split, rank=0, processes=2, wait=other_rank)
    assert (one.asked, two.asked) == (20, 29)  # batches 1 and 3; batches 0, 2 and 4
    assert np.abs(features.rows - extract(RawPixels(4), split).rows).max() <= 2**-11


def test_features_that_another_process_failed_to_extract_are_missed(split):
    with pytest.raises(CorruptFile, match="20 of 49 features are missing"):
        read(Counting(), split, rank=0, processes=2)
    assert not list(zoo_home().rglob("manifest.json"))


def test_other_data_another_encoder_and_another_layer_are_other_features(split):
    changed = from_pixels(split.name, "train", 255 - split.pixels(), split.labels, split.classes, "b" * 64)
    plain = read(Counting(), split).rows
    assert not np.allclose(plain, read(Counting(), changed).rows)
    twice = cached_features(Counting(factor=2), split, encoder_sha256="f" * 64)
    assert np.allclose(twice.rows, 2 * plain, atol=2**-9)
    layer = Counting()
    read(layer, split, layer="projector")
    assert layer.asked == 49


def test_a_cache_of_another_version_is_not_asked_for(split, monkeypatch):
    read(Counting(), split)
    monkeypatch.setattr(eval.cache, "FORMAT", 2)
    encoder = Counting()
    read(encoder, split)
    assert encoder.asked == 49


@pytest.mark.parametrize("damage", ["manifest", "cut", "shape", "not json"])
def test_a_damaged_cache_says_which_folder_to_delete(split, damage):
    read(Counting(), split)
    (folder,) = (zoo_home() / "cache" / "features").iterdir()
    manifest = folder / "manifest.json"
    if damage == "manifest":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 0}))
    elif damage == "cut":
        (folder / "rows.npy").write_bytes((folder / "rows.npy").read_bytes()[:500])
    elif damage == "shape":
        np.save(folder / "rows.npy", np.zeros((3, 48), np.float16))
    else:
        manifest.write_text("{")
    with pytest.raises(CorruptFile, match=f"{folder.name}.*Delete the folder"):
        read(Counting(), split)


def test_a_feature_that_is_not_finite_is_refused_and_leaves_no_cache(split):
    with pytest.raises(BadData, match="not finite"):
        read(Counting(factor=np.nan), split)
    assert not list(zoo_home().rglob("manifest.json"))


def test_a_disk_that_takes_no_more_is_an_error_of_one_line(split):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ZooError, match="cannot write"):
            read(Counting(), split)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(read(Counting(), split)) == 49
