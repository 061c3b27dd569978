"""What a format of image sets gives: labels, and a way to read each picture while it is still encoded."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, final

import numpy as np

HELD_BYTES = 2**31  # of encoded pictures in blocks, kept between two readings


class Encoded(NamedTuple):
    """One picture before decoding."""

    name: str  # for messages
    picture: bytes | Path | np.ndarray


@dataclass(frozen=True, eq=False)
class Index:
    """The pictures of one split as they are stored: nothing is decoded, and only labels and sizes have been read."""

    labels: np.ndarray  # (n,) int64, -1 where there is none, or (n, C)
    classes: tuple[str, ...]  # their names; empty where none are given
    blocks: np.ndarray  # (n,) int64, equal for neighbours that are cheap to read together
    facts: Sequence[tuple[str, int]]  # names and sizes on disk, which the digest is of
    read: Callable[[int], Encoded]
    skipped: dict[str, str] = field(default_factory=dict)  # pictures known to be unreadable, with the reason
    others: dict[str, int] = field(default_factory=dict)  # files that are no images, by suffix

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def digest(self) -> str:
        """sha256 of names and sizes on disk, and of the labels."""
        return hashlib.sha256(json.dumps(self.facts).encode() + self.labels.tobytes()).hexdigest()


def content_of(picture: bytes | Path | np.ndarray) -> bytes:
    """The bytes of a picture as it is stored."""
    if isinstance(picture, Path):
        return picture.read_bytes()
    return picture if isinstance(picture, bytes) else picture.tobytes()


def index_of_files(
    root: Path, paths: Sequence[Path], labels: Sequence[int] | np.ndarray, classes: Sequence[str], **others: Any
) -> Index:
    """Of one file for each picture, `paths` below `root`. Each is a block: any order reads as well as any other."""
    facts = [(str(path), (root / path).stat().st_size) for path in paths]
    known = np.asarray(labels, np.int64)
    return Index(
        known, tuple(classes), np.arange(len(paths)), facts, lambda i: Encoded(str(paths[i]), root / paths[i]), **others
    )


@final
class BlockCache:
    """`load(block)`, the most recent blocks kept up to HELD_BYTES; two threads never load the same one twice."""

    def __init__(self, load: Callable[[int], list[bytes]]) -> None:
        self._load, self._lock, self._bytes = load, Lock(), 0
        self._blocks: OrderedDict[int, list[bytes]] = OrderedDict()

    def __call__(self, block: int) -> list[bytes]:
        with self._lock:
            if block not in self._blocks:
                self._blocks[block] = self._load(block)
                self._bytes += sum(map(len, self._blocks[block]))
            self._blocks.move_to_end(block)
            while self._bytes > HELD_BYTES and len(self._blocks) > 1:
                self._bytes -= sum(map(len, self._blocks.popitem(last=False)[1]))
            return self._blocks[block]
