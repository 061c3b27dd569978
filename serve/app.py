"""The endpoint table as an ASGI app."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from serve.endpoints import ENDPOINTS, Endpoint, Handler
from serve.engine import Engine
from serve.openapi import document
from serve.search import Indexes
from serve.state import State


def make_app(engine: Engine, indexes: Indexes) -> ASGIApp:
    """The app to mount at /, with every endpoint that has a handler; exceptions pass through it to the guard."""
    state = State(engine, indexes, document(ENDPOINTS))
    return Router([_route(state, each, each.handler) for each in ENDPOINTS if each.handler])


def _route(state: State, endpoint: Endpoint, handler: Handler) -> Route:
    path = endpoint.path.replace("{name}", "{name:path}")
    return Route(path, partial(_answer, handler, state), methods=endpoint.methods.split(", "))


async def _answer(handler: Handler, state: State, request: Request) -> Response:
    return await handler(state, request)
