"""serve/batcher.py: images of many requests share runs, and one request's misfortune is its own."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from serve.batcher import Batcher
from serve.fair import Owner


def image(value: int) -> np.ndarray:
    return np.full((2, 2, 3), value, np.uint8)


def first_values(pixels: np.ndarray) -> np.ndarray:
    return pixels[:, 0, 0, :1].astype(np.float32)


def new_batcher(run: Callable[[np.ndarray], np.ndarray], max_batch: int) -> Batcher:
    return Batcher(run, max_batch=max_batch, thread=ThreadPoolExecutor(1), model="none")


def test_every_request_gets_its_own_rows_in_its_own_order_in_few_full_batches() -> None:
    sizes = []

    def run(pixels: np.ndarray) -> np.ndarray:
        sizes.append(len(pixels))
        return first_values(pixels)

    async def scenario() -> list[np.ndarray]:
        batcher = new_batcher(run, 8)
        requests = ([image(3 * n + k) for k in range(3)] for n in range(20))
        answers = await asyncio.gather(*(batcher.embed(each, owner=Owner("a", n)) for n, each in enumerate(requests)))
        batcher.close()
        return answers

    answers = asyncio.run(scenario())
    assert [rows.ravel().tolist() for rows in answers] == [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(20)]
    assert sizes == [8] * 7 + [4]


def test_a_lone_image_does_not_wait_for_others() -> None:
    async def scenario() -> np.ndarray:
        batcher = new_batcher(first_values, 8)
        async with asyncio.timeout(5):
            return await batcher.embed([image(7)], owner=Owner("a", 7))

    assert asyncio.run(scenario()).tolist() == [[7]]


def test_a_failed_run_is_told_to_those_in_it_and_the_next_one_works() -> None:
    def run(pixels: np.ndarray) -> np.ndarray:
        if (pixels == 13).any():
            raise ArithmeticError("thirteen")
        return first_values(pixels)

    async def scenario() -> np.ndarray:
        batcher = new_batcher(run, 2)
        with pytest.raises(ArithmeticError, match="thirteen"):
            await batcher.embed([image(13), image(1)], owner=Owner("a", 13))
        assert batcher.alive
        return await batcher.embed([image(5)], owner=Owner("a", 5))

    assert asyncio.run(scenario()).tolist() == [[5]]


def test_a_cancelled_request_gives_up_its_places() -> None:
    seen = []
    go = threading.Event()

    def run(pixels: np.ndarray) -> np.ndarray:
        go.wait(5)
        seen.extend(first_values(pixels).ravel().tolist())
        return first_values(pixels)

    async def scenario() -> np.ndarray:
        batcher = new_batcher(run, 1)
        running = asyncio.create_task(batcher.embed([image(1)], owner=Owner("a", 1)))
        waiting = asyncio.create_task(batcher.embed([image(2), image(3)], owner=Owner("a", 2)))
        await asyncio.sleep(0.05)
        waiting.cancel()
        last = asyncio.create_task(batcher.embed([image(4)], owner=Owner("a", 4)))
        await asyncio.sleep(0)
        go.set()
        await running
        return await last

    assert asyncio.run(scenario()).tolist() == [[4]]
    assert seen == [1, 4]
