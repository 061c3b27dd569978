"""Threads that decode images: small ones do not wait for large ones, and few large ones are in memory at a time."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar, final

from serve.fair import FairQueue, Owner
from serve.limits import DECODERS, LARGE_DECODERS, LARGE_IMAGE

Result = TypeVar("Result")
FIXED = 20_000  # pixels that cost about as much as what every image costs, whatever its size


class _Job(NamedTuple, Generic[Result]):
    work: Callable[[], Result]
    result: asyncio.Future[Result]


@final
class Decoders:
    """Two pools with a fair queue each, one for small images and one for large images. Used from one event loop."""

    def __init__(self) -> None:
        self._small = _Pool(DECODERS, "decode")
        self._large = _Pool(LARGE_DECODERS, "decode-large", initializer=_yield_to_others)

    def submit(self, owner: Owner, work: Callable[[], Result], *, pixels: int) -> asyncio.Future[Result]:
        """Run `work` in a thread when it is the owner's turn; a future that is cancelled before is not run."""
        return (self._large if pixels > LARGE_IMAGE else self._small).submit(owner, work, cost=pixels + FIXED)

    def close(self) -> None:
        self._small.close()
        self._large.close()


@final
class _Pool:
    def __init__(self, threads: int, name: str, initializer: Callable[[], None] | None = None) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=initializer)
        self._free = threads
        self._waiting: FairQueue[_Job] = FairQueue()

    def submit(self, owner: Owner, work: Callable[[], Result], *, cost: float) -> asyncio.Future[Result]:
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.put(owner, _Job(work, result), cost=cost)
        self._start()
        return result

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Start as many waiting jobs as there are free threads."""
        while self._free and len(self._waiting):
            job = self._waiting.get()
            if job.result.done():  # its request is over
                continue
            self._free -= 1
            running = asyncio.get_running_loop().run_in_executor(self._threads, job.work)
            running.add_done_callback(lambda done, job=job: self._finish(done, job))  # type: ignore[misc]

    def _finish(self, done: asyncio.Future, job: _Job) -> None:
        self._free += 1
        if not job.result.done() and not done.cancelled():
            if error := done.exception():
                job.result.set_exception(error)
            else:
                job.result.set_result(done.result())
        self._start()


def _yield_to_others() -> None:
    """Lower the calling thread's priority, where threads have one: a large image takes what small ones leave."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
