"""serve/service.py, serve/engine.py: the answers equal the encoder's, in time, and leave nothing behind."""

import asyncio
import gc
import io
import os
import re
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from serve_http import PNG, TOLERANCE, files, refused, text
from serve_model import NAME, OTHER, encode, gap, noise, pictures, png
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.testclient import TestClient

from serve.app import make_app
from serve.engine import Embedded, Engine
from serve.guard import Guard
from serve.limits import MAX_QUEUE
from serve.log import logger
from serve.refusal import Refused
from serve.search import Indexes
from serve.session import Session
from zoo.model.encoder import Encoder

pytest_plugins = ["serve_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_fields' attribute on the instance")  # BentoML does


def test_a_form_of_every_kind_of_picture_equals_the_encoder(client: TestClient, torch_encoder: Encoder) -> None:
    parts = [("images", (name, content)) for name, content in pictures().items()]
    response = client.post("/v1/embed", files=parts)
    answer = response.json()
    assert (response.status_code, answer["model"], answer["dim"]) == (200, NAME, 64)
    assert gap(answer["embeddings"], torch_encoder.embed(list(pictures().values()))) < TOLERANCE


def test_npy_holds_the_same_numbers_as_json(client: TestClient, torch_encoder: Encoder) -> None:
    contents = list(pictures().values())
    response = client.post("/v1/embed", files=files(*contents), headers={"accept": "application/x-npy"})
    assert response.headers["content-type"] == "application/x-npy"
    assert (response.headers["x-model-id"], response.headers["x-embedding-dim"]) == (NAME, "64")
    rows = np.load(io.BytesIO(response.content), allow_pickle=False)
    assert rows.dtype == np.dtype("<f4")
    assert gap(rows, torch_encoder.embed(contents)) < TOLERANCE


@pytest.mark.parametrize("name", pictures())
def test_one_raw_body_equals_the_encoder(client: TestClient, torch_encoder: Encoder, name: str) -> None:
    content = pictures()[name]
    response = client.post("/v1/embed", content=content, headers={"content-type": "image/anything"})
    assert gap(response.json()["embeddings"], torch_encoder.embed([content])) < TOLERANCE


@pytest.mark.parametrize("normalize", [True, False])
def test_the_native_endpoint_equals_the_encoder(client: TestClient, torch_encoder: Encoder, normalize: bool) -> None:
    contents = list(pictures().values())
    response = client.post("/embed", json={"images": [text(c) for c in contents], "normalize": normalize})
    answer = response.json()
    assert (answer["model"], answer["dim"]) == (NAME, 64)
    assert gap(answer["embeddings"], torch_encoder.embed(contents, normalize=normalize)) < TOLERANCE


def test_normalize_gives_unit_rows_and_is_off_by_default(client: TestClient, torch_encoder: Encoder) -> None:
    raw = torch_encoder.embed([png()])
    for query, expected in (("", raw), ("?normalize=false", raw), ("?normalize=true", raw / np.linalg.norm(raw))):
        response = client.post(f"/v1/embed{query}", content=png(), headers=PNG)
        assert gap(response.json()["embeddings"], expected) < TOLERANCE
    response = client.post("/v1/embed?normalize=yes", content=png(), headers=PNG)
    assert refused(response, 400, "invalid_request")["param"] == "normalize"
    response = client.post("/v1/embed?normalise=true", content=png(), headers=PNG)
    assert refused(response, 400, "invalid_request", says="allowed: model, normalize")["param"] == "normalise"


def test_the_model_list_has_every_model(client: TestClient, exported: Path, other_exported: Path) -> None:
    rows = []
    for name, folder in ((NAME, exported), (OTHER, other_exported)):
        sha256 = Session(folder / "model.onnx").weights_sha256
        rows.append(
            {"id": name, "object": "model", "dim": 64, "image_size": 8, "weights_sha256": sha256, "aliases": []}
        )
    assert client.get("/v1/models").json() == {"object": "list", "data": rows}
    assert client.get(f"/v1/models/{OTHER}").json() == rows[1]
    refused(client.get("/v1/models/модель"), 404, "model_not_found", says="модель")
    refused(client.get("/v1/models/timm/resnet18"), 404, "model_not_found", says="'timm/resnet18'")
    refused(client.get("/v1/nothing"), 404, "not_found", says="/docs")


def test_every_endpoint_answers_with_the_model_that_was_asked_for(
    client: TestClient, torch_encoder: Encoder, other_encoder: Encoder
) -> None:
    for name, encoder in ((NAME, torch_encoder), (OTHER, other_encoder), ("", torch_encoder)):
        expected = encoder.embed([png()])
        answer = client.post(f"/v1/embed?model={name}", content=png(), headers=PNG).json()
        assert gap(answer["embeddings"], expected) < TOLERANCE
        assert answer["model"] == (name or NAME)
        answer = client.post("/embed", json={"images": [text(png())], "model": name}).json()
        assert gap(answer["embeddings"], expected) < TOLERANCE
        answer = client.post("/v1/embeddings", json={"input": text(png()), "model": name}).json()
        assert gap([row["embedding"] for row in answer["data"]], expected) < TOLERANCE


