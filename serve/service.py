"""The server: `ZOO_MODEL=runs/NAME bentoml serve serve.service:Embeddings --host 127.0.0.1`.

`POST /embed` is BentoML's own endpoint (JSON, base64 images), for `bentoml.SyncHTTPClient` and the OpenAPI page.
`/v1/*` takes image files and gives npy too. Both share one engine. No torch is imported.
A worker runs the model in one thread; `BENTOML_CONFIG_OPTIONS='services.Embeddings.workers=4'` starts four.
"""

import os
import sys
from typing import Any

os.environ.setdefault("BENTOML_DO_NOT_TRACK", "True")  # read once, when BentoML first reports usage

import bentoml
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from serve.engine import Engine
from serve.guard import Guard
from serve.limits import MAX_IMAGES, TIMEOUT
from serve.refusal import Refused
from serve.routes import answer, routes
from serve.session import model_from_environment
from zoo.errors import ZooError

engine = Engine()  # the mounted app needs it before BentoML makes a service; a worker's start-up fills it


class Images(bentoml.IODescriptor):
    """The body of `POST /embed`."""

    model_config = ConfigDict(extra="forbid")

    images: list[str] = Field(description=f"1 to {MAX_IMAGES} JPEG, PNG or WebP files, each as base64 text")
    normalize: bool = Field(default=False, description="scale every embedding to unit L2 norm")


class Answer(BaseModel):
    """The answer of `POST /embed`."""

    model: str
    dim: int
    embeddings: list[list[float]]


@bentoml.service(traffic={"timeout": 2 * TIMEOUT})  # the guard's own deadline comes first
@bentoml.asgi_app(routes(engine), path="/v1")
class Embeddings:
    """Embeddings of images."""

    @bentoml.on_deployment
    @staticmethod
    def check_model() -> None:
        """Fail once, before any worker starts: a worker that fails is started again for ever."""
        try:
            model_from_environment()
        except ZooError as error:
            sys.exit(f"error: {error}")

    @bentoml.on_startup
    async def start(self) -> None:
        await engine.start(model_from_environment())

    @bentoml.on_shutdown
    async def stop(self) -> None:
        await engine.stop()

    async def __is_ready__(self) -> bool:
        return engine.ready

    async def __is_alive__(self) -> bool:
        return engine.alive

    @bentoml.api(input_spec=Images, output_spec=Answer)
    async def embed(self, images: list[str], normalize: bool = False) -> Any:
        """Embeddings of base64 images, one row of `dim` numbers each, in the order of the images."""
        try:
            return Answer(**answer(engine, await engine.embed(images, normalize=normalize)))
        except Refused as refusal:  # BentoML would hide the reason and say 500
            return JSONResponse({"error": refusal.error}, refusal.status)


# The decorators have made a Service of the class, which mypy cannot see.
Embeddings.add_asgi_middleware(Guard)  # type: ignore[attr-defined]
