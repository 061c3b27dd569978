"""Encoded images in, embeddings out: limits, decoding threads, then the batcher."""

import asyncio
import base64
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

import numpy as np

from serve.batcher import Batcher
from serve.limits import DECODERS, MAX_BATCH, MAX_IMAGE, MAX_IMAGES, MAX_QUEUE
from serve.refusal import Refused, refused_image
from serve.session import Session
from zoo.embedding import unit_rows
from zoo.errors import BadImage


@final
class Engine:
    """What all endpoints of one worker share. Empty until `start`."""

    session: Session
    _decoders: ThreadPoolExecutor
    _batcher: Batcher

    def __init__(self) -> None:
        self.ready = False
        self._accepted = 0  # images not yet answered

    async def start(self, session: Session) -> None:
        """Take a model and run it once in both its extreme batch sizes; ready from then on."""
        self.session = session
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decode")
        self._batcher = Batcher(session.embed_pixels, max_batch=MAX_BATCH)
        blank = np.zeros((session.image_size, session.image_size, 3), np.uint8)
        for batch_size in (1, MAX_BATCH):
            await self._batcher.embed([blank] * batch_size)
        self.ready = True

    async def stop(self) -> None:
        self.ready = False
        self._decoders.shutdown(wait=False, cancel_futures=True)
        await self._batcher.close()

    @property
    def alive(self) -> bool:
        """Whether the batcher still works: an engine that is not alive answers nothing."""
        return self.ready and self._batcher.alive

    async def embed(self, images: Sequence[bytes | str], *, normalize: bool) -> np.ndarray:
        """(n, D) float32 embeddings of n encoded images: bytes, or base64 text.

        normalize: scale every row to unit L2 norm.
        Raises Refused: 400 (no image, bad base64), 413, 415, 422, 503 (queue full).
        """
        if not images:
            raise Refused(400, "no image came; send at least one", param="images")
        if len(images) > MAX_IMAGES:
            raise Refused(413, f"{len(images)} images; at most {MAX_IMAGES} a request. Split them", param="images")
        if self._accepted + len(images) > MAX_QUEUE:
            raise Refused(503, f"{self._accepted} images are waiting; at most {MAX_QUEUE} may. Try again in a second")
        self._accepted += len(images)
        try:
            features = await self._batcher.embed(await self._decode_all(images))
        finally:
            self._accepted -= len(images)
        if not np.isfinite(features).all():
            raise ArithmeticError(f"{self.session.path} gave embeddings that are not finite")
        return unit_rows(features) if normalize else features

    async def _decode_all(self, images: Sequence[bytes | str]) -> list[np.ndarray]:
        """Pixels of every image; Refused for the first bad one, so that none of them reaches a batch."""
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(self._decoders, self._decode, *item) for item in enumerate(images)]
        pixels = []
        try:
            for job in jobs:
                decoded = await job
                if isinstance(decoded, Refused):
                    raise decoded
                pixels.append(decoded)
        finally:
            for job in jobs:
                job.cancel()
        return pixels

    def _decode(self, index: int, image: bytes | str) -> np.ndarray | Refused:
        """Pixels (S, S, 3) uint8, or why there are none."""
        try:
            content = _from_base64(image, index) if isinstance(image, str) else image
            if len(content) > MAX_IMAGE:
                raise _too_long(index)
            if not content:
                raise Refused(422, f"image {index} has 0 bytes", param="images", index=index)
            return self.session.preprocess(content)
        except BadImage as error:
            return refused_image(error, index)
        except Refused as refusal:
            return refusal


def _from_base64(text: str, index: int) -> bytes:
    if len(text) > (MAX_IMAGE + 2) // 3 * 4:
        raise _too_long(index)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Refused(
            400, f"image {index} is not base64 ({error}); URLs and paths are not read", param="images", index=index
        ) from error


def _too_long(index: int) -> Refused:
    return Refused(413, f"image {index} is larger than {MAX_IMAGE:,} bytes", param="images", index=index)
