"""Work is shared fairly: serve/fair.py, serve/decoders.py, serve/admission.py, and the server that uses them."""

import asyncio
import json
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from serve_http import TOLERANCE, files, refused, text
from serve_model import NAME, encode, gap, png

import serve.admission
from serve.admission import REQUEST, Admission, Rate
from serve.engine import Engine
from serve.fair import FairQueue, Owner
from serve.limits import MAX_PIXELS_IN_ALL, MAX_WAIT
from serve.refusal import Refused
from serve.session import Session
from zoo.model.encoder import Encoder

pytest_plugins = ["serve_fixtures"]


def blank(side: int) -> bytes:
    """A lossless WebP of one colour: under a kilobyte, expensive to decode."""
    return encode(Image.new("RGB", (side, side), (9, 99, 199)), "WEBP", lossless=True)


def drained(queue: FairQueue[str]) -> str:
    return " ".join(queue.get() for _ in range(len(queue)))


def test_equal_requests_take_turns_and_lone_ones_keep_their_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for request in (1, 2):
        for number in range(3):
            queue.put(Owner("a", request), f"{request}.{number}")
    queue.put(Owner("a", 3), "3.0")
    assert drained(queue) == "1.0 2.0 3.0 1.1 2.1 1.2 2.2"


def test_a_client_with_many_requests_gets_no_more_than_a_client_with_one() -> None:
    queue: FairQueue[str] = FairQueue()
    for request in range(4):
        queue.put(Owner("many", request), f"m{request}")
    for number in range(4):
        queue.put(Owner("one", 9), f"o{number}")
    assert drained(queue) == "m0 o0 m1 o1 m2 o2 m3 o3"


def test_a_cheap_request_passes_expensive_ones_that_came_before_it() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.put(Owner("a", 1), f"large{number}", cost=25e6)
    assert queue.get() == "large0"
    for number in range(2):
        queue.put(Owner("b", 2), f"small{number}", cost=1e4)
    assert drained(queue) == "large1 small0 small1 large2"  # b starts at a's level, then a has used more


def test_the_expected_wait_counts_of_each_other_request_only_what_comes_first() -> None:
    admission = Admission()
    with admission.admitted(Owner("a", 1), 5.0) as first, admission.admitted(Owner("b", 2), 0.5):
        assert admission.wait(Owner("a", 9), 0.1) == pytest.approx(
            0.1 + 0.2, rel=0.01
        )  # own request, then b up to the same sum
        assert admission.wait(Owner("c", 9), 1.0) == pytest.approx(1.5, rel=0.01)
        with pytest.raises(Refused) as caught, admission.admitted(Owner("a", 3), 4.0):
            pass
        assert (caught.value.status, caught.value.retry_after) == (503, 3)  # 4.5 seconds wait, 2 may
        first.left -= 4.5  # done
        assert admission.wait(Owner("a", 9), 4.0) == pytest.approx(1.0, rel=0.01)
    assert admission.wait(Owner("a", 9), 4.0) == 0.0


def test_many_small_requests_of_one_client_overload_a_server_and_one_large_request_does_not() -> None:
    admission = Admission()
    most = int(MAX_WAIT / REQUEST)

    def fill(held: ExitStack) -> None:
        for number in range(2 * most):
            held.enter_context(admission.admitted(Owner("a", number), 0.0))

    with ExitStack() as held:
        held.enter_context(admission.admitted(Owner("b", -1), 60.0))
        assert not admission.overloaded
        with pytest.raises(Refused, match="2 seconds of work"):
            fill(held)
        assert admission.overloaded
    assert not admission.overloaded


def test_the_expected_wait_follows_the_measured_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission()
    monkeypatch.setattr(serve.admission, "MEMORY", 0.05)
    for number in range(60):
        with admission.admitted(Owner("a", number), 0.001):  # estimated 2 ms with the request's own
            time.sleep(0.004)
    with admission.admitted(Owner("a", 100), 1.0):
        assert admission.wait(Owner("b", 101), 1.0) > 1.5
    monkeypatch.setattr(serve.admission, "MAX_WAIT", 1e9)
    with admission.admitted(Owner("a", 200), 50.0) as work:  # in progress, and its parts count before it is done
        for _ in range(50):
            time.sleep(0.004)
            admission.progress(work, 1.0)
        assert admission.wait(Owner("b", 101), 1.0) < 0.1


