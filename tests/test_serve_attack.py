"""Hostile requests and damaged images: never a 5xx, never a wait, and the image beside them is answered right."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serve_http import JSON, TOLERANCE, files, refused
from serve_model import gap, pictures, png
from starlette.testclient import TestClient

from serve.log import logger
from zoo.model.encoder import Encoder

pytest_plugins = ["serve_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore")  # of the attacking tools
PATIENCE = 20.0  # seconds, under the server's own limit of 30
LONG = 3600  # seconds; pytest's 600 have ended ten thousand requests on a busy machine, with a confusing report
QUIET = {"deadline": None, "database": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
BODIES = 4  # operations that read a body: the others have few requests that differ


def attack(live: str, examples: int) -> dict[int, int]:
    """Requests along the OpenAPI document, sound and unsound; how often each status was answered."""
    schema = schemathesis.openapi.from_url(f"{live}/openapi.json")
    statuses: dict[int, int] = {}
    operations = [result.ok() for result in schema.get_all_operations()]
    for operation in operations:
        if operation.path == "/embed":
            continue  # not on this server; see below

        def ask(case: Any) -> None:
            start = time.monotonic()
            response = case.call(timeout=PATIENCE)
            assert time.monotonic() - start < PATIENCE, case
            assert response.status_code < 500, response.text
            case.operation.schema[case.operation.path][case.operation.method].validate_response(response)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1

        for mode in schemathesis.GenerationMode:
            if mode.is_negative and not operation.query and not operation.body:
                continue  # nothing to be wrong
            _given(operation.as_strategy(generation_mode=mode), ask, examples)
    return statuses


def _given(strategy: Any, check: Callable[[Any], None], examples: int) -> None:
    settings(max_examples=examples, **QUIET)(given(strategy)(check))()  # type: ignore[arg-type]


def test_no_request_along_the_document_breaks_the_server(live: str) -> None:
    statuses = attack(live, 12)
    assert sum(statuses.values()) > 100
    assert statuses[400] > 20
    assert statuses[200] > 0


@pytest.mark.slow
@pytest.mark.timeout(LONG)
def test_no_one_of_ten_thousand_requests_breaks_the_server(live: str) -> None:
    statuses = attack(live, 10_000 // (2 * BODIES))
    assert sum(statuses.values()) >= 10_000, statuses


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
bodies = st.dictionaries(st.sampled_from(["images", "normalize", "model", "x"]), json_values, max_size=4)


def test_no_json_breaks_the_native_endpoint(client: TestClient) -> None:
    def ask(body: Any) -> None:
        response = client.post(
            "/embed", content=httpx.Request("POST", "http://x", json=_finite(body)).read(), headers=JSON
        )
        assert 400 <= response.status_code < 500, response.text
        refused(
            response, response.status_code, response.json()["error"]["code"], index=response.json()["error"]["index"]
        )

    _given(bodies | json_values, ask, 150)


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return {key: _finite(item) for key, item in value.items()} if isinstance(value, dict) else value


def damaged(seeds: list[bytes], rng: np.random.Generator) -> bytes:
    """One of the files, with bytes changed, cut off, doubled or put in."""
    content = bytearray(seeds[rng.integers(len(seeds))])
    for _ in range(rng.integers(1, 5)):
        place, length = (int(rng.integers(len(content) + 1)) for _ in range(2))
        kind = rng.integers(5)
        if kind == 0 and place < len(content):
            content[place] ^= 1 << rng.integers(8)
        elif kind == 1:
            content[place : place + 4] = rng.bytes(4)
        elif kind == 2:
            del content[place : place + length // 8]
        elif kind == 3:
            content[place:place] = content[length : length + 64]
        else:
            content[16 + place % 8 : 17 + place % 8] = rng.bytes(1)  # a PNG's width and height
    return bytes(content)


def attack_with_images(client: TestClient, n: int, expected: np.ndarray, *, seed: int = 0) -> dict[str, int]:
    """n damaged images, each between two good ones; how often each outcome came."""
    rng, seeds = np.random.default_rng(seed), list(pictures().values())
    outcomes: dict[str, int] = {}
    for _ in range(n):
        start = time.monotonic()
        response = client.post("/v1/embed?on_error=skip", files=files(png(), damaged(seeds, rng), png(1)))
        assert time.monotonic() - start < PATIENCE
        assert response.status_code == 200, response.text
        answer = response.json()
        rows = dict(zip(answer["index"], answer["embeddings"], strict=True))
        assert gap([rows[0], rows[2]], expected) < TOLERANCE
        outcome = answer["errors"][0]["code"] if answer["errors"] else "embedded"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


def test_no_damaged_image_breaks_the_server_or_its_neighbours(client: TestClient, torch_encoder: Encoder) -> None:
    outcomes = attack_with_images(client, 300, torch_encoder.embed([png(), png(1)]))
    assert outcomes.keys() == {"embedded", "invalid_image", "unsupported_media_type"}
    assert outcomes["invalid_image"] > 50


@pytest.mark.slow
@pytest.mark.timeout(LONG)
def test_no_one_of_ten_thousand_damaged_images_breaks_the_server_or_stays_in_memory(
    client: TestClient, torch_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "disabled", True)  # pytest keeps what is logged
    expected, resident = torch_encoder.embed([png(), png(1)]), []
    for seed, n in enumerate((2_000, 8_000)):
        attack_with_images(client, n, expected, seed=seed)
        resident.append(psutil.Process().memory_info().rss)
    assert resident[1] < 1.05 * resident[0]
