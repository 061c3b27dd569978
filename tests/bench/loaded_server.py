"""A server in processes of its own and clients that load it, on different cores; what both cost."""

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil

NPY = {"accept": "application/x-npy", "content-type": "image/jpeg"}
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
Ask = Callable[[httpx.AsyncClient, bytes], Coroutine[Any, Any, httpx.Response]]


class Server(NamedTuple):
    """A server in processes of its own."""

    url: str
    process: psutil.Process


async def raw(client: httpx.AsyncClient, body: bytes) -> httpx.Response:
    """A body that is the file; the answer is read as npy."""
    answer = await client.post("/v1/embed", content=body, headers=NPY)
    if answer.status_code == 200:
        np.load(io.BytesIO(answer.content), allow_pickle=False)
    return answer


async def form(client: httpx.AsyncClient, body: bytes) -> httpx.Response:
    """A form with the file; the answer is read as JSON."""
    answer = await client.post("/v1/embed", files={"images": ("image", body)})
    answer.json()
    return answer


def ask_all(url: str, bodies: list[bytes], ask: Ask, *, at_once: int) -> list[tuple[float, int]]:
    """Seconds and status (0 for none) of every request, `at_once` of them at a time."""
    waiting, answers = iter(bodies), []

    async def one_client(client: httpx.AsyncClient) -> None:
        for body in waiting:
            start = time.perf_counter()
            try:
                status = (await ask(client, body)).status_code
            except httpx.TransportError:
                status = 0
            answers.append((time.perf_counter() - start, status))

    async def all_clients() -> None:
        limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            await asyncio.gather(*(one_client(client) for _ in range(at_once)))

    asyncio.run(all_clients())
    return answers


def clock(work: Callable[[], Any]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cpu(of: Server, work: Callable[[], Any]) -> float:
    """CPU seconds that a server's processes spend while `work` is done."""

    def spent() -> float:
        times = [each.cpu_times() for each in family(of.process)]
        return sum(each.user + each.system for each in times)

    before = spent()
    work()
    return spent() - before


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


@contextmanager
def server(command: list[str]) -> Iterator[Server]:
    """A program that serves on the port given as its last word, ready; it has the first core for itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    stay_on(CORES[:1])
    words = [sys.executable, *command, port]
    process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stay_on(CORES[-1:])
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", process)
        yield Server(f"http://127.0.0.1:{port}", psutil.Process(process.pid))
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(900):
        try:
            if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            if process.poll() is not None:
                sys.exit(f"error: {' '.join(process.args)} ended before it was ready")  # type: ignore[arg-type]
        time.sleep(0.1)
    sys.exit(f"error: {url} was not ready within 90 seconds")


def stay_on(cores: list[int]) -> None:
    """Keep this process, and those it starts from now on, on some cores; where the system cannot, they share all."""
    if cores:
        os.sched_setaffinity(0, cores)
