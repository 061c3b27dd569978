"""The table of endpoints: the router, the allowed methods and the OpenAPI document are derived from it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from serve import handlers, pages
from serve.answers import NPY, NPZ
from serve.messages import (
    EmbedAnswer,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    EmbedQuery,
    IndexList,
    Message,
    ModelFacts,
    ModelList,
    NativeAnswer,
    NativeRequest,
    SearchAnswer,
    SearchRequest,
    SimilarityAnswer,
    SimilarityRequest,
)
from serve.state import State

READING = (400, 404, 413, 415, 422)  # statuses of an endpoint that reads images


Handler = Callable[[State, Request], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """One row: a method and a path, what it reads, what it answers, and the function that does it."""

    method: str  # GET stands for GET and HEAD
    path: str  # one trailing parameter may be `{name}`, which matches any path
    handler: Handler | None  # None: BentoML's own endpoint
    summary: str = ""  # no summary: not in the OpenAPI document
    body: type[BaseModel] | None = None  # of a JSON request
    query: type[Message] | None = None
    files: str = ""  # name of a form's files; a raw image body is read as well
    answer: type[BaseModel] | None = None  # of the JSON answer
    media_types: tuple[str, ...] = ()  # of binary answers, chosen by Accept
    errors: tuple[int, ...] = ()  # statuses beyond those that every endpoint has
    public: bool = False  # needs no key: the same on every server

    @property
    def methods(self) -> str:
        """The value of the Allow header."""
        return "GET, HEAD" if self.method == "GET" else self.method


def _page(path: str, file: str, media_type: str) -> Endpoint:
    return Endpoint("GET", path, partial(pages.static_file, file=file, media_type=media_type), public=True)


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/embed",
        handlers.embed,
        "Embeddings of image files",
        query=EmbedQuery,
        files="images",
        answer=EmbedAnswer,
        media_types=(NPY, NPZ),
        errors=READING,
    ),
    Endpoint(
        "POST",
        "/v1/embeddings",
        handlers.embeddings,
        "Embeddings in the shape of OpenAI's endpoint",
        body=EmbeddingsRequest,
        answer=EmbeddingsAnswer,
        errors=READING,
    ),
    Endpoint(
        "POST",
        "/v1/similarity",
        handlers.similarity,
        "Cosine similarities of one image with others",
        body=SimilarityRequest,
        answer=SimilarityAnswer,
        errors=READING,
    ),
    Endpoint(
        "POST",
        "/v1/search",
        handlers.search,
        "The nearest images of an index",
        body=SearchRequest,
        answer=SearchAnswer,
        errors=READING,
    ),
    Endpoint("GET", "/v1/indexes", handlers.list_indexes, "The indexes of this server", answer=IndexList),
    Endpoint("GET", "/v1/models", handlers.list_models, "The models of this server", answer=ModelList),
    Endpoint("GET", "/v1/models/{name}", handlers.one_model, "One model", answer=ModelFacts, errors=(404,)),
    Endpoint(
        "POST",
        "/embed",
        None,
        "Embeddings, for bentoml.SyncHTTPClient",
        body=NativeRequest,
        answer=NativeAnswer,
        errors=READING,
    ),
    _page("/", "page.html", "text/html"),
    _page("/page.js", "page.js", "text/javascript"),
    _page("/page.css", "page.css", "text/css"),
    _page("/docs.js", "docs.js", "text/javascript"),
    Endpoint("GET", "/docs", pages.docs, public=True),
    Endpoint("GET", "/openapi.json", pages.openapi, public=True),
    Endpoint("GET", "/metrics", pages.prometheus),
    Endpoint("GET", "/schema.json", None),
    Endpoint("GET", "/livez", None, public=True),
    Endpoint("GET", "/readyz", None, public=True),
    Endpoint("GET", "/healthz", None, public=True),
)
BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
HEALTH = {"/livez", "/readyz", "/healthz"}
PREFIXES = {path.removesuffix("{name}"): endpoint for path, endpoint in BY_PATH.items() if path.endswith("{name}")}


def endpoint_of(path: str) -> Endpoint | None:
    """The endpoint that answers a request's path, or None."""
    if path in BY_PATH:
        return BY_PATH[path]
    found = (endpoint for prefix, endpoint in PREFIXES.items() if path.startswith(prefix) and path != prefix)
    return next(found, None)
