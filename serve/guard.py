"""The outermost door of the endpoints: body limits, the deadline, request ids and the one shape of errors."""

import asyncio
import json
import logging
import re
import uuid
from typing import final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.limits import MAX_BODY, MAX_BUFFERED, TIMEOUT
from serve.refusal import Refused, error_of

PAGE_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
NATIVE = "/embed"  # BentoML's own endpoint; it would read a form's text parts as URLs to download
logger = logging.getLogger("bentoml.serve")


@final
class Guard:
    """ASGI middleware around `/embed` and `/v1/*`; the lifespan and BentoML's own paths pass.

    It reads the whole body before the app sees the request, so a body over the limit costs no more than the limit.
    timeout: seconds for reading and answering. It raises nothing: BentoML answers an exception only after a minute.
    """

    def __init__(self, app: ASGIApp, *, timeout: float = TIMEOUT) -> None:
        self._app = app
        self._timeout = timeout
        self._buffered = 0  # bytes of all bodies held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (scope["path"] == NATIVE or scope["path"].startswith("/v1/")):
            await self._app(scope, receive, _own_scripts_only(send) if scope.get("path") == "/" else send)
            return
        reply = _Reply(send, Headers(scope=scope).get("x-request-id", ""))
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout):
                _check_headers(scope)
                await self._read(receive, body)
                await self._app(scope, _replay(bytes(body), receive), reply)
        except Refused as refusal:
            await reply.refuse(refusal)
        except TimeoutError:
            await reply.refuse(Refused(504, f"no answer within {self._timeout:g} seconds"))
        except Exception:
            logger.exception("request %s failed", reply.request_id)
            await reply.refuse(Refused(500, f"the server failed; its log has request {reply.request_id}"))
        finally:
            self._buffered -= len(body)

    async def _read(self, receive: Receive, body: bytearray) -> None:
        """Append the request's body to `body`. Raises Refused when it, or all bodies together, grow too large."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the client went away")
            chunk = message.get("body", b"")
            body += chunk
            self._buffered += len(chunk)
            if len(body) > MAX_BODY:
                raise _too_long()
            if self._buffered > MAX_BUFFERED:
                raise Refused(503, "too many large requests at once. Try again in a second")
            more = message.get("more_body", False)


@final
class _Reply:
    """`send` of one request: adds the request id, and brings every error body into the one shape."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.request_id = request_id if re.fullmatch(r"[\w.-]{1,64}", request_id, re.ASCII) else uuid.uuid4().hex
        self._send = send
        self._started = False
        self._status = 0  # of an error whose body is still being collected
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self._status = message["status"]
        elif message["type"] == "http.response.body" and self._status:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_error(self._status, self._body)
        else:
            if message["type"] == "http.response.start":
                self._started = True
                MutableHeaders(scope=message)["x-request-id"] = self.request_id
            await self._send(message)

    async def refuse(self, refusal: Refused) -> None:
        """Send the refusal, unless an answer is already on its way."""
        if not self._started:
            await self._send_error(refusal.status, json.dumps({"error": refusal.error}).encode())

    async def _send_error(self, status: int, body: bytes) -> None:
        self._started = True
        content = json.dumps({"error": error_of(status, body) | {"request_id": self.request_id}}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(content))}
        headers |= {"x-request-id": self.request_id} | ({"retry-after": "1"} if status == 503 else {})
        raw = [(key.encode(), value.encode()) for key, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        await self._send({"type": "http.response.body", "body": content})


def _check_headers(scope: Scope) -> None:
    """Raises Refused for what can be told before the body arrives."""
    headers = Headers(scope=scope)
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 12 or int(length) > MAX_BODY:
        raise _too_long()
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    if scope["path"] == NATIVE and scope["method"] == "POST" and kind != "application/json":
        raise Refused(415, f"content type {kind!r}; {NATIVE} reads application/json, /v1/embed reads images and forms")


def _own_scripts_only(send: Send) -> Send:
    """`send` of BentoML's OpenAPI page, which would load a tag manager from elsewhere."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["content-security-policy"] = PAGE_POLICY
        await send(message)

    return sent


def _too_long() -> Refused:
    return Refused(413, f"the body is larger than {MAX_BODY:,} bytes. Split it into several requests")


def _replay(body: bytes, receive: Receive) -> Receive:
    """`receive` of a request whose body was already read."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed
