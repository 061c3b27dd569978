"""Encoded images in, embeddings out: limits, admission, decoding threads, then the batcher of the model asked for."""

import asyncio
import base64
import difflib
import itertools
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import NamedTuple, final

import numpy as np

from serve import metrics
from serve.admission import Admission, Rate, Work
from serve.batcher import Batcher
from serve.decoders import FIXED, Decoders
from serve.fair import CLIENT, Owner
from serve.file_structure import header_pixels
from serve.limits import (
    DECODERS,
    LARGE_DECODERS,
    LARGE_IMAGE,
    MAX_BATCH,
    MAX_IMAGE,
    MAX_IMAGES,
    MAX_PIXELS_IN_ALL,
    MAX_QUEUE,
)
from serve.refusal import Refused, refused_image
from serve.session import Session
from zoo.errors import BadImage

LINE_BREAKS = {ord(char): None for char in "\r\n"}


class Embedded(NamedTuple):
    """The embeddings of a request's good images, and why the others have none."""

    session: Session  # of the model that made them
    rows: np.ndarray  # (m, D) float32
    places: list[int]  # m of the request, ascending
    errors: list[Refused]  # of the other places, ascending


@final
class Engine:
    """What all endpoints of one worker share. Empty until `start`."""

    sessions: dict[str, Session]  # by name; the first one answers requests that name none

    def __init__(self) -> None:
        self.ready = False
        self.sessions = {}
        self._batchers: dict[str, Batcher] = {}
        self._accepted = 0  # images not yet answered
        self._admission = Admission()
        self._decode_rate = Rate(2e-8)  # seconds per pixel
        self._numbers = itertools.count()  # of requests

    async def start(self, sessions: Sequence[Session]) -> None:
        """Take models and run each in both its extreme batch sizes; ready from then on."""
        self.sessions = {session.name: session for session in sessions}
        self._decoders = Decoders()
        self._headers = ThreadPoolExecutor(1, thread_name_prefix="headers")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onnx")  # of all models: a worker is one core's work
        for name, session in self.sessions.items():
            self._batchers[name] = Batcher(session.embed_pixels, max_batch=MAX_BATCH, thread=self._thread, model=name)
            blank = np.zeros((session.image_size, session.image_size, 3), np.uint8)
            for batch_size in (1, MAX_BATCH):
                await self._batchers[name].embed([blank] * batch_size, owner=Owner("", 0))
        self.ready = True

    async def stop(self) -> None:
        """No longer ready; the run in progress is waited for."""
        self.ready = False
        self._decoders.close()
        self._headers.shutdown(wait=False, cancel_futures=True)
        for batcher in self._batchers.values():
            batcher.close()
        await asyncio.to_thread(self._thread.shutdown)

    @property
    def alive(self) -> bool:
        """Whether every batcher still works: an engine that is not alive answers nothing."""
        return self.ready and all(batcher.alive for batcher in self._batchers.values())

    @property
    def overloaded(self) -> bool:
        """Whether requests are being refused because too much work waits."""
        return self._admission.overloaded

    def session(self, name: str = "") -> Session:
        """The model of that name or alias, or the first one. Raises Refused (404) with the nearest names."""
        name = name or next(iter(self.sessions))
        served = self.sessions | {alias: each for each in self.sessions.values() for alias in each.aliases}
        if name not in served:
            near = difflib.get_close_matches(name, served, n=3, cutoff=0.5)
            hint = f"nearest: {', '.join(near)}" if near else f"this server has {', '.join(served)}"
            raise Refused(404, f"no model {name[:100]!r}; {hint}", code="model_not_found", param="model")
        return served[name]

    async def embed(self, images: Sequence[bytes | str], *, model: str = "", skip: bool = False) -> Embedded:
        """Embeddings of encoded images: bytes, base64 text or data URIs.

        skip: leave bad images out and say why, instead of refusing the request for the first of them.
        Raises Refused: 400 (no image, bad base64), 404 (model), 413, 415, 422, 503 (too much work waits).
        """
        session = self.session(model)
        if not images:
            raise Refused(400, "no image came; send at least one", param="images")
        if len(images) > MAX_IMAGES:
            raise Refused(413, f"{len(images)} images; at most {MAX_IMAGES} a request. Split them", param="images")
        if self._accepted + len(images) > MAX_QUEUE:
            raise Refused(503, f"{self._accepted} images are waiting; at most {MAX_QUEUE} may. Try again in a second")
        self._accepted += len(images)
        try:
            return await self._embed_accepted(session, images, skip=skip)
        finally:
            self._accepted -= len(images)

    async def _embed_accepted(self, session: Session, images: Sequence[bytes | str], *, skip: bool) -> Embedded:
        owner, batcher = Owner(CLIENT.get(), next(self._numbers)), self._batchers[session.name]
        with self._admission.admitted(owner, batcher.rate.seconds(len(images))) as work:
            opened = await asyncio.get_running_loop().run_in_executor(self._headers, _open_all, images)
            _check_pixels(opened)
            costs = [self._decode_seconds(each) for each in opened]
            self._admission.add(work, sum(costs))
            outcomes = await self._decode_all(session, opened, work, costs, skip=skip)
            pixels = [outcome for outcome in outcomes if isinstance(outcome, np.ndarray)]
            rows = await batcher.embed(pixels, owner=owner) if pixels else np.zeros((0, session.dim), np.float32)
        if not np.isfinite(rows).all():
            raise ArithmeticError(f"{session.path} gave embeddings that are not finite")
        good = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, np.ndarray)]
        return Embedded(session, rows, good, [outcome for outcome in outcomes if isinstance(outcome, Refused)])

    def _decode_seconds(self, image: "Opened | Refused") -> float:
        """Estimated seconds until an image is decoded, with all decoders at work."""
        if isinstance(image, Refused):
            return 0.0
        decoders = LARGE_DECODERS if image.pixels > LARGE_IMAGE else DECODERS
        return self._decode_rate.seconds(image.pixels + FIXED) / decoders

    async def _decode_all(
        self, session: Session, opened: "list[Opened | Refused]", work: Work, costs: list[float], *, skip: bool
    ) -> list[np.ndarray | Refused]:
        """Pixels of every image or why there are none; unless `skip`, raises the first reason before anything runs."""
        jobs = [
            self._decoders.submit(work.owner, partial(self._decode, session, index, each), pixels=each.pixels)
            if isinstance(each, Opened)
            else each
            for index, each in enumerate(opened)
        ]
        outcomes: list[np.ndarray | Refused] = []
        try:
            for job, cost in zip(jobs, costs, strict=True):
                outcome = job if isinstance(job, Refused) else await job
                if isinstance(outcome, Refused) and not skip:
                    raise outcome
                outcomes.append(outcome)
                self._admission.progress(work, cost)
        finally:
            for job in jobs:
                if not isinstance(job, Refused):
                    job.cancel()
        return outcomes

    def _decode(self, session: Session, index: int, image: "Opened") -> np.ndarray | Refused:
        """Pixels (S, S, 3) uint8, or why there are none."""
        start = perf_counter()
        try:
            pixels: np.ndarray | Refused = session.preprocess(image.content)
        except BadImage as error:
            pixels = refused_image(error, index)
        seconds = perf_counter() - start
        self._decode_rate.measured(seconds, image.pixels + FIXED)
        metrics.decode_seconds.labels(session.name).observe(seconds)
        metrics.images.labels(session.name, "refused" if isinstance(pixels, Refused) else "decoded").inc()
        return pixels


