"""Images of many requests, run together as they come: a batch is whatever waits when the model is free."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from time import perf_counter
from typing import NamedTuple, final

import numpy as np

from serve import metrics


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
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._thread = thread
        self._model = model
        self._consumer = asyncio.create_task(self._consume())

    @property
    def alive(self) -> bool:
        return not self._consumer.done()

    async def embed(self, pixels: Sequence[np.ndarray]) -> np.ndarray:
        """n >= 1 arrays (S, S, 3) uint8 -> (n, D) float32. Raises what `run` raised; cancelled, gives up its places."""
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(image, loop.create_future(), perf_counter()) for image in pixels]
        for item in waiting:
            self._queue.put_nowait(item)
        return np.stack(await asyncio.gather(*(item.row for item in waiting)))

    def close(self) -> None:
        """Stop the consumer; a run in progress goes on in its thread, its rows are nobody's."""
        self._consumer.cancel()

    async def _consume(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < self._max_batch and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._answer([item for item in batch if not item.row.done()])  # done: cancelled by its request

    async def _answer(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        try:
            pixels = np.stack([item.pixels for item in batch])
            since = [item.since for item in batch]
            rows = await asyncio.get_running_loop().run_in_executor(self._thread, self._timed_run, pixels, since)
        except Exception as error:  # told to those who wait; the consumer goes on
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
        metrics.inference_seconds.labels(self._model).observe(perf_counter() - start)
        return rows
