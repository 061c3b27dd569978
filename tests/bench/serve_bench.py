"""What serving costs, as ratios of one run: `python tests/bench/serve_bench.py RUN --images FOLDER`.

The server is a process of its own. Costs are CPU seconds of the server's processes, which a busy machine disturbs less
than the clock; the parts of a round alternate, and the median of all rounds is shown with its range. torch eager behind
Starlette answers the same requests from the same client. With --soak N the server's memory after N / 10 and after N
requests is compared instead.
"""

import asyncio
import io
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import psutil
import tyro

from serve.session import Session
from zoo.pixels import preprocess
from zoo.provenance import hardware
from zoo.store import ONNX

NPY = {"accept": "application/x-npy", "content-type": "image/jpeg"}
CONCURRENCY = (1, 16, 64, 256)
EAGER = """
import io, os, sys
import numpy as np, torch, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
import zoo
torch.set_num_threads(1)
encoder = zoo.load(sys.argv[1])
def embed(body):
    out = io.BytesIO()
    np.save(out, encoder.embed([body]))
    return out.getvalue()
async def answer(request):
    body = await request.body()
    from starlette.concurrency import run_in_threadpool
    return Response(await run_in_threadpool(embed, body), media_type="application/x-npy")
async def ready(request):
    return Response()
app = Starlette(routes=[Route("/v1/embed", answer, methods=["POST"]), Route("/readyz", ready)])
uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""


def bench(
    run: tyro.conf.Positional[Path],
    *,
    images: Annotated[Path, tyro.conf.arg(help="folder of real JPEG, PNG or WebP files")],
    requests: int = 64,
    rounds: int = 5,
    soak: int = 0,
) -> None:
    """Print the ratios.

    Args:
        run: an exported run folder.
        images: folder of real image files.
        requests: of each part of a round.
        rounds: of which the median is shown.
        soak: compare the server's memory after a tenth of so many requests and after all, and nothing else.
    """
    contents = [path.read_bytes() for path in sorted(images.rglob("*")) if path.suffix in {".jpg", ".jpeg", ".png"}][
        :64
    ]
    session = Session(run / ONNX)
    print(f"{session.name}, {session.image_size} px, {len(contents)} files of {images.name}, median size ", end="")
    print(f"{statistics.median(map(len, contents)) / 1000:.1f} kB; {hardware()}, {os.cpu_count()} cores, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}, {datetime.now(UTC):%Y-%m-%d}; n = {rounds} rounds of {requests} requests")
    with server(["-m", "zoo.cli", "serve", str(run)], "--port") as (url, process):
        if soak:
            memory(url, process, contents, soak)
            return
        with server(["-c", EAGER, str(run)], "") as (eager_url, _):
            ratios(session, contents, url, process, eager_url, requests=requests, rounds=rounds)
        under_load(url, contents, requests)


def ratios(
    session: Session,
    contents: list[bytes],
    url: str,
    process: psutil.Process,
    eager_url: str,
    *,
    requests: int,
    rounds: int,
) -> None:
    bodies = [contents[number % len(contents)] for number in range(requests)]
    me = psutil.Process()
    cost: dict[str, list[float]] = {"bare": [], "raw, npy": [], "form, JSON": []}
    rate: dict[str, list[float]] = {"ours": [], "torch": []}
    for _ in range(rounds):
        cost["bare"].append(spent(me, lambda: bare(session, bodies)) / requests)
        cost["raw, npy"].append(spent(process, lambda: asyncio.run(ask_all(url, bodies, raw, at_once=8))) / requests)
        cost["form, JSON"].append(spent(process, lambda: asyncio.run(ask_all(url, bodies, form, at_once=8))) / requests)
        for name, where in {"ours": url, "torch": eager_url}.items():
            start = time.perf_counter()
            asyncio.run(ask_all(where, bodies, raw, at_once=8))
            rate[name].append(requests / (time.perf_counter() - start))
    for name, seconds in cost.items():
        print(f"CPU an image, {name:11} {spread([1e3 * each for each in seconds])} ms")
    for name, goal in {"raw, npy": 1.25, "form, JSON": 1.6}.items():
        print(f"{name} / bare: {spread(quotients(cost[name], cost['bare']))}, goal <= {goal}")
    print(f"images a second: ours {spread(rate['ours'])}, torch eager {spread(rate['torch'])}")
    print(f"ours / torch eager: {spread(quotients(rate['ours'], rate['torch']))}, goal >= 1.5")


def under_load(url: str, contents: list[bytes], requests: int) -> None:
    """Latency and failures at every concurrency; the queue alone explains concurrency x the seconds of one image."""
    for at_once in CONCURRENCY:
        bodies = [contents[number % len(contents)] for number in range(max(requests, 2 * at_once))]
        start = time.perf_counter()
        answers = asyncio.run(ask_all(url, bodies, raw, at_once=at_once))
        seconds = time.perf_counter() - start
        p50, p99 = (np.percentile([latency for latency, _ in answers], q) for q in (50, 99))
        failed = sum(status != 200 for _, status in answers)
        queue = at_once * seconds / len(bodies)
        print(
            f"concurrency {at_once:3}: p50 {1e3 * p50:.0f} ms, p99 {1e3 * p99:.0f} ms ({p99 / queue:.2f} x the queue's "
            f"{1e3 * queue:.0f} ms), {failed} of {len(bodies)} failed"
        )


def memory(url: str, process: psutil.Process, contents: list[bytes], n: int) -> None:
    """Resident memory of all server processes after n / 10 and after n requests of one image."""
    sizes = []
    for count in (n // 10, n - n // 10):
        bodies = [contents[number % len(contents)] for number in range(count)]
        answers = asyncio.run(ask_all(url, bodies, raw, at_once=16))
        assert all(status == 200 for _, status in answers)
        sizes.append(sum(each.memory_info().rss for each in (process, *process.children(recursive=True))) / 1e6)
    print(f"resident after {n // 10} requests {sizes[0]:.1f} MB, after {n} {sizes[1]:.1f} MB: ", end="")
    print(f"{100 * (sizes[1] / sizes[0] - 1):+.1f} %, goal within 5 %")


def bare(session: Session, bodies: list[bytes]) -> None:
    for body in bodies:
        pixels = preprocess(body, image_size=session.image_size, crop=session.crop)
        session.embed_pixels(pixels[None])


async def raw(client: httpx.AsyncClient, body: bytes) -> httpx.Response:
    answer = await client.post("/v1/embed", content=body, headers=NPY)
    if answer.status_code == 200:
        np.load(io.BytesIO(answer.content), allow_pickle=False)
    return answer


async def form(client: httpx.AsyncClient, body: bytes) -> httpx.Response:
    answer = await client.post("/v1/embed", files={"images": ("image", body)})
    answer.json()
    return answer


async def ask_all(url: str, bodies: list[bytes], ask: Callable[..., Any], *, at_once: int) -> list[tuple[float, int]]:
    """Seconds and status of every request, `at_once` of them at a time."""
    waiting, answers = iter(bodies), []

    async def one_client(client: httpx.AsyncClient) -> None:
        for body in waiting:
            start = time.perf_counter()
            answer = await ask(client, body)
            answers.append((time.perf_counter() - start, answer.status_code))

    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        await asyncio.gather(*(one_client(client) for _ in range(at_once)))
    return answers


def spent(process: psutil.Process, work: Callable[[], Any]) -> float:
    """CPU seconds of a process and its children while `work` is done."""
    before = _cpu(process)
    work()
    return _cpu(process) - before


def _cpu(process: psutil.Process) -> float:
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def quotients(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


@contextmanager
def server(command: list[str], option: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server of its own process on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [sys.executable, *command, *filter(None, [option]), port]
    process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                if process.poll() is not None:
                    sys.exit("error: the server died")
            time.sleep(0.1)
        yield url, psutil.Process(process.pid)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


if __name__ == "__main__":
    tyro.cli(bench)
