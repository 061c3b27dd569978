"""`open_images`: a data set's name and the place it is in become an `ImageSet`."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from zoo.errors import BadData, UnknownName, unknown
from zoo.images.archive import unpacked
from zoo.images.dataset import DIGITS, SPLITS, Dataset, SplitName, dataset_row
from zoo.images.folder import class_folders, own_images
from zoo.images.hub_copy import hub_copy
from zoo.images.image_set import ImageSet, from_pixels
from zoo.images.index import Index
from zoo.images.own import files_of, own_index
from zoo.images.parquet import parquet_shards
from zoo.images.pixel_cache import CachedPixels, cached_pixels
from zoo.images.registry import keep_facts, read_facts
from zoo.images.survey import survey
from zoo.images.tar import tar_shards
from zoo.images.voc import voc_images
from zoo.images.walk import reads_heif, suffix_of, walk

LARGEST_CACHED = 96  # pixels; larger images would not fit a memory-mapped array of the whole split
FOLDER = "folder:"  # before the path of a folder of one's own


def open_images(name: str, split: SplitName, data: str | Path | None = None, *, stream: bool = False) -> ImageSet:
    """The `split` of the data set `name`.

    Images of up to LARGEST_CACHED px are decoded once into a memory-mapped cache under `$ZOO_HOME`; larger ones stay
    where they are and are decoded when they are asked for.

    Args:
        name: a row of `zoo.images.dataset`, or a data set of the user's own: one that `zoo data` keeps, or any new
            name together with `data`, which is looked at then.
        split: "train" or "test".
        data: a folder of Parquet or tar shards (`<split>-*.parquet`, `<split>/*.parquet`, the same with .tar), a
            folder `<split>/<class>/<image>`, a folder in VOC layout where an image is of several classes, or an archive
            (zip, tar) of one of these. `folder:PATH` takes all images below a folder in place of the data set's, as the
            train split. None takes the Hub's copy (digits: scikit-learn's). For a data set of the user's own whatever
            `zoo.images.own.own_splits` reads; None takes the place that is kept with its name.
        stream: decode images when they are asked for, whatever their size.

    Raises:
        UnknownName: no such data set or split.
        FileNotFoundError: `data` is not there.
        BadData: it does not hold the data set.
        CorruptFile: the cache is damaged.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    row = known_row(name, data)
    if row.own and not str(data).startswith(FOLDER):
        return _open_own(name, split, row, str(data or row.place), stream=stream)
    if data is None and row.hub == DIGITS:
        return digits(split)
    own = str(data).startswith(FOLDER)
    source = _source(name, split, row, data)

    @cache
    def index() -> Index:
        return _checked(_index(name, split, row, source, own=own), row, str(source or row.hub), own=own)

    if stream or row.image_size > LARGEST_CACHED:
        return _on_disk(name, split, row, index, source)
    settings = [row.hub, row.label, row.classes, own, reads_heif()]
    found = cached_pixels(index, name=f"{name}-{split}", image_size=row.image_size, source=source, settings=settings)
    return _in_memory(name, split, row, index, source, found)


def _in_memory(
    name: str, split: str, row: Dataset, index: Callable[[], Index], source: Path | None, found: CachedPixels
) -> ImageSet:
    return ImageSet(
        name,
        split,
        found.labels,
        found.classes,
        found.sha256,
        size=row.image_size,
        rows=found.rows,
        index=index,
        source=source,
        array=found.pixels,
        square=found.square,
        skipped=found.skipped,
        left_out=len(found.skipped),
    )


def known_row(name: str, data: str | Path | None = None) -> Dataset:
    """`dataset_row`; a new name with `data` becomes a data set of the user's own. Raises what `survey` raises."""
    try:
        return dataset_row(name)
    except UnknownName:
        if data is None:
            raise
    facts = survey(name, str(data).removeprefix(FOLDER))
    keep_facts(facts)
    return facts.row()


def _open_own(name: str, split: SplitName, row: Dataset, place: str, *, stream: bool) -> ImageSet:
    source, columns = files_of(place), {"image": row.image, "label": row.label}
    drawn: list[str] = []

    @cache
    def index() -> Index:
        found, how = own_index(place, split, **columns)
        drawn.append(how)
        classes = found.classes or row.names
        if classes != row.names or (found.labels.ndim == 1 and found.labels.max() >= max(1, len(row.names))):
            raise BadData(f"{place}: not the classes that are kept for {name}. Look again: zoo data {name} {place}")
        return replace(found, classes=classes)

    if stream or row.image_size > LARGEST_CACHED:
        found = _on_disk(name, split, row, index, source)
        return replace(found, drawn=drawn[-1])
    settings = [place, *columns.values(), row.names, split, reads_heif()]
    cached = cached_pixels(index, name=f"{name}-{split}", image_size=row.image_size, source=source, settings=settings)
    return replace(_in_memory(name, split, row, index, source, cached), drawn=read_facts(name).drawn)


