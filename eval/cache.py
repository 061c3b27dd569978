"""Features on disk: one folder for (encoder, data, layer, preprocessing), as memory-mapped float16 with a manifest.

Blocks of images are written by index, each one whole or not at all. So a killed extraction goes on where it was, and
several processes share the work without any padding. float16 costs k-NN nothing that could be measured (agreement
0.9996 to 1.0000 on 50,000 x 2048); each row has a scale of its own, so no feature is too large or too small for it.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from tqdm import tqdm

from eval.features import Features, PixelEncoder, batch_of, embed_rows, labelled
from zoo.errors import BadData, CorruptFile
from zoo.files import locked, new_folder, write_bytes, zoo_home
from zoo.images.split import Split
from zoo.provenance import today, versions

FORMAT = 1  # raise it when the layout or the preprocessing changes: older folders are then never asked for
BLOCK = 1024  # images


def cached_features(
    encoder: PixelEncoder,
    split: Split,
    *,
    encoder_sha256: str,
    layer: str = "backbone",
    batch_size: int | None = None,
    rank: int = 0,
    processes: int = 1,
    wait: Callable[[], object] = lambda: None,
    progress: str = "",
) -> Features:
    """Features of the labelled images of `split`, from `$ZOO_HOME/cache/features`, extracted if they are not there yet.

    encoder_sha256: names everything that decides a feature: weights, architecture, normalisation.
    batch_size: by default `batch_of` the encoder.
    rank, processes, wait: every process extracts the blocks rank, rank + processes, ...; `wait` returns when all of
    them have called it.
    Raises BadData (no label, a feature not finite), CorruptFile (a damaged cache), ZooError (a full disk).
    """
    index = labelled(split)
    facts = {
        "format": FORMAT,
        "encoder_sha256": encoder_sha256,
        "data_sha256": split.sha256,
        "layer": layer,
        "image_size": encoder.image_size,
        "n": len(index),
        "dim": encoder.dim,
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]
    folder = zoo_home() / "cache" / "features" / key
    blocks, manifest = folder.with_suffix(".blocks"), folder / "manifest.json"
    alone = locked(blocks) if rank == 0 and not manifest.is_file() else nullcontext()
    with alone:  # another evaluation that wants the same features waits for these
        wait()
        if not manifest.is_file():
            starts = range(rank * BLOCK, len(index), processes * BLOCK)
            for start in tqdm(starts, desc=progress, unit=" blocks", leave=False, disable=not progress or rank > 0):
                part = index[start : start + BLOCK]
                _write_block(blocks / f"{start}.npz", encoder, split, part, batch_size or batch_of(encoder.image_size))
            wait()
            if rank == 0:
                _merge(blocks, folder, facts)
            wait()
        if rank == 0:
            shutil.rmtree(blocks, ignore_errors=True)  # of a waiter, too: asking for the lock made the folder
    return Features(_read(folder, facts), split.labels[index])


def _write_block(path: Path, encoder: PixelEncoder, split: Split, index: np.ndarray, batch_size: int) -> None:
    """The features of one block, unless an earlier run has left them."""
    if path.is_file():
        return
    batches = [index[start : start + batch_size] for start in range(0, len(index), batch_size)]
    rows = np.concatenate([embed_rows(encoder, split, batch) for batch in batches])
    if rows.shape != (len(index), encoder.dim):
        raise BadData(f"the encoder says D = {encoder.dim}, but its features are {rows.shape}")
    scales = np.abs(rows).max(1).astype(np.float32)  # (n,)
    scales[scales == 0] = 1
    content = io.BytesIO()
    np.savez(content, rows=(rows / scales[:, None]).astype(np.float16), scales=scales)
    write_bytes(path, content.getvalue())


def _merge(blocks: Path, folder: Path, facts: dict[str, Any]) -> None:
    """All blocks, in order, as one array."""
    scales = []
    with new_folder(folder) as aside:
        with (aside / "rows.npy").open("wb") as file:
            header = {"descr": "<f2", "fortran_order": False, "shape": (facts["n"], facts["dim"])}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, facts["n"], BLOCK):
                rows, scale = _block(blocks / f"{start}.npz")
                file.write(rows.tobytes())
                scales.append(scale)
        np.save(aside / "scales.npy", np.concatenate(scales))
        manifest = facts | {"date": today(), "versions": versions()}
        (aside / "manifest.json").write_text(json.dumps(manifest, indent=1))


def _block(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows and scales of a block. Raises CorruptFile, and the block is made again the next time."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return arrays["rows"], arrays["scales"]
    except (ValueError, KeyError, EOFError, BadZipFile) as error:
        path.unlink(missing_ok=True)
        raise CorruptFile(f"{path}: damaged ({error}) and deleted. The same command makes it again") from error


def _read(folder: Path, facts: dict[str, Any]) -> np.ndarray:
    """(n, D) float32. Raises CorruptFile if the folder is not what its name says."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if not isinstance(manifest, dict):
            raise ValueError("its manifest is none")
        other = {key: manifest.get(key) for key, value in facts.items() if manifest.get(key) != value}
        if other:
            raise ValueError(f"its manifest says {other}")
        rows = np.load(folder / "rows.npy", mmap_mode="r", allow_pickle=False)
        scales = np.load(folder / "scales.npy", allow_pickle=False)
        if rows.shape != (facts["n"], facts["dim"]) or scales.shape != (facts["n"],):
            raise ValueError(f"arrays of {rows.shape} and {scales.shape}")
        features = rows.astype(np.float32)
        features *= scales[:, None]
        return features
    except (ValueError, TypeError, EOFError, FileNotFoundError) as error:
        raise CorruptFile(f"{folder}: damaged, or written by another version ({error}). Delete the folder") from error
