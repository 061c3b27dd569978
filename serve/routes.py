"""The endpoints under /v1. Errors leave as Refused, for the guard to answer."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from serve import answers
from serve.engine import Engine
from serve.form import files_of
from serve.guard import content_type
from serve.messages import EmbeddingsRequest, EmbedQuery, SearchRequest, SimilarityRequest, from_json, from_query
from serve.refusal import Refused
from serve.search import Indexes
from zoo.model.embedding import unit_rows


def routes(engine: Engine, indexes: Indexes) -> Router:
    """The router to mount at /v1."""

    async def embed(request: Request) -> Response:
        query = from_query(EmbedQuery, dict(request.query_params))
        kind = answers.accepted(query, ",".join(request.headers.getlist("accept")))
        engine.session(query.model)  # an unknown name is told before the body is parsed
        embedded = await engine.embed(await _images(request), model=query.model, skip=query.on_error == "skip")
        embedded = answers.finished(embedded, normalize=query.normalize == "true", dimensions=query.dimensions)
        return answers.answer(embedded, query, kind)

    async def embeddings(request: Request) -> Response:
        message = from_json(EmbeddingsRequest, await _json(request))
        with _as_param("input"):
            embedded = await engine.embed(message.input, model=message.model, skip=message.on_error == "skip")
        embedded = answers.finished(embedded, normalize=message.normalize, dimensions=message.dimensions)
        return JSONResponse(answers.openai(embedded, message))

    async def similarity(request: Request) -> Response:
        message = from_json(SimilarityRequest, await _json(request))
        with _as_param("a"):
            one = await engine.embed([message.a], model=message.model)
        with _as_param("b"):
            many = await engine.embed(message.b, model=message.model)
        cosines = unit_rows(many.rows) @ unit_rows(one.rows)[0]
        return JSONResponse({"model": one.session.name, "similarities": cosines.tolist()})

    async def search(request: Request) -> Response:
        message = from_json(SearchRequest, await _json(request))
        index = await asyncio.to_thread(indexes.get, message.index)
        with _as_param("image"):
            embedded = await engine.embed([message.image], model=index.model)
        neighbours = await asyncio.to_thread(index.nearest, unit_rows(embedded.rows)[0], message.k)
        return JSONResponse({"index": index.name, "model": index.model, "neighbours": neighbours})

    async def list_indexes(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": await asyncio.to_thread(indexes.facts)})

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [answers.facts(each) for each in engine.sessions.values()]})

    async def model(request: Request) -> Response:
        return JSONResponse(answers.facts(engine.session(request.path_params["name"])))

    posts = {"/embed": embed, "/embeddings": embeddings, "/similarity": similarity, "/search": search}
    gets = {"/models": models, "/models/{name:path}": model, "/indexes": list_indexes}
    return Router(
        [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
        + [Route(path, handler) for path, handler in gets.items()]
    )


@contextmanager
def _as_param(name: str) -> Iterator[None]:
    """A refusal of `images` names the field that they came in."""
    try:
        yield
    except Refused as refusal:
        if refusal.error["param"] == "images":
            refusal.error["param"] = name
        raise


async def _json(request: Request) -> bytes:
    """The body of a request that says it is JSON; not parsed yet. Raises Refused (415)."""
    kind = content_type(request.headers)
    if kind != "application/json":
        raise Refused(415, f"content type {kind!r}; {request.url.path} reads application/json")
    return await request.body()


async def _images(request: Request) -> list[bytes]:
    """The encoded images of a form's `images` parts, or of a raw image body. Raises Refused."""
    kind = content_type(request.headers)
    if kind == "multipart/form-data":
        return files_of(await request.body(), request.headers["content-type"])
    if not kind.startswith("image/"):
        raise Refused(415, f"content type {kind!r}; send one image/* body, or multipart/form-data with `images` files")
    body = await request.body()
    return [body] if body else []
