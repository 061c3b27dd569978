"""serve/guard.py and serve/refusal.py: bodies are bounded, alone and together, and every error has one shape."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from serve.draining import Draining
from serve.guard import Guard
from serve.limits import MAX_BUFFERED, MAX_REQUESTS
from serve.refusal import error_of

SCOPE = {"type": "http", "method": "POST", "path": "/v1/embed", "headers": [(b"content-type", b"image/png")]}


async def count_bytes(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that answers with the length of the body it was given."""
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(body)).encode()})


async def request(guard: Guard, messages: AsyncIterator[Message], key: bytes = b"") -> tuple[int, bytes]:
    """Status and body of one request whose parts arrive as `messages`."""
    sent: list[Message] = []
    scope = SCOPE | {"headers": [*SCOPE["headers"], (b"authorization", b"Bearer " + key)]}  # type: ignore[misc]

    async def send(message: Message) -> None:
        sent.append(message)

    await guard(scope, lambda: anext(messages), send)  # type: ignore[arg-type, return-value]
    start, body = sent
    return start["status"], body["body"]


def test_the_app_gets_the_whole_body_however_it_is_cut() -> None:
    async def parts() -> AsyncIterator[Message]:
        for size in (1, 0, 70_000, 3):
            yield {"type": "http.request", "body": bytes(size), "more_body": True}
        yield {"type": "http.request"}

    assert asyncio.run(request(Guard(count_bytes), parts())) == (200, b"70004")


def test_all_bodies_together_are_bounded_and_forgotten_when_answered() -> None:
    size = 30 * 2**20
    fitting = MAX_BUFFERED // size
    chunk = bytes(size)

    async def scenario() -> tuple[list[tuple[int, bytes]], tuple[int, bytes]]:
        guard = Guard(count_bytes)
        rest = asyncio.Event()

        async def large() -> AsyncIterator[Message]:
            yield {"type": "http.request", "body": chunk, "more_body": True}
            await rest.wait()
            yield {"type": "http.request", "body": b"", "more_body": False}

        held = [asyncio.create_task(request(guard, large())) for _ in range(fitting)]
        await asyncio.sleep(0)
        status, body = await request(guard, large())
        assert (status, json.loads(body)["error"]["code"]) == (503, "overloaded")
        rest.set()
        return await asyncio.gather(*held), await request(guard, large())

    held, after = asyncio.run(scenario())
    assert held == [(200, str(size).encode())] * fitting
    assert after == (200, str(size).encode())


@pytest.mark.parametrize(("keys", "key", "other", "others"), [("a,b", b"a", b"b", 200), ("", b"", b"", 429)])
def test_one_key_has_its_share_of_requests_and_leaves_room_for_others(
    keys: str, key: bytes, other: bytes, others: int
) -> None:
    async def scenario() -> None:
        guard, rest = Guard(count_bytes, keys=keys), asyncio.Event()

        async def slow() -> AsyncIterator[Message]:
            await rest.wait()
            yield {"type": "http.request", "body": b"123"}

        async def quick() -> AsyncIterator[Message]:
            yield {"type": "http.request", "body": b"1"}

        held = [asyncio.create_task(request(guard, slow(), key)) for _ in range(MAX_REQUESTS)]
        await asyncio.sleep(0)
        status, body = await request(guard, quick(), key)
        assert (status, json.loads(body)["error"]["code"]) == (429, "too_many_requests")
        assert (await request(guard, quick(), other))[0] == others
        rest.set()
        assert await asyncio.gather(*held) == [(200, b"3")] * MAX_REQUESTS
        assert await request(guard, quick(), key) == (200, b"1")

    asyncio.run(scenario())


def test_a_client_that_goes_away_ends_its_request() -> None:
    async def parts() -> AsyncIterator[Message]:
        yield {"type": "http.request", "body": b"half", "more_body": True}
        yield {"type": "http.disconnect"}

    status, body = asyncio.run(request(Guard(count_bytes), parts()))
    assert (status, json.loads(body)["error"]["message"]) == (400, "the client went away")


def test_a_body_that_never_ends_is_a_timeout() -> None:
    async def parts() -> AsyncIterator[Message]:
        yield {"type": "http.request", "body": b"half", "more_body": True}
        await asyncio.sleep(60)

    status, body = asyncio.run(request(Guard(count_bytes, timeout=0.05), parts()))
    assert (status, json.loads(body)["error"]["code"]) == (504, "timeout")


def test_the_lifespan_passes_untouched() -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, receive, send))

    async def nothing(*_: Any) -> Any: ...

    scope = {"type": "lifespan"}
    asyncio.run(Guard(app)(scope, nothing, nothing))
    assert seen == [(scope, nothing, nothing)]


