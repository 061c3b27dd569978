"""What abusive requests cost others: `python tests/bench/abuse_bench.py MODEL`, of an idle machine best.

Latency of small requests alone and beside four clients that send cheap but expensive-to-decode images without a pause;
goodput and latency under more requests than the server can answer; the peak memory of a worker.
"""

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import numpy as np
import psutil
import tyro
from PIL import Image


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


SMALL = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)), "PNG")
PHOTO = encoded(
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 40, 3), np.uint8)).resize((1024, 768)), "JPEG"
)
LARGE = encoded(Image.new("RGB", (5000, 5000), (9, 99, 199)), "WEBP", lossless=True)


def bench(model: tyro.conf.Positional[str], *, root: Path = Path(), seconds: float = 10.0, images: int = 8) -> None:
    """Measure one model. root: the checkout whose server is started. images: 25-megapixel images of one request."""
    with tempfile.TemporaryDirectory() as home, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        env = os.environ | {"BENTOML_HOME": home, "PYTHONPATH": str(root.resolve())}
        command = [sys.executable, "-m", "zoo.cli", "serve", model, "--port", port]
        with Path(home, "log").open("wb") as log:
            server = subprocess.Popen(command, cwd=root, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            asyncio.run(_measure(f"http://127.0.0.1:{port}", psutil.Process(server.pid), seconds, images))
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


async def _measure(url: str, server: psutil.Process, seconds: float, images: int) -> None:
    limits = httpx.Limits(max_connections=300, max_keepalive_connections=300)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        await _ready(client)
        await _load(lambda: _small(client), 2, seconds / 5)
        alone = await _load(lambda: _small(client), 1, seconds)
        capacity = await _load(lambda: _photos(client), 8, seconds)
        four_times = await _load(lambda: _photos(client), 128, seconds)
        large = [("images", ("a.webp", LARGE))] * images
        abuse = [asyncio.create_task(_again(lambda: client.post("/v1/embed", files=large))) for _ in range(4)]
        await asyncio.sleep(2)
        beside = await _load(lambda: _small(client), 1, seconds)
        for task in abuse:
            task.cancel()
        peak = max(_peak(each) for each in server.children(recursive=True))
    loads = {
        "small images, 1 client": alone,
        "photos, 8 clients": capacity,
        "photos, 128 clients": four_times,
        "small images, 1 client beside abuse": beside,
    }
    for name, (found, elapsed) in loads.items():
        good = [each for each, status in found if status == 200]
        if not good:
            print(f"{name}: nothing answered with 200 of {len(found)}")
            continue
        p50, p99 = np.percentile(good, (50, 99)) * 1000
        print(f"{name}: {len(good) / elapsed:.1f} answered/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms, ", end="")
        print(f"{len(found) - len(good)} of {len(found)} refused")
    print(f"peak resident memory of a process: {peak / 2**20:.0f} MiB")


async def _ready(client: httpx.AsyncClient) -> None:
    for _ in range(600):
        try:
            if (await client.get("/readyz")).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.1)
    sys.exit("error: the server was not ready within a minute")


async def _small(client: httpx.AsyncClient) -> int:
    return await _status(client.post("/v1/embed", content=SMALL, headers={"content-type": "image/png"}))


async def _photos(client: httpx.AsyncClient) -> int:
    """So much work for the server that the client's own is little beside it."""
    return await _status(client.post("/v1/embed", files=[("images", ("a.jpg", PHOTO))] * 8))


async def _status(asked: Awaitable[httpx.Response]) -> int:
    answer = await asked
    if answer.status_code == 503:
        await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
    return answer.status_code


async def _load(
    ask: Callable[[], Awaitable[int]], clients: int, seconds: float
) -> tuple[list[tuple[float, int]], float]:
    """Seconds and status of every request of so many clients that ask without a pause, and how long all took."""
    found: list[tuple[float, int]] = []
    end = time.perf_counter() + seconds

    async def one() -> None:
        while (start := time.perf_counter()) < end:
            try:
                status = await ask()
            except httpx.TransportError:
                status = 0
            found.append((time.perf_counter() - start, status))

    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    return found, time.perf_counter() - begin


async def _again(ask: Callable[[], Awaitable[httpx.Response]]) -> None:
    while True:
        try:
            answer = await ask()
            await asyncio.sleep(0.01 if answer.status_code == 200 else 0.2)
        except httpx.TransportError:
            await asyncio.sleep(0.2)


def _peak(process: psutil.Process) -> int:
    """The largest resident memory that a process ever had, in bytes; Linux alone keeps it."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    tyro.cli(bench)
