"""An index is one file: unit embeddings of a folder's images, for the nearest of them to be found by cosine.

`zoo index NAME DIR` writes it and brings it up to date; `zoo serve NAME --index FILE` answers from it, and takes up a
new version of the file as soon as it is there.
"""

import difflib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, final

import numpy as np

from serve.log import logger
from serve.refusal import Refused
from zoo.errors import CorruptFile, NoWeights, ZooError, needs
from zoo.files import new_file

FORMAT = "contrastive-zoo-index/1"
SUFFIX = ".index.npz"


class Entry(NamedTuple):
    """One image file as it was when it was embedded."""

    path: str  # below the indexed folder, with /
    size: int  # bytes
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What an index file says about itself."""

    model: str
    weights_sha256: str  # of the model: vectors of other weights are not comparable
    dim: int
    folder: str  # absolute; of this machine, no answer tells it
    entries: list[Entry]
    format: str = FORMAT


def write_index(path: Path, facts: Facts, vectors: np.ndarray) -> None:
    """Write vectors (N, D) float32 and what they are of, aside and then in place of an earlier file."""
    text = np.frombuffer(json.dumps(asdict(facts)).encode(), np.uint8)
    with new_file(path) as aside, aside.open("wb") as file:
        np.savez(file, vectors=vectors.astype("<f4"), facts=text)


def read_index(path: Path) -> tuple[Facts, np.ndarray]:
    """The facts and the vectors (N, D) float32. Raises NoWeights if there is no file, CorruptFile if it is not ours."""
    if not path.is_file():
        raise NoWeights(f"{path} is not there. Make it: zoo index NAME FOLDER -o {path}")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            vectors, written = file["vectors"], json.loads(file["facts"].tobytes())
        facts = Facts(**written | {"entries": [Entry(*entry) for entry in written["entries"]]})
        if facts.format != FORMAT:
            raise ValueError(f"format {facts.format!r}, this version reads {FORMAT!r}")
        if vectors.dtype != np.float32 or vectors.shape != (len(facts.entries), facts.dim):
            raise ValueError(f"{len(facts.entries)} entries of {facts.dim} numbers, vectors {vectors.shape}")
    except Exception as error:  # zipfile, zlib, numpy and json have a dozen words for a damaged file
        raise CorruptFile(
            f"{path}: not a sound index ({str(error).partition('. ')[0]}). Delete it and make it again: "
            f"zoo index NAME FOLDER -o {path}"
        ) from error
    return facts, vectors


@final
class Index:
    """An index file, opened for search. Raises what `read_index` raises."""

    def __init__(self, path: Path) -> None:
        with needs("index"):
            import faiss

        stamp = _stamp(path)  # before reading: a file replaced meanwhile is seen as new
        self._facts, vectors = read_index(path)
        self.stamp = stamp
        self._search = faiss.IndexFlatIP(self._facts.dim)
        self._search.add(vectors)
        self.name = path.name.removesuffix(SUFFIX)
        self.model, self.weights_sha256 = self._facts.model, self._facts.weights_sha256

    def __len__(self) -> int:
        return len(self._facts.entries)

    def nearest(self, query: np.ndarray, k: int) -> list[dict[str, Any]]:
        """`path` and `similarity` (cosine) of the k images nearest to a unit vector (D,), the nearest first."""
        if not len(self):
            return []
        cosines, places = self._search.search(query[None], min(k, len(self)))
        found = zip(places[0].tolist(), cosines[0].tolist(), strict=True)
        return [{"path": self._facts.entries[place].path, "similarity": cosine} for place, cosine in found]


@final
class Indexes:
    """The indexes of one server, by name; each is opened again when its file was replaced."""

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}
        self._open: dict[str, Index] = {}
        self._weights: dict[str, str] = {}
        self._taking_up = Lock()

    def start(self, paths: list[Path], weights: dict[str, str]) -> None:
        """Open index files. weights: sha256 of the served models' weights, by name.

        Raises NoWeights, CorruptFile, or ZooError for an index of a model that is not served, or of an earlier's name.
        """
        self._weights = weights
        for path in paths:
            index = self._checked(path)
            if index.name in self._paths:
                raise ZooError(f"{path} and {self._paths[index.name]} are both named {index.name}. Rename one of them")
            self._paths[index.name], self._open[index.name] = path, index

    def get(self, name: str = "") -> Index:
        """The index of that name, or the first one. Raises Refused (404)."""
        if not self._paths:
            raise Refused(
                404, "this server has no index. Start it with one: zoo serve NAME --index FILE", param="index"
            )
        name = name or next(iter(self._paths))
        if name not in self._paths:
            near = difflib.get_close_matches(name, self._paths, n=3) or list(self._paths)
            raise Refused(404, f"no index {name[:100]!r}; this server has {', '.join(near)}", param="index")
        self._take_up(name)
        return self._open[name]

    def facts(self) -> list[dict[str, Any]]:
        """One row an index: its name, its model, how many images."""
        return [{"id": name, "model": (index := self.get(name)).model, "images": len(index)} for name in self._paths]

    def _take_up(self, name: str) -> None:
        """Open the file of an index again if it was replaced; if that fails, log it and keep the earlier.

        Only one request does so at a time, as a large file opened by all of them would fill the memory; the others
        get the earlier index.
        """
        if not self._taking_up.acquire(blocking=False):
            return
        path, stamp = self._paths[name], _stamp(self._paths[name])
        try:
            if stamp not in (None, self._open[name].stamp):
                self._open[name] = self._checked(path)
        except ZooError as error:
            logger.error("index not taken up", extra={"fields": {"index": name, "reason": str(error)}})
            self._open[name].stamp = stamp  # not read again at every request
        finally:
            self._taking_up.release()

    def _checked(self, path: Path) -> Index:
        index = Index(path)
        if self._weights.get(index.model) != index.weights_sha256:
            raise ZooError(
                f"{path} was made with {index.model}, weights {index.weights_sha256[:12]}...; this server has "
                f"{', '.join(self._weights)}. Make it again: zoo index"
            )
        return index


def index_paths_from_environment() -> list[Path]:
    """The files that `$ZOO_INDEX` names, separated by commas."""
    return [Path(word.strip()) for word in os.environ.get("ZOO_INDEX", "").split(",") if word.strip()]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is replaced; None if it is not there, or out of reach."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
