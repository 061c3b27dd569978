"""Images of many requests, run together as they come: a batch is whatever waits when the model is free."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, final

import numpy as np


class _Waiting(NamedTuple):
    pixels: np.ndarray  # (S, S, 3) uint8
    row: asyncio.Future[np.ndarray]  # (D,) float32


@final
class Batcher:
    """One consumer, one thread, batches of 1 to max_batch, no waiting for a batch to fill.

    run: (B, S, S, 3) uint8 -> (B, D) float32; called in a thread, one call at a time.
    """

    def __init__(self, run: Callable[[np.ndarray], np.ndarray], *, max_batch: int) -> None:
        self._run = run
        self._max_batch = max_batch
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onnx")
        self._consumer = asyncio.create_task(self._consume())

    @property
    def alive(self) -> bool:
        return not self._consumer.done()

    async def embed(self, pixels: Sequence[np.ndarray]) -> np.ndarray:
        """n arrays (S, S, 3) uint8 -> (n, D) float32. Raises what `run` raised. Cancelled, it gives up its places."""
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(image, loop.create_future()) for image in pixels]
        for item in waiting:
            self._queue.put_nowait(item)
        return np.stack(await asyncio.gather(*(item.row for item in waiting)))

    async def close(self) -> None:
        """Stop the consumer; the run in progress is waited for."""
        self._consumer.cancel()
        await asyncio.to_thread(self._thread.shutdown)

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
            rows = await asyncio.get_running_loop().run_in_executor(self._thread, self._run, pixels)
        except Exception as error:  # told to those who wait; the consumer goes on
            for item in batch:
                if not item.row.done():
                    item.row.set_exception(error)
            return
        for item, row in zip(batch, rows, strict=True):
            if not item.row.done():
                item.row.set_result(row)
