"""The one shape of every error: `{"error": {"code", "message", "param", "index", "request_id"}}`."""

import json
from collections.abc import Iterable
from typing import Any

from zoo.errors import BadImage, ImageFormatNotAllowed

CODES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid_image",
    429: "too_many_requests",
    503: "overloaded",
    504: "timeout",
}


class Refused(Exception):
    """A request that gets an error for an answer; the message is meant for the client.

    status: HTTP status; code: one of CODES, or a finer word; param: the field at fault; index: the image at fault;
    retry_after: seconds, sent with 429 and 503.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str = "",
        param: str | None = None,
        index: int | None = None,
        retry_after: int = 1,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
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
        return refused_fault(status, content["detail"][0]).error
    return Refused(status, str(content.get("error") or code_of(status))).error


def refused_fault(status: int, fault: Any, known: Iterable[str] = ()) -> Refused:
    """Refused for a fault that pydantic found; its path to it is such as ("images", 3). known: the allowed fields."""
    param, *inside = fault["loc"] or ("body",)
    index = next((part for part in inside if isinstance(part, int)), None)
    allowed = f"; allowed: {', '.join(known)}" if fault.get("type") == "extra_forbidden" and known else ""
    return Refused(status, f"{param}: {fault['msg']}{allowed}", param=str(param), index=index)
