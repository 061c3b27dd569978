"""Looking at a data set of the user's own once: what `zoo data` keeps and prints."""

import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from zoo.errors import BadData, BadImage
from zoo.images.index import Encoded, Index, content_of
from zoo.images.own import own_indices
from zoo.images.pixels import decode, fit
from zoo.images.registry import HUB, Facts, check_name

THREADS = 4
SIZES = ((40, 32), (80, 64), (128, 96))  # median shorter side up to this: image size, pixels
LARGE = 224  # pixels, for larger ones
STATISTICS = 96  # pixels that larger images are brought to for mean and std
LOOKED_AT = 500  # pictures that decide the image size


class _Seen(NamedTuple):
    """What is known of one picture; of one that cannot be decoded, `reason`."""

    name: str
    digest: bytes
    size: tuple[int, int] = (0, 0)  # width, height
    mode: str = ""
    sums: np.ndarray = np.zeros((2, 3))  # (2, 3): of the pixels in [0, 1], and of their squares
    pixels: int = 0
    reason: str = ""


def survey(
    name: str,
    place: str,
    *,
    image_size: int | None = None,
    image_column: str = "",
    label_column: str = "",
    licence: str = "",
    source: str = "",
) -> Facts:
    """Decode every picture of a data set once, and say what it holds.

    Args:
        name: lower-case letters and digits, no name of this package's.
        place: whatever `zoo.images.own.own_splits` reads.
        image_size: pixels, H = W, that images are brought to; by default from their own sizes.
        image_column: of pictures or files; "" finds it by its name.
        label_column: of labels; "" finds it by its name.
        licence: as its owner states it.
        source: where it is from.

    Raises BadData if the name cannot be one, nothing can be read, or a class index is negative.
    """
    check_name(name)
    where = place if place.startswith(HUB) else str(Path(place).resolve())
    columns = {"image": image_column, "label": label_column}
    indices, drawn = own_indices(where, **columns)
    train = indices["train"]
    classes = _classes(indices, where)
    size = image_size or _image_size(train, where)
    seen = {split: _look(index, min(size, STATISTICS)) for split, index in indices.items()}
    readable = [one for one in seen["train"] if not one.reason]
    if not readable:
        first = next((one for one in seen["train"]), None)
        told = f", such as {first.name}: {first.reason}" if first else ""
        raise BadData(f"{where}: none of {len(train)} train images can be decoded{told}")
    mean, std = _statistics(readable)
    everything = [one for part in seen.values() for one in part if not one.reason]
    hashes = {split: [one.digest for one in part if not one.reason] for split, part in seen.items()}
    duplicates = {split: len(mine) - len(set(mine)) for split, mine in hashes.items()}
    if "test" in hashes:
        duplicates["across"] = sum(one in set(hashes["train"]) for one in hashes["test"])
    facts = Facts(
        name=name,
        place=where,
        classes=classes,
        image_size=size,
        mean=mean,
        std=std,
        several_labels=train.labels.ndim > 1,
        image_column=image_column,
        label_column=label_column,
        licence=licence,
        source=source,
        splits={split: _split_facts(indices[split], seen[split], classes) for split in indices},
        drawn=drawn if "test" in indices else "",
        sizes=_sizes([one.size for one in everything]),
        modes=dict(Counter(one.mode for one in everything).most_common()),
        duplicates=duplicates,
        others=dict(train.others),
        date=date.today().isoformat(),
    )
    return replace(facts, warnings=tuple(_warnings(facts)))


def _classes(indices: dict[str, Index], where: str) -> tuple[str, ...]:
    """The names of the classes; their numbers where they have no names."""
    named = {index.classes for index in indices.values() if index.classes}
    if len(named) > 1:
        one, other = list(named)[:2]
        raise BadData(f"{where}: its splits name different classes: {sorted(set(one) ^ set(other)) or 'another order'}")
    if named:
        return next(iter(named))
    labels = np.concatenate([index.labels.ravel() for index in indices.values()])
    if labels.min() < -1:
        raise BadData(f"{where}: there is a label {labels.min()}; a label is a class index, or -1 for none")
    first = next(iter(indices.values())).labels
    return tuple(map(str, range(first.shape[1] if first.ndim > 1 else int(labels.max()) + 1)))


def _image_size(index: Index, where: str) -> int:
    """The pictures' own size where all are squares of one size up to 96 px, else one by their median shorter side."""
    sizes = []
    for i in np.unique(np.linspace(0, len(index) - 1, LOOKED_AT).astype(int)).tolist():
        try:
            sizes.append(decode(*index.read(i)).size)
        except (BadImage, OSError):
            continue
    if not sizes:
        raise BadData(f"{where}: none of its images can be decoded, such as {index.read(0).name}")
    if len(set(sizes)) == 1 and sizes[0][0] == sizes[0][1] <= STATISTICS:
        return sizes[0][0]
    side = float(np.median([min(size) for size in sizes]))
    return next((size for most, size in SIZES if side <= most), LARGE)


