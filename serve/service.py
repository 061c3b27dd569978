"""The server: `ZOO_MODEL=runs/NAME,OTHER bentoml serve serve.service:Embeddings --host 127.0.0.1`, or `zoo serve`.

`POST /embed` is BentoML's own endpoint (JSON, base64 images), for `bentoml.SyncHTTPClient`. `/v1/*` takes image files
and JSON, and gives npy and npz too. All share one engine. No torch is imported.
A worker runs its models in one thread; `zoo serve --workers 4` starts four.
"""

import asyncio
import gc
import os
import signal
import sys
from typing import Any

import bentoml
from starlette.responses import JSONResponse

from serve.answers import finished, plain
from serve.app import make_app
from serve.draining import Draining
from serve.engine import Engine
from serve.guard import Guard
from serve.limits import TIMEOUT
from serve.log import start_log
from serve.messages import NativeAnswer, NativeRequest
from serve.refusal import Refused
from serve.search import Indexes, index_paths_from_environment
from serve.session import Session, models_from_environment
from zoo.errors import ZooError
from zoo.processes import parent_gone

engine = Engine()  # the mounted app needs it before BentoML makes a service; a worker's start-up fills it
indexes = Indexes()
draining = Draining()


class Images(NativeRequest, bentoml.IODescriptor):
    """The body of `POST /embed`, for BentoML."""


@bentoml.service(
    traffic={"timeout": TIMEOUT + 5},  # the guard's own deadline comes first; BentoML keeps a timer for so long
    tracing={"excluded_urls": [".*"]},  # its spans would cost twice the rest, and stay in memory as long as the timer
    metrics={"enabled": False},  # BentoML's have a series for every path that anybody ever asked for
    logging={"access": {"enabled": False}},  # the guard's log has the request ids
)
@bentoml.asgi_app(make_app(engine, indexes), path="/")
class Embeddings:
    """Embeddings of images."""

    @bentoml.on_deployment
    @staticmethod
    def check_models() -> None:
        """Fail once, before any worker starts: a worker that fails is started again for ever."""
        try:
            _open_indexes(Indexes(), models_from_environment())
        except (ZooError, OSError) as error:
            sys.exit(f"error: {error}")

    @bentoml.on_startup
    async def start(self) -> None:
        start_log()
        self._watch = asyncio.create_task(_end_with_parent())
        sessions = models_from_environment()
        _open_indexes(indexes, sessions)
        await engine.start(sessions)
        draining.hold_signals()
        gc.collect()
        gc.freeze()  # what is here stays: looking through all of it every few seconds held up all answers for 60 ms

    @bentoml.on_shutdown
    async def stop(self) -> None:
        draining.release_signals()
        self._watch.cancel()
        await engine.stop()

    async def __is_ready__(self) -> bool:
        return engine.ready and not engine.overloaded and not draining.started

    async def __is_alive__(self) -> bool:
        return engine.alive

    @bentoml.api(input_spec=Images, output_spec=NativeAnswer)
    async def embed(self, images: list[str], normalize: bool = False, model: str = "") -> Any:
        """Embeddings of base64 images, one row of `dim` numbers each, in the order of the images."""
        try:
            embedded = await engine.embed(images, model=model)
            return NativeAnswer(**plain(finished(embedded, normalize=normalize, dimensions=None)))
        except Refused as refusal:  # BentoML would hide the reason and say 500
            headers = {"retry-after": str(refusal.retry_after)}
            return JSONResponse({"error": refusal.error}, refusal.status, headers)


async def _end_with_parent() -> None:
    """Stop this worker once BentoML's main process is gone, as by `kill -9`: an orphan would keep the port."""
    while not parent_gone():
        await asyncio.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _open_indexes(where: Indexes, sessions: list[Session]) -> None:
    where.start(index_paths_from_environment(), {session.name: session.weights_sha256 for session in sessions})


# The decorators have made a Service of the class, which mypy cannot see.
Embeddings.add_asgi_middleware(Guard, draining=draining)  # type: ignore[attr-defined]
