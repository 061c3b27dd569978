"""The outermost door: paths, methods, keys, limits, the deadline, request ids, logs, the one shape of errors."""

import asyncio
import hashlib
import hmac
import ipaddress
import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import Any, final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve import metrics
from serve.draining import Draining
from serve.endpoints import HEALTH, Endpoint, endpoint_of
from serve.fair import CLIENT
from serve.form import content_type
from serve.limits import MAX_BODY, MAX_BUFFERED, MAX_COMMAS, MAX_REQUESTS, TIMEOUT
from serve.log import logger
from serve.refusal import Refused, error_of

NATIVE = "/embed"  # BentoML's own endpoint; it would read a form's text parts as URLs to download
LOOPBACK = "127.0.0.1"
CLIENT_LEFT = 499  # in the log and the metrics: nobody is there to read an answer
PAGE_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:"


def route_of(endpoint: Endpoint | None) -> str:
    """What metrics and logs call the path of a request: one of a bounded set, `other` for what is not served."""
    return endpoint.path if endpoint else "other"


@final
class Guard:
    """ASGI middleware around everything; the lifespan passes.

    It reads the whole body before the app sees the request, so a body over the limit costs no more than the limit.
    keys: bearer tokens, separated by commas, one of which a request needs; without any, none is asked for; by default
    those of `$ZOO_API_KEY`. timeout: seconds for reading and answering. It raises nothing: BentoML would answer an
    exception only after its own timeout.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: str | None = None,
        timeout: float = TIMEOUT,
        draining: Draining | None = None,
    ) -> None:
        self._app = app
        self._draining = draining or Draining()
        keys = os.environ.get("ZOO_API_KEY", "") if keys is None else keys
        self._keys = [key.strip().encode() for key in keys.split(",") if key.strip()]
        self._timeout = timeout
        self._buffered = 0  # bytes of all bodies held
        self._asking: Counter[bytes] = Counter()  # requests now being answered, of each key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})  # before it was accepted: the client gets a 403
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, endpoint = perf_counter(), endpoint_of(scope["path"])
        route = route_of(endpoint)
        reply = _Reply(send, Headers(scope=scope).get("x-request-id", ""), endpoint, self._draining)
        self._draining.in_flight += endpoint is None or endpoint.path not in HEALTH
        try:
            await self._answer(scope, receive, reply, endpoint)
        finally:
            self._draining.in_flight -= endpoint is None or endpoint.path not in HEALTH
        seconds = perf_counter() - start
        metrics.requests.labels(route, reply.status).inc()
        metrics.request_seconds.labels(route).observe(seconds)
        if route not in HEALTH:
            logger.info("request", extra={"fields": reply.fields() | {"route": route, "seconds": round(seconds, 4)}})

    async def _answer(self, scope: Scope, receive: Receive, reply: "_Reply", endpoint: Endpoint | None) -> None:
        """Answer one request, whatever happens."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout):
                self._check_door(scope, endpoint)
                with nullcontext() if endpoint and endpoint.public else self._turn(scope):
                    await self._read(receive, body)
                    _check_json(Headers(scope=scope), body)
                    await self._run_app(scope, bytes(body), receive, reply)
        except Refused as refusal:
            await reply.refuse(refusal)
        except _ClientLeft:
            reply.status = reply.status or CLIENT_LEFT
        except TimeoutError:
            await reply.refuse(Refused(504, f"no answer within {self._timeout:g} seconds"))
        except Exception:  # a bug of ours: logged whole, and told to the client as 500 without its inside
            logger.exception("request failed", extra={"fields": {"request_id": reply.request_id}})
            await reply.refuse(Refused(500, f"the server failed; its log has request {reply.request_id}"))
        finally:
            self._buffered -= len(body)

    async def _run_app(self, scope: Scope, body: bytes, receive: Receive, reply: "_Reply") -> None:
        """Run the app on a request that was read; cancel it if the client disconnects. Raises _ClientLeft."""
        left = asyncio.create_task(_disconnect(receive))
        app: Coroutine[Any, Any, None] = self._app(scope, _replay(body, left), reply)  # type: ignore[assignment]
        answering = asyncio.create_task(app)
        try:
            await asyncio.wait((answering, left), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise _ClientLeft
            await answering
        finally:
            left.cancel()
            if answering.cancel():
                await asyncio.wait((answering,))

    def _check_door(self, scope: Scope, endpoint: Endpoint | None) -> None:
        """Raises Refused for faults that are known before the body arrives."""
        headers = Headers(scope=scope)
        if endpoint is None or endpoint.path not in HEALTH:
            self._check_peer(scope, headers)
            if self._draining.started:
                raise Refused(503, "the server is stopping. Send the request again, to its successor")
        if endpoint is None:
            raise Refused(404, f"no {scope['path'][:100]!r} here; /docs shows what there is")
        if self._keys and not endpoint.public and not self._key(headers):
            raise Refused(401, "send the header `Authorization: Bearer KEY` with a key of this server")
        if scope["method"] not in endpoint.methods.split(", "):
            raise Refused(405, f"{scope['method'][:20]} is not for {endpoint.path}, which takes {endpoint.methods}")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 12 or int(length) > MAX_BODY:
            raise _too_long()
        if endpoint.path == NATIVE and (kind := content_type(headers)) != "application/json":
            raise Refused(415, f"content type {kind!r}; {NATIVE} reads application/json, /v1/embed images and forms")

    def _check_peer(self, scope: Scope, headers: Headers) -> None:
        """Raises Refused (403) for a request from elsewhere to a server without keys, however it was started.

        A foreign Host comes from a web page whose name was made to resolve to this machine (DNS rebinding).
        """
        if self._keys:
            return
        peer = (scope.get("client") or (LOOPBACK,))[0]  # none: a Unix socket
        host = re.sub(r":\d*$", "", headers.get("host", LOOPBACK)).strip("[]")
        for what, name in (("requests from", peer), ("the Host", host)):
            if not _is_loopback(name):
                raise Refused(
                    403,
                    f"{what} {name[:100]!r}: without keys this server answers its own machine alone, as 127.0.0.1 or "
                    "localhost. Set ZOO_API_KEY and start it again, and send the key",
                )

    def _key(self, headers: Headers) -> bytes:
        """The key of this server that a request shows; empty if it shows none."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode("latin-1")  # the bytes as they came
        same = [each for each in self._keys if hmac.compare_digest(given, each)]  # all of them, in constant time
        return same[0] if same and scheme.lower() == "bearer" else b""

    @contextmanager
    def _turn(self, scope: Scope) -> Iterator[None]:
        """The time in which a request counts for its key. Raises Refused (429) when the key has its share already."""
        key = self._key(Headers(scope=scope))
        CLIENT.set(hashlib.sha256(key).hexdigest() if key else (scope.get("client") or ("",))[0])
        if self._asking[key] >= MAX_REQUESTS:
            raise Refused(429, f"{MAX_REQUESTS} requests of this key are being answered. Try again in a second")
        self._asking[key] += 1
        try:
            yield
        finally:
            self._asking[key] -= 1

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

    def __init__(self, send: Send, request_id: str, endpoint: Endpoint | None, draining: Draining) -> None:
        self._draining = draining
        self.request_id = request_id if re.fullmatch(r"[\w.-]{1,64}", request_id, re.ASCII) else uuid.uuid4().hex
        self.status = 0  # of the answer, 0 before there is one
        self._send = send
        self._endpoint = endpoint
        self._code: str | None = None
        self._held = 0  # the status of an error whose body is still being collected
        self._body = b""

    def fields(self) -> dict[str, object]:
        """What the log says about the answer."""
        error = {"code": self._code} if self._code else {}
        return {"request_id": self.request_id, "status": self.status} | error

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self._held = message["status"]
        elif message["type"] == "http.response.body" and self._held:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_error(self._held, self._body)
        else:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"], headers["x-content-type-options"] = self.request_id, "nosniff"
                headers["content-security-policy"] = PAGE_POLICY
            await self._send(message)

    async def refuse(self, refusal: Refused) -> None:
        """Send the refusal, unless an answer is already on its way."""
        if not self.status:
            body = json.dumps({"error": refusal.error}).encode()
            await self._send_error(refusal.status, body, retry_after=refusal.retry_after)

    async def _send_error(self, status: int, body: bytes, *, retry_after: int = 1) -> None:
        self.status, error = status, error_of(status, body)
        self._code = error["code"]
        content = json.dumps({"error": error | {"request_id": self.request_id}}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(content))}
        headers |= {"x-request-id": self.request_id} | (
            {"retry-after": str(retry_after)} if status in (429, 503) else {}
        )
        headers |= {"www-authenticate": "Bearer"} if status == 401 else {}
        headers |= {"allow": self._endpoint.methods} if self._endpoint and status == 405 else {}
        if status in (413, 504) or self._draining.started:  # more of the body may be on its way
            headers["connection"] = "close"
        raw = [(key.encode(), value.encode()) for key, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        await self._send({"type": "http.response.body", "body": content})


def _is_loopback(name: str) -> bool:
    """Whether a host name or an address is this machine's own."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name.lower().rstrip(".") == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _check_json(headers: Headers, body: bytearray) -> None:
    """Raises Refused for a JSON body of so many items that what its parser makes of them would fill the memory."""
    commas = body.count(b",") if content_type(headers) == "application/json" else 0
    if commas > MAX_COMMAS:
        raise Refused(413, f"a JSON body of {commas:,} commas; that of a sound request has at most {MAX_COMMAS:,}")


def _too_long() -> Refused:
    return Refused(413, f"the body is larger than {MAX_BODY:,} bytes. Split it into several requests")


class _ClientLeft(Exception):
    """The client closed its connection before it had its answer."""


async def _disconnect(receive: Receive) -> Message:
    """Wait until the client disconnects, or has its answer."""
    message = await receive()
    if message["type"] != "http.disconnect":  # nothing else can follow a whole body
        await asyncio.Event().wait()
    return message


def _replay(body: bytes, left: "asyncio.Task[Message]") -> Receive:
    """`receive` of a request whose body was already read. left: ends when the client disconnects."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await asyncio.shield(left)

    return replayed