def test_a_request_id_is_kept_if_it_is_harmless(client: TestClient) -> None:
    response = client.get("/v1/models", headers={"x-request-id": "my.request-1_A"})
    assert response.headers["x-request-id"] == "my.request-1_A"
    response = client.get("/v1/nothing", headers={"x-request-id": "a\tb" * 99})
    assert re.fullmatch("[0-9a-f]{32}", refused(response, 404, "not_found")["request_id"])


def test_a_full_queue_refuses_at_once_and_serves_again_when_it_is_empty(client: TestClient) -> None:
    large = encode(Image.fromarray(noise(300, 300, 1).squeeze()), "PNG", compress_level=1)
    start = time.monotonic()

    def ask(_: int) -> tuple[int, float]:
        response = client.post("/v1/embed", files=files(*[large] * 32))
        if response.status_code == 503:
            refused(response, 503, "overloaded", says="Try again")
        return response.status_code, time.monotonic() - start

    with ThreadPoolExecutor(MAX_QUEUE // 32 + 8) as threads:
        answers = list(threads.map(ask, range(MAX_QUEUE // 32 + 8)))
    assert {status for status, _ in answers} == {200, 503}
    assert max(t for status, t in answers if status == 503) < max(t for status, t in answers if status == 200)
    assert client.post("/v1/embed", files=files(*[png()] * 32)).status_code == 200


def test_an_answered_request_leaves_little_behind(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """BentoML keeps a timer of every request for half a minute; nothing else may stay that long."""
    monkeypatch.setattr(logger, "disabled", True)  # pytest keeps what is logged
    headers = [(b"user-agent", b"x" * 500)]
    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": headers, "query_string": b""}

    async def nothing(message: Any = None) -> Any:
        return {"type": "http.request"}

    async def held_by(n: int) -> float:
        """Bytes in use after n requests, beyond those before."""
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(n):
            await asyncio.create_task(client.app(scope | {"state": {}}, nothing, nothing))
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    client.portal.call(held_by, 50)
    tracemalloc.start()
    held = client.portal.call(held_by, 300)
    tracemalloc.stop()
    assert held / 300 < 1000


def test_a_collection_of_garbage_leaves_out_what_was_there_before_the_first_request(client: TestClient) -> None:
    assert gc.get_freeze_count() > 50_000  # imported modules alone are more


def test_usage_reports_are_off(client: TestClient) -> None:
    assert os.environ["BENTOML_DO_NOT_TRACK"] == "True"


@pytest.fixture
def small_app(exported: Path) -> Callable[..., tuple[Starlette, Engine]]:
    """An app of the same parts without BentoML, with a deadline of its own."""

    def make(**options: float) -> tuple[Starlette, Engine]:
        engine = Engine()

        @asynccontextmanager
        async def lifespan(_: Starlette) -> Any:
            await engine.start([Session(exported / "model.onnx")])
            yield
            await engine.stop()

        guard = Middleware(Guard, **options)
        mount = Mount("/", make_app(engine, Indexes()))
        return Starlette(routes=[mount], lifespan=lifespan, middleware=[guard]), engine

    return make


def test_a_late_answer_is_a_timeout_and_the_engine_goes_on(small_app: Callable[..., tuple[Starlette, Engine]]) -> None:
    app, engine = small_app(timeout=0.1)
    slow = encode(Image.fromarray(noise(1500, 1500, 3)), "PNG", compress_level=1)
    with TestClient(app=app, base_url="http://127.0.0.1", client=("127.0.0.1", 50_000)) as client:
        refused(client.post("/v1/embed", files=files(slow, slow, slow, slow)), 504, "timeout", says="0.1 seconds")
        time.sleep(0.5)
        assert engine.alive
        assert client.post("/v1/embed", content=png(), headers=PNG).status_code == 200


def test_a_failure_inside_is_a_500_without_details_and_the_next_request_works(
    small_app: Callable[..., tuple[Starlette, Engine]],
) -> None:
    app, engine = small_app()
    with TestClient(app=app, base_url="http://127.0.0.1", client=("127.0.0.1", 50_000)) as client:
        sessions, engine.sessions = engine.sessions, {}
        error = refused(client.post("/v1/embed", content=png(), headers=PNG), 500, "internal")
        assert error["message"] == f"the server failed; its log has request {error['request_id']}"
        engine.sessions = sessions
        assert client.post("/v1/embed", content=png(), headers=PNG).status_code == 200


def test_an_engine_is_ready_after_its_warm_up_and_not_after_its_end(exported: Path, torch_encoder: Encoder) -> None:
    engine = Engine()
    assert not engine.ready
    assert not engine.alive

    async def scenario() -> np.ndarray:
        await engine.start([Session(exported / "model.onnx")])
        assert engine.ready
        assert engine.alive
        requests = [engine.embed([png()] * 32) for _ in range(MAX_QUEUE // 32 + 1)]
        *served, late = await asyncio.gather(*requests, return_exceptions=True)
        assert [each.rows.shape for each in served if isinstance(each, Embedded)] == [(32, 64)] * (MAX_QUEUE // 32)
        assert isinstance(late, Refused)
        rows = (await engine.embed([png(), text(png(1))])).rows
        await engine.stop()
        return rows

    assert gap(asyncio.run(scenario()), torch_encoder.embed([png(), png(1)])) < TOLERANCE
    assert not engine.ready
    assert not engine.alive