@pytest.mark.parametrize(
    ("status", "body", "code", "message", "param", "index"),
    [
        (404, b"Not Found", "not_found", "Not Found", None, None),
        (415, b'[{"error": "no pickle"}]', "unsupported_media_type", "no pickle", None, None),
        (500, b'{"error": "see the log"}', "internal", "see the log", None, None),
        (418, b"", "invalid_request", "invalid_request", None, None),
        (400, b"7", "invalid_request", "invalid_request", None, None),
        (
            400,
            b'{"error": "1 error", "detail": [{"loc": ["images", 3], "msg": "no string"}]}',
            "invalid_request",
            "images: no string",
            "images",
            3,
        ),
    ],
)
def test_the_frameworks_own_errors_get_the_one_shape(
    status: int, body: bytes, code: str, message: str, param: str | None, index: int | None
) -> None:
    assert error_of(status, body) == {"code": code, "message": message, "param": param, "index": index}


def test_an_error_of_ours_stays_as_it_is() -> None:
    error = {"code": "model_not_found", "message": "no", "param": None, "index": None}
    assert error_of(404, json.dumps({"error": error}).encode()) == error


def asked_by(peer: str, host: str, *, keys: str = "", path: str = "/v1/embed") -> tuple[int, bytes]:
    """Status and body of a request from an address with a Host header, to a server that listens wherever it does."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"1"}

    headers = [(b"content-type", b"image/png"), (b"host", host.encode()), (b"authorization", b"Bearer a")]
    method = "GET" if path == "/livez" else "POST"
    scope = SCOPE | {"client": (peer, 5), "headers": headers, "path": path, "method": method}
    asyncio.run(Guard(count_bytes, keys=keys)(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize("peer", ["192.168.1.7", "10.0.0.1", "::ffff:8.8.8.8", "2001:db8::1", "testclient"])
def test_without_keys_other_machines_are_refused_whichever_way_the_server_was_started(peer: str) -> None:
    status, body = asked_by(peer, "127.0.0.1:3000")
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (403, "forbidden")
    assert "Set ZOO_API_KEY" in error["message"]
    assert asked_by(peer, "zoo.example", keys="a")[0] == 200
    assert asked_by(peer, "127.0.0.1:3000", path="/livez")[0] == 200  # a probe of the container's host


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:3000", "192.168.1.7", "localhost.evil.example", "[::2]:3000"]
)
def test_without_keys_a_foreign_host_is_refused(host: str) -> None:
    status, body = asked_by("127.0.0.1", host)
    assert (status, json.loads(body)["error"]["code"]) == (403, "forbidden")
    assert asked_by("127.0.0.1", host, keys="a")[0] == 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:3000", "localhost:3000", "LOCALHOST", "[::1]:3000", "127.8.8.8"]
)
def test_without_keys_this_machine_is_answered(host: str) -> None:
    for peer in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert asked_by(peer, host)[0] == 200


def test_while_draining_probes_are_answered_and_new_requests_are_told_to_go_elsewhere() -> None:
    draining = Draining()
    guard = Guard(count_bytes, draining=draining)

    async def scenario() -> None:
        rest = asyncio.Event()

        async def slow() -> AsyncIterator[Message]:
            await rest.wait()
            yield {"type": "http.request", "body": b"123"}

        async def quick() -> AsyncIterator[Message]:
            yield {"type": "http.request", "body": b"1"}

        first = asyncio.create_task(request(guard, slow()))
        await asyncio.sleep(0)
        assert draining.in_flight == 1
        draining.started = True
        status, body = await request(guard, quick())
        assert (status, json.loads(body)["error"]["code"]) == (503, "overloaded")
        rest.set()
        assert await first == (200, b"3")  # was in flight
        assert draining.in_flight == 0

    asyncio.run(scenario())
    assert asked_by("127.0.0.1", "127.0.0.1", path="/livez")[0] == 200


def test_the_signal_is_passed_on_when_nothing_is_in_flight_any_more() -> None:
    passed: list[int] = []
    earlier = signal.signal(signal.SIGTERM, lambda number, _: passed.append(number))

    async def scenario() -> None:
        draining = Draining()
        draining.hold_signals()
        draining.in_flight = 1
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.2)
        assert (draining.started, passed) == (True, [])
        draining.in_flight = 0
        await asyncio.sleep(0.2)
        assert passed == [signal.SIGTERM]
        draining.release_signals()

    try:
        asyncio.run(scenario())
    finally:
        signal.signal(signal.SIGTERM, earlier)
