"""The functions behind the endpoints under /v1. They raise Refused for errors, which the guard answers."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serve import answers
from serve.form import content_type, files_of
from serve.messages import EmbeddingsRequest, EmbedQuery, SearchRequest, SimilarityRequest, from_json, from_query
from serve.refusal import Refused
from serve.state import State
from zoo.model.embedding import unit_rows


async def embed(state: State, request: Request) -> Response:
    query = from_query(EmbedQuery, request.query_params.multi_items())
    kind = answers.accepted(query, ",".join(request.headers.getlist("accept")))
    state.engine.session(query.model)  # an unknown name is refused before the body is parsed
    images = await _images(request)
    embedded = await state.engine.embed(images, model=query.model, skip=query.on_error == "skip")
    embedded = answers.finished(embedded, normalize=query.normalize == "true", dimensions=query.dimensions)
    return answers.answer(embedded, query, kind)


async def embeddings(state: State, request: Request) -> Response:
    message = from_json(EmbeddingsRequest, await _json(request))
    with _as_param("input"):
        embedded = await state.engine.embed(message.input, model=message.model, skip=message.on_error == "skip")
    embedded = answers.finished(embedded, normalize=message.normalize, dimensions=message.dimensions)
    return JSONResponse(answers.openai(embedded, message))


async def similarity(state: State, request: Request) -> Response:
    message = from_json(SimilarityRequest, await _json(request))
    with _as_param("a"):
        one = await state.engine.embed([message.a], model=message.model)
    with _as_param("b"):
        many = await state.engine.embed(message.b, model=message.model)
    cosines = unit_rows(many.rows) @ unit_rows(one.rows)[0]
    return JSONResponse({"model": one.session.name, "similarities": cosines.tolist()})


async def search(state: State, request: Request) -> Response:
    message = from_json(SearchRequest, await _json(request))
    index = await asyncio.to_thread(state.indexes.get, message.index)
    with _as_param("image"):
        embedded = await state.engine.embed([message.image], model=index.model)
    neighbours = await asyncio.to_thread(index.nearest, unit_rows(embedded.rows)[0], message.k)
    return JSONResponse({"index": index.name, "model": index.model, "neighbours": neighbours})


async def list_indexes(state: State, _: Request) -> Response:
    return JSONResponse({"object": "list", "data": await asyncio.to_thread(state.indexes.facts)})


async def list_models(state: State, _: Request) -> Response:
    return JSONResponse({"object": "list", "data": [answers.facts(each) for each in state.engine.sessions.values()]})


async def one_model(state: State, request: Request) -> Response:
    return JSONResponse(answers.facts(state.engine.session(request.path_params["name"])))


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
