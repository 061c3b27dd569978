"""How near `python -m serve.bulk` comes to a loop that only decodes and embeds; a part of serve_bench.py."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from serve.bulk import BATCH
from serve.session import Session
from zoo.hub.store import ONNX

SHARD = 16 * BATCH  # images between two readings of the clock


def bulk_ratios(run: Path, contents: list[bytes], *, rounds: int) -> dict[str, list[float]]:
    """Images per second of one worker over the bare loop's, shard by shard.

    The clock starts when the first shard is done, so that the start of Ray (many seconds, once) does not count.
    """
    session, images = Session(run / ONNX), [contents[number % len(contents)] for number in range(SHARD)]
    bare(session, images[:BATCH])
    loop = [bare(session, images)]
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder, "images.parquet")
        table = pa.table({"image": images * (rounds + 1)})
        pq.write_table(table, shards, row_group_size=SHARD)
        done = times_of(run, shards, Path(folder, "out"))
    loop.append(bare(session, images))
    seconds = sum(loop) / len(loop)  # before and after, as the machine may have changed meanwhile
    return {"bulk images per second / bare loop": [seconds / each for each in np.diff(done).tolist()]}


def bare(session: Session, images: list[bytes]) -> float:
    """Seconds to decode and embed the images, a batch at a time."""
    start = time.perf_counter()
    for first in range(0, len(images), BATCH):
        session.embed_pixels(np.stack([session.preprocess(image) for image in images[first : first + BATCH]]))
    return time.perf_counter() - start


def times_of(run: Path, source: Path, out: Path) -> list[float]:
    """When each shard's part was whole, in seconds: Ray tells of several at once, the files do not."""
    command = [sys.executable, "-m", "serve.bulk", str(run), str(source), "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return sorted(path.stat().st_mtime_ns / 1e9 for path in out.glob("part-*.parquet"))