def _look(index: Index, size: int) -> list[_Seen]:
    from tqdm import tqdm

    places = tqdm(range(len(index)), desc="looking at images", unit=" images", leave=False, disable=None)
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(lambda i: _look_at(index.read(i), size), places))
    return found + [_Seen(name, b"", reason=reason) for name, reason in index.skipped.items()]


def _look_at(encoded: Encoded, size: int) -> _Seen:
    name, picture = encoded
    try:
        content = content_of(picture)
        image = decode(name, content if isinstance(picture, Path) else picture)
        mode = _mode(picture, content)
    except (BadImage, OSError) as error:
        return _Seen(name, b"", reason=str(error).removeprefix(f"{name}: "))
    pixels = np.asarray(fit(image, image_size=size)).reshape(-1, 3) / 255
    sums = np.stack([pixels.sum(0), (pixels**2).sum(0)])
    return _Seen(name, hashlib.blake2b(content, digest_size=16).digest(), image.size, mode, sums, len(pixels))


def _mode(picture: bytes | Path | np.ndarray, content: bytes) -> str:
    """Pillow's word for the pixels as they are stored."""
    if isinstance(picture, np.ndarray):
        return "L" if picture.ndim == 2 or picture.shape[-1] == 1 else "RGB" if picture.shape[-1] == 3 else "RGBA"
    with Image.open(io.BytesIO(content)) as image:
        return str(image.mode)


def _statistics(seen: Sequence[_Seen]) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and std of RGB in [0, 1] over all pixels."""
    total = sum(one.pixels for one in seen)
    mean, square = np.sum([one.sums for one in seen], axis=0) / total
    std = np.sqrt(np.maximum(square - mean**2, 1e-8))
    red, green, blue = (round(float(value), 4) for value in mean)
    one, two, three = (round(max(float(value), 1e-4), 4) for value in std)
    return (red, green, blue), (one, two, three)


def _split_facts(index: Index, seen: Sequence[_Seen], classes: Sequence[str]) -> dict[str, object]:
    labels, good = index.labels, [not one.reason for one in seen[: len(index)]]
    if labels.ndim > 1:
        counts = {name: int((labels[good, i] == 1).sum()) for i, name in enumerate(classes)}
        unlabelled = int((labels[good] < 0).all(1).sum())
    else:
        counts = {name: int((labels[good] == i).sum()) for i, name in enumerate(classes)}
        unlabelled = int((labels[good] < 0).sum())
    pairs = sorted(one.digest + labels[i].tobytes() for i, one in enumerate(seen[: len(index)]) if not one.reason)
    return {
        "images": sum(good),
        "per_class": counts,
        "unlabelled": unlabelled,
        "unreadable": {one.name: one.reason for one in seen if one.reason},
        "digest": hashlib.sha256(b"".join(pairs)).hexdigest(),
    }


def _sizes(sizes: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
    ordered = sorted(sizes, key=lambda size: size[0] * size[1])
    named = {"smallest": ordered[0], "median": ordered[len(ordered) // 2], "largest": ordered[-1]}
    return {name: list(size) for name, size in named.items()}


def _warnings(facts: Facts) -> list[str]:
    """What a user should know before training on the data set or measuring with it."""
    found = []
    train = facts.splits["train"]
    for split, part in facts.splits.items():
        if bad := len(part["unreadable"]):
            found.append(f"{bad:,} of {bad + part['images']:,} {split} images cannot be read and are left out")
        if part["unlabelled"] and facts.classes:
            found.append(f"{part['unlabelled']:,} {split} images have no label")
        if twice := facts.duplicates[split]:
            found.append(f"{twice:,} {split} images are exact copies of others in {split}")
    if across := facts.duplicates.get("across"):
        found.append(f"{across:,} test images are exact copies of train images: scores are flattered")
    if not facts.classes:
        found.append("no labels: it can be trained on, but nothing can be measured with it")
    if len(facts.classes) == 1:
        found.append("one class alone: accuracy would be 100 % whatever the encoder")
    for split, part in facts.splits.items():
        none = [name for name, count in part["per_class"].items() if not count]
        if none:
            found.append(f"{len(none)} classes have no {split} image: {', '.join(none[:5])}")
    single = [name for name, count in train["per_class"].items() if count == 1]
    if single:
        found.append(f"{len(single)} classes have one train image: {', '.join(single[:5])}")
    if facts.drawn:
        found.append(f"it has no test split; drawn: {facts.drawn}")
    grey = sum(count for mode, count in facts.modes.items() if mode in ("L", "1", "I;16", "LA"))
    if grey:
        found.append(f"{grey:,} images are grey; their one channel is repeated to RGB")
    if min(facts.sizes["smallest"]) < 8:
        found.append("the smallest image is {} x {} pixels".format(*facts.sizes["smallest"]))
    return found
