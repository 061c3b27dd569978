"""What the server shows of itself: the page to try it, the API's documentation, the metrics."""

from importlib import resources

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from serve import metrics
from serve.docs import docs_page
from serve.state import State


async def static_file(_: State, __: Request, *, file: str, media_type: str) -> Response:
    return Response(resources.files("serve").joinpath("page", file).read_text("utf-8"), media_type=media_type)


async def openapi(state: State, _: Request) -> Response:
    return JSONResponse(state.document)


async def docs(state: State, _: Request) -> Response:
    return HTMLResponse(docs_page(state.document))


async def prometheus(_: State, __: Request) -> Response:
    return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