def test_a_rate_follows_recent_work() -> None:
    rate = Rate(9.0)
    for _ in range(200):
        rate.measured(0.2, 10)
    assert rate.seconds(5) == pytest.approx(0.1, rel=0.01)


async def started(exported: Path) -> Engine:
    engine = Engine()
    await engine.start([Session(exported / "model.onnx")])
    return engine


def test_a_small_image_is_answered_before_large_ones_that_came_first(exported: Path, torch_encoder: Encoder) -> None:
    large, order = blank(2500), []

    async def ask(name: str, images: list[bytes]) -> np.ndarray:
        rows = (await engine_of[0].embed(images)).rows
        order.append(name)
        return rows

    engine_of: list[Engine] = []

    async def scenario() -> np.ndarray:
        engine_of.append(await started(exported))
        abuse = [asyncio.create_task(ask("large", [large] * 4)) for _ in range(2)]
        await asyncio.sleep(0.03)
        rows = await ask("small", [png()])
        await asyncio.gather(*abuse)
        await engine_of[0].stop()
        return rows

    assert gap(asyncio.run(scenario()), torch_encoder.embed([png()])) < TOLERANCE
    assert order[0] == "small"


def test_the_pixels_of_a_request_are_bounded_before_any_is_decoded(exported: Path) -> None:
    huge = blank(4900)
    assert len(huge) < 2000
    n = MAX_PIXELS_IN_ALL // 4900**2 + 1

    async def scenario() -> float:
        engine = await started(exported)
        start = time.monotonic()
        with pytest.raises(Refused, match="Split the request") as caught:
            await engine.embed([text(huge)] * n)
        assert caught.value.status == 413
        seconds = time.monotonic() - start
        await engine.stop()
        return seconds

    assert asyncio.run(scenario()) < 1  # decoding them takes seconds


def test_too_much_work_is_refused_at_once_and_a_small_request_is_not(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve.admission, "MAX_WAIT", MAX_WAIT / 40)

    async def scenario() -> None:
        engine = await started(exported)
        first = asyncio.create_task(engine.embed([blank(2500)] * 8))
        await asyncio.sleep(0.03)
        with pytest.raises(Refused) as caught:
            await engine.embed([blank(2500)] * 8)
        assert (caught.value.status, first.done()) == (503, False)
        assert len((await engine.embed([png()])).rows) == 1
        first.cancel()
        await engine.stop()

    asyncio.run(scenario())


def decoded(live: str) -> float:
    page = httpx.get(f"{live}/metrics").text
    wanted = f'zoo_images_total{{model="{NAME}",outcome="decoded"}} '
    return sum(float(line.removeprefix(wanted)) for line in page.splitlines() if line.startswith(wanted))


def test_work_that_has_not_begun_ends_when_its_client_leaves(live: str) -> None:
    before, host, n = decoded(live), httpx.URL(live), 20
    form = httpx.Request("POST", f"{live}/v1/embed", files=files(*[blank(2000)] * n))
    body = form.read()
    with socket.create_connection((host.host, host.port or 80)) as connection:
        head = f"POST /v1/embed HTTP/1.1\r\nhost: {host.host}\r\ncontent-type: {form.headers['content-type']}\r\n"
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(0.1)
    deadline = time.monotonic() + 20
    last = -1.0
    while (now := decoded(live)) != last:  # until nothing is decoded any more
        assert time.monotonic() < deadline
        last = now
        time.sleep(0.3)
    assert now - before < n / 2


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_wrapped_base64_is_base64(live: str, torch_encoder: Encoder, newline: str) -> None:
    wrapped = newline.join(text(png())[start : start + 76] for start in range(0, len(text(png())), 76)) + newline
    answer = httpx.post(f"{live}/v1/embeddings", json={"input": [wrapped, f"data:image/png;base64,{wrapped}"]})
    rows = [row["embedding"] for row in json.loads(answer.text)["data"]]
    assert gap(rows, torch_encoder.embed([png(), png()])) < TOLERANCE
    for bad in (text(png()).replace("A", " A", 1), text(png()) + "\t"):
        refused(httpx.post(f"{live}/v1/embeddings", json={"input": bad}), 400, "invalid_request", index=0)
