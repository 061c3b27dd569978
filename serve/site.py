"""What the server shows of itself: the page to try it, the API's documentation, the metrics."""

from importlib import resources

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from serve import metrics
from serve.openapi import docs_page, document

FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}


def site(native: dict[str, type[BaseModel]]) -> Starlette:
    """The app to mount at /; what it does not have is left to others. native: as for `serve.openapi.document`."""
    spec = document(native)

    async def file(request: Request) -> Response:
        name, media_type = FILES[request.url.path]
        return Response(resources.files("serve").joinpath("page", name).read_text("utf-8"), media_type=media_type)

    async def openapi(_: Request) -> Response:
        return JSONResponse(spec)

    async def docs(_: Request) -> Response:
        return HTMLResponse(docs_page(spec))

    async def prometheus(_: Request) -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    pages = {**dict.fromkeys(FILES, file), "/openapi.json": openapi, "/docs": docs, "/metrics": prometheus}
    return Starlette(routes=[Route(path, handler) for path, handler in pages.items()])
