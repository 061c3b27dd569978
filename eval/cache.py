"""Features on disk: one folder for (encoder, data, layer, preprocessing), as memory-mapped float16 with a manifest.

Features are written in blocks of about BLOCK_SECONDS of work, each one whole or not at all, and a block holds the
positions of its images. So a killed extraction loses that much at most, whatever the size of an image, and several
processes share the work without any padding. float16 costs k-NN nothing that could be measured (agreement
0.9996 to 1.0000 on 50,000 x 2048); each row has a scale of its own, so no feature is too large or too small for it.
"""

import hashlib
import io
import json
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from tqdm import tqdm

from eval.features import Features, PixelEncoder, batch_of, embed_rows, labelled
from zoo.errors import BadData, CorruptFile
from zoo.files import locked, new_folder, write_bytes, zoo_home
from zoo.images.image_set import ImageSet
from zoo.provenance import today, versions

FORMAT = 1  # raise it when the layout or the preprocessing changes: older folders are then never asked for
BLOCK_SECONDS = 20.0  # of extraction between two writes


def cached_features(
    encoder: PixelEncoder,
    split: ImageSet,
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
    rank, processes, wait: every process extracts the batches rank, rank + processes, ... of those that are missing;
    `wait` returns when all of them have called it.
    Raises BadData (no label, a feature not finite), CorruptFile (a damaged cache), ZooError (a full disk).
    """
    index = labelled(split)
    facts = {
        "format": FORMAT,
        "encoder_sha256": encoder_sha256,
        "data_sha256": split.digest,
        "layer": layer,
        "image_size": encoder.image_size,
        "n": len(index),
        "dim": encoder.dim,
    }
    if state := split.state:  # the digest of images on disk is that of their names and sizes alone
        facts["data_state"] = state
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]
    folder = zoo_home() / "cache" / "features" / key
    blocks, manifest = folder.with_suffix(".blocks"), folder / "manifest.json"
    batch_size = batch_size or batch_of(encoder.image_size)
    alone = locked(blocks) if rank == 0 and not manifest.is_file() else nullcontext()
    with alone:  # another evaluation that wants the same features waits for these
        wait()
        if not manifest.is_file():
            missing = np.flatnonzero(~_written(blocks, len(index)))
            wait()  # until every process has seen the same blocks
            batches = [missing[at : at + batch_size] for at in range(0, len(missing), batch_size)][rank::processes]
            bar = tqdm(batches, desc=progress, unit=" batches", leave=False, disable=not progress or rank > 0)
            _extract_blocks(blocks, bar, lambda positions: embed_rows(encoder, split, index[positions]), encoder.dim)
            wait()
            if rank == 0:
                _merge(blocks, folder, facts)
            wait()
        if rank == 0:
            shutil.rmtree(blocks, ignore_errors=True)  # of a waiter, too: asking for the lock made the folder
    return Features(_read(folder, facts), split.labels[index])


def _written(blocks: Path, n: int) -> np.ndarray:
    """(n,) bool: which features earlier runs have left. Raises CorruptFile."""
    done = np.zeros(n, bool)
    for path in blocks.glob("*.npz"):
        done[_block(path)[0]] = True
    return done


def _extract_blocks(
    blocks: Path, batches: Iterable[np.ndarray], features_of: Callable[[np.ndarray], np.ndarray], dim: int
) -> None:
    """Features of batches of positions, written whenever BLOCK_SECONDS have passed, and at the end."""
    done: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    started = time.monotonic()
    for positions in batches:
        rows.append(features_of(positions))
        done.append(positions)
        if rows[-1].shape != (len(positions), dim):
            raise BadData(f"the encoder says D = {dim}, but its features are {rows[-1].shape}")
        if time.monotonic() - started >= BLOCK_SECONDS:
            _write_block(blocks, np.concatenate(done), np.concatenate(rows))
            done, rows, started = [], [], time.monotonic()
    if rows:
        _write_block(blocks, np.concatenate(done), np.concatenate(rows))


def _write_block(blocks: Path, positions: np.ndarray, rows: np.ndarray) -> None:
    """Features (n, D) of the images at `positions` (n,); the first of them names the file."""
    scales = np.abs(rows).max(1).astype(np.float32)  # (n,)
    scales[scales == 0] = 1
    content = io.BytesIO()
    np.savez(content, positions=positions, rows=(rows / scales[:, None]).astype(np.float16), scales=scales)
    write_bytes(blocks / f"{positions[0]}.npz", content.getvalue())


def _merge(blocks: Path, folder: Path, facts: dict[str, Any]) -> None:
    """All blocks as one array, each feature at its position. Raises CorruptFile if some are missing."""
    rows = np.zeros((facts["n"], facts["dim"]), np.float16)
    scales = np.zeros(facts["n"], np.float32)  # 0: not there, for no block holds such
    for path in blocks.glob("*.npz"):
        positions, *found = _block(path)
        rows[positions], scales[positions] = found
    if missing := int((scales == 0).sum()):
        raise CorruptFile(f"{blocks}: {missing} of {len(rows)} features are missing. The same command makes them")
    with new_folder(folder) as aside:
        np.save(aside / "rows.npy", rows)
        np.save(aside / "scales.npy", scales)
        manifest = facts | {"date": today(), "versions": versions()}
        (aside / "manifest.json").write_text(json.dumps(manifest, indent=1))


def _block(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, rows and scales of a block. Raises CorruptFile, and the block is made again the next time."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            rows = arrays["rows"]
            start = int(path.stem)  # a block of an earlier version holds consecutive images and no positions
            positions = arrays["positions"] if "positions" in arrays else np.arange(start, start + len(rows))
            return positions, rows, arrays["scales"]
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