class Opened(NamedTuple):
    """An encoded image, and how large its header says it is."""

    content: bytes
    pixels: int  # width times height; 0 where the header cannot be read or is over the limits: it will not be decoded


def _check_pixels(opened: list[Opened | Refused]) -> None:
    """Raises Refused (413) for more pixels than one request may have."""
    total = sum(each.pixels for each in opened if isinstance(each, Opened))
    if total > MAX_PIXELS_IN_ALL:
        raise Refused(
            413,
            f"the images of this request have {total:,} pixels; at most {MAX_PIXELS_IN_ALL:,} are decoded for one. "
            "Split the request, or make the images smaller",
            param="images",
        )


def _open_all(images: Sequence[bytes | str]) -> list[Opened | Refused]:
    found: list[Opened | Refused] = []
    for index, image in enumerate(images):
        try:
            content = _from_base64(image, index) if isinstance(image, str) else image
            if len(content) > MAX_IMAGE:
                raise _too_long(index)
            if not content:
                raise Refused(422, f"image {index} has 0 bytes", param="images", index=index)
            found.append(Opened(content, header_pixels(content)))
        except Refused as refusal:
            found.append(refusal)
    return found


def _from_base64(text: str, index: int) -> bytes:
    """The bytes of base64 text, which may have line breaks, or of a data URI. Raises Refused."""
    if text.startswith("data:"):
        head, _, text = text.partition(",")
        if not re.fullmatch(r"data:image/[\w.+-]+;base64", head, re.ASCII):
            raise Refused(
                400,
                f"image {index}: a data URI starts data:image/png;base64, and not {head[:60]!r}",
                param="images",
                index=index,
            )
    text = text.translate(LINE_BREAKS)  # RFC 2045, section 6.8: lines of at most 76 characters
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
