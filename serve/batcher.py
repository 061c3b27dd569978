"""Images of many requests, run together: a batch is whatever waits when the model is free, in fair turns."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from time import perf_counter
from typing import NamedTuple, final

import numpy as np

from serve import metrics
from serve.admission import Rate
from serve.fair import FairQueue, Owner


class _Waiting(NamedTuple):
    pixels: np.ndarray  # (S, S, 3) uint8
    row: asyncio.Future[np.ndarray]  # (D,) float32
    since: float  # seconds on the clock of perf_counter


@final
class Batcher:
    """One consumer, batches of 1 to max_batch, no waiting for a batch to fill.

    run: (B, S, S, 3) uint8 -> (B, D) float32; called in `thread`, one call at a time. model: its name in the metrics.
    """

    def __init__(
        self, run: Callable[[np.ndarray], np.ndarray], *, max_batch: int, thread: Executor, model: str
    ) -> None:
        self._run = run
        self._max_batch = max_batch
        self.rate = Rate(0.01)  # seconds per image
        self._queue: FairQueue[_Waiting] = FairQueue()
        self._filled = asyncio.Event()
        self._thread = thread
        self._model = model
        self._consumer = asyncio.create_task(self._consume())

    @property
    def alive(self) -> bool:
        return not self._consumer.done()

    async def embed(self, pixels: Sequence[np.ndarray], *, owner: Owner) -> np.ndarray:
        """n >= 1 arrays (S, S, 3) uint8 -> (n, D) float32. Raises what `run` raised; cancelled, gives up its places."""
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(image, loop.create_future(), perf_counter()) for image in pixels]
        for item in waiting:
            self._queue.put(owner, item)
        self._filled.set()
        return np.stack(await asyncio.gather(*(item.row for item in waiting)))

    def close(self) -> None:
        """Stop the consumer; a run in progress goes on in its thread, its rows are nobody's."""
        self._consumer.cancel()

    async def _consume(self) -> None:
        while True:
            await self._filled.wait()
            batch: list[_Waiting] = []
            while len(batch) < self._max_batch and len(self._queue):
                item = self._queue.get()
                if not item.row.done():  # done: its request was cancelled
                    batch.append(item)
            if not len(self._queue):
                self._filled.clear()
            await self._answer(batch)

    async def _answer(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        try:
            pixels = np.stack([item.pixels for item in batch])
            since = [item.since for item in batch]
            rows = await asyncio.get_running_loop().run_in_executor(self._thread, self._timed_run, pixels, since)
        except Exception as error:  # raised by those that wait; the consumer goes on
            for item in batch:
                if not item.row.done():
                    item.row.set_exception(error)
            return
        for item, row in zip(batch, rows, strict=True):
            if not item.row.done():
                item.row.set_result(row)

    def _timed_run(self, pixels: np.ndarray, since: list[float]) -> np.ndarray:
        start = perf_counter()
        for moment in since:
            metrics.queue_seconds.labels(self._model).observe(start - moment)
        metrics.batch_images.labels(self._model).observe(len(pixels))
        rows = self._run(pixels)
        seconds = perf_counter() - start
        self.rate.measured(seconds, len(pixels))
        metrics.inference_seconds.labels(self._model).observe(seconds)
        return rows
