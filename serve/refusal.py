"""The one shape of every error: `{"error": {"code", "message", "param", "index", "request_id"}}`."""

import json
from typing import Any

from zoo.errors import BadImage, ImageFormatNotAllowed

CODES = {
    400: "invalid_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid_image",
    503: "overloaded",
    504: "timeout",
}


class Refused(Exception):
    """A request that gets an error for an answer; the message is meant for the client.

    status: HTTP status; code: one of CODES, or a finer word; param: the field at fault; index: the image at fault.
    """

    def __init__(
        self, status: int, message: str, *, code: str = "", param: str | None = None, index: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"code": code or code_of(status), "message": message, "param": param, "index": index}


def code_of(status: int) -> str:
    """The word for an HTTP status; `internal` for every 5xx and `invalid_request` for every 4xx without its own."""
    return CODES.get(status, "internal" if status >= 500 else "invalid_request")


def refused_image(error: BadImage, index: int) -> Refused:
    """415 for bytes outside the allowed formats, 422 for a picture that cannot be used."""
    status = 415 if isinstance(error, ImageFormatNotAllowed) else 422
    return Refused(status, f"image {index}: {error}", param="images", index=index)


def error_of(status: int, body: bytes) -> dict[str, Any]:
    """The `error` object of a response body, made from the framework's own bodies where it is not ours."""
    try:
        content = json.loads(body)
    except ValueError:
        content = {"error": body.decode(errors="replace")}
    if isinstance(content, list) and content:  # BentoML's exceptions
        content = content[0]
    content = content if isinstance(content, dict) else {}
    if isinstance(content.get("error"), dict):
        return content["error"]
    if content.get("detail"):  # BentoML's validation
        return _invalid_field(status, content["detail"][0])
    return Refused(status, str(content.get("error") or code_of(status))).error


def _invalid_field(status: int, fault: dict[str, Any]) -> dict[str, Any]:
    """The `error` object of pydantic's first fault; its path to it is such as ("images", 3)."""
    param, *inside = fault["loc"] or ("body",)
    index = inside[0] if inside and isinstance(inside[0], int) else None
    return Refused(status, f"{param}: {fault['msg']}", param=str(param), index=index).error
