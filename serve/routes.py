"""The endpoints under /v1: images as files in, embeddings as JSON or npy out."""

import io
from typing import Any

import numpy as np
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from serve.engine import Engine
from serve.limits import MAX_IMAGE, MAX_IMAGES
from serve.refusal import Refused

NPY = "application/x-npy"


def routes(engine: Engine) -> Router:
    """`POST /embed`, `GET /models`, `GET /models/NAME`; errors leave as Refused, for the guard to answer."""

    async def embed(request: Request) -> Response:
        normalize = _normalize(request)
        features = await engine.embed(await _images(request), normalize=normalize)
        headers = {"x-model-id": engine.session.name, "x-embedding-dim": str(engine.session.dim)}
        if NPY in request.headers.get("accept", ""):
            return Response(_npy(features), media_type=NPY, headers=headers)
        return JSONResponse(answer(engine, features), headers=headers)

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(engine)]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != engine.session.name:
            raise Refused(404, f"no model {name!r}; this server has {engine.session.name}", code="model_not_found")
        return JSONResponse(_model(engine))

    return Router([Route("/embed", embed, methods=["POST"]), Route("/models", models), Route("/models/{name}", model)])


def answer(engine: Engine, features: np.ndarray) -> dict[str, Any]:
    """The JSON answer: which model, D, and one row of D numbers per image; float32 survives the text exactly."""
    return {"model": engine.session.name, "dim": engine.session.dim, "embeddings": features.tolist()}


def _model(engine: Engine) -> dict[str, Any]:
    session = engine.session
    facts = {"dim": session.dim, "image_size": session.image_size, "weights_sha256": session.weights_sha256}
    return {"id": session.name, "object": "model"} | facts


def _normalize(request: Request) -> bool:
    """The query's `normalize`, false if absent. Raises Refused for other words and other parameters."""
    for param in request.query_params:
        if param != "normalize":
            raise Refused(400, f"unknown query parameter {param!r}; known: normalize", param=param)
    word = request.query_params.get("normalize", "false")
    if word not in ("true", "false"):
        raise Refused(400, f"normalize={word!r}; allowed: true, false", param="normalize")
    return word == "true"


async def _images(request: Request) -> list[bytes]:
    """The encoded images of a form's `images` parts, or of a raw image body. Raises Refused."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _form_images(request)
    if not kind.startswith("image/"):
        raise Refused(415, f"content type {kind!r}; send one image/* body, or multipart/form-data with `images` files")
    body = await request.body()
    return [body] if body else []


async def _form_images(request: Request) -> list[bytes]:
    images = []
    try:
        async with request.form(max_files=MAX_IMAGES, max_fields=MAX_IMAGES) as form:
            for param, value in form.multi_items():
                if param != "images" or not isinstance(value, UploadFile):
                    raise Refused(400, f"form part {param!r}; parts are files named `images`", param=param)
                images.append(await value.read(MAX_IMAGE + 1))  # the engine refuses what is longer
    except HTTPException as error:
        status = 413 if error.detail.startswith("Too many") else 400
        raise Refused(status, error.detail, param="images") from error
    return images


def _npy(features: np.ndarray) -> bytes:
    """(n, D) little-endian float32 in C order, as `numpy.load` reads it."""
    out = io.BytesIO()
    np.save(out, features.astype("<f4"), allow_pickle=False)
    return out.getvalue()