def _on_disk(name: str, split: str, row: Dataset, index: Callable[[], Index], source: Path | None) -> ImageSet:
    found = index()
    return ImageSet(
        name,
        split,
        found.labels,
        found.classes,
        found.digest,
        size=row.image_size,
        rows=np.arange(len(found)),
        index=index,
        source=source,
        skipped=dict(found.skipped),
        left_out=len(found.skipped),
    )


def _source(name: str, split: SplitName, row: Dataset, data: str | Path | None) -> Path | None:
    """The folder that the images are in; None for the Hub's copy. Raises FileNotFoundError, BadData."""
    if data is None:
        if not row.hub:
            raise BadData(f"{name} is on no hub; give its folder or archive as data")
        return None
    if str(data).startswith(FOLDER):
        folder = Path(str(data).removeprefix(FOLDER))
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder; {FOLDER}PATH takes a folder of images")
        if split != "train":
            raise BadData(f"{data} has no {split} split; it is for training. Evaluate on a labelled data set")
        return folder.resolve()
    if not Path(data).exists():
        raise FileNotFoundError(
            f"{data}: no such folder or archive; data is a folder of Parquet or tar shards ({split}-*.parquet), a "
            f"folder {split}/<class>/<image>, a zip or tar of either, or {FOLDER}PATH, a folder of any images"
        )
    return unpacked(Path(data))


def _index(name: str, split: SplitName, row: Dataset, source: Path | None, *, own: bool) -> Index:
    """The encoded images in the format that the folder has."""
    if source is None:
        return _of_all_classes(hub_copy(row, split), row, f"{row.hub} on the Hub")
    if own:
        return own_images(source)
    if row.several_labels:
        return voc_images(source, split)
    files = walk(source).files
    other = SPLITS[1 - SPLITS.index(split)]
    for suffix in (".parquet", ".tar"):
        mine, siblings = ([source / path for path in shards_of(files, each, suffix)] for each in (split, other))
        if mine and suffix == ".parquet":
            return _of_all_classes(parquet_shards(mine, row.label, siblings=siblings), row, str(source))
        if mine:
            return _of_all_classes(tar_shards(mine, siblings=siblings), row, str(source))
    if (source / split).is_dir():
        index = class_folders(source, split)
        _check_depth([Path(name) for name, _ in index.facts], index, row, source / split)
        return index
    wanted = f"{split}-*.parquet or {split}-*.tar shards, or a folder {split}/"
    raise BadData(f"{source}: no {split} split of {name}; expected {wanted}. {FOLDER}{source} takes any images in it")


def _of_all_classes(index: Index, row: Dataset, where: str) -> Index:
    """The index itself. Raises BadData if it names another number of classes than the row has."""
    if index.classes and len(index.classes) != row.classes:
        raise BadData(
            f"{where}: {len(index.classes)} classes ({', '.join(index.classes[:3])} ...), not {row.classes}; another "
            "data set?"
        )
    return index


def _check_depth(paths: Sequence[Path], index: Index, row: Dataset, where: Path) -> None:
    """Raises BadData if the folders that should be the classes hold folders alone, and are not as many."""
    if len(index.classes) == row.classes or not all(len(path.parts) > 2 for path in paths):
        return
    below = sorted({path.parts[1] for path in paths})
    raise BadData(
        f"{where}: its {len(index.classes)} folders ({_some(index.classes)}) are to be the {row.classes} classes, but "
        f"they hold folders, no images: {_some(below)}. Put one folder for each class there"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def shards_of(files: Sequence[Path], split: str, suffix: str) -> list[Path]:
    """The files `<split>-*`, `*-<split>-*`, `<split>`, and those in a folder <split>, with that suffix."""
    return [
        path
        for path in files
        if suffix_of(path.name) == suffix and (split in path.parts[:-1] or _is_shard(path.stem, split))
    ]


def _is_shard(stem: str, split: str) -> bool:
    return stem == split or stem.startswith(f"{split}-") or f"-{split}-" in stem


def _checked(index: Index, row: Dataset, where: str, *, own: bool) -> Index:
    """With a name for every class. Raises BadData if the index is not of the row's data set."""
    if not len(index):
        raise BadData(f"{where}: no image in its shards")
    if own:
        return index
    if len(index.classes) > row.classes:
        raise BadData(f"{where}: {len(index.classes)} classes, allowed {row.classes}; is it another data set?")
    least, most = int(index.labels.min()), int(index.labels.max())
    if not -1 <= least <= most < row.classes:
        raise BadData(f"{where}: labels {least}..{most}, allowed 0..{row.classes - 1}, or -1 for none")
    return replace(index, classes=index.classes or tuple(map(str, range(row.classes))))


def digits(split: str) -> ImageSet:
    """scikit-learn's digits: grey levels 0..16 spread over 0..255."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    cut = round(0.8 * len(bunch.target))
    rows = slice(None, cut) if split == "train" else slice(cut, None)
    grey = np.round(bunch.images[rows] * (255 / 16)).astype(np.uint8)
    pixels = np.repeat(grey[..., None], 3, axis=-1)  # (n, 8, 8, 3)
    labels = bunch.target[rows].astype(np.int64)
    digest = hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()
    return from_pixels("digits", split, pixels, labels, tuple("0123456789"), digest)
