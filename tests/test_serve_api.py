"""serve/routes.py and serve/answers.py: OpenAI's shape, similarity, binary answers, skipped images, key, docs."""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from serve_http import JSON, PNG, TOLERANCE, files, refused, text
from serve_model import NAME, OTHER, gap, png
from starlette.testclient import TestClient

from serve.app import make_app
from serve.endpoints import ENDPOINTS, Endpoint
from serve.engine import Engine
from serve.guard import Guard
from serve.search import Indexes
from zoo.model.embedding import unit_rows
from zoo.model.encoder import Encoder

pytest_plugins = ["serve_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_fields' attribute on the instance")  # BentoML does
URI = "data:image/png;base64,"


def official(client: TestClient) -> openai.OpenAI:
    """OpenAI's own client, talking to the app in this process."""
    transport = httpx.MockTransport(lambda request: _through(client, request))
    return openai.OpenAI(base_url="http://zoo/v1", api_key="any", http_client=httpx.Client(transport=transport))


def _through(client: TestClient, request: httpx.Request) -> httpx.Response:
    headers = {
        "content-type": request.headers.get("content-type", ""),
        "authorization": request.headers["authorization"],
    }
    answer = client.request(request.method, request.url.path, content=request.read(), headers=headers)
    return httpx.Response(answer.status_code, content=answer.content, headers={"content-type": "application/json"})


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_openais_client_gets_the_encoders_embeddings(
    client: TestClient, torch_encoder: Encoder, other_encoder: Encoder, encoding: Any
) -> None:
    pictures = [URI + text(png()), text(png(1))]
    for name, encoder in ((NAME, torch_encoder), (OTHER, other_encoder)):
        options = {"encoding_format": encoding} if encoding else {}  # without it the client asks for base64 and decodes
        answer = official(client).embeddings.create(model=name, input=pictures, **options)
        rows = [row.embedding for row in answer.data]
        if encoding == "base64":
            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]  # type: ignore[arg-type]
        assert (answer.model, [row.index for row in answer.data]) == (name, [0, 1])
        assert gap(rows, encoder.embed([png(), png(1)])) < TOLERANCE


def test_openais_client_lists_the_models_and_gets_its_errors(client: TestClient) -> None:
    assert [model.id for model in official(client).models.list()] == [NAME, OTHER]
    with pytest.raises(openai.NotFoundError) as caught:
        official(client).embeddings.create(model="simco-r20-digit", input=text(png()))
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.UnprocessableEntityError, match="image 1"):
        official(client).embeddings.create(model=NAME, input=[text(png()), text(png(height=90)[:-500])])


def test_fewer_dimensions_are_the_first_ones_with_unit_norm_again(client: TestClient, torch_encoder: Encoder) -> None:
    expected = unit_rows(torch_encoder.embed([png(), png(1)])[:, :5])
    body = {"input": [text(png()), text(png(1))], "dimensions": 5}
    rows = [row["embedding"] for row in client.post("/v1/embeddings", json=body).json()["data"]]
    assert gap(rows, expected) < TOLERANCE
    answer = client.post("/v1/embed?dimensions=5", files=files(png(), png(1))).json()
    assert answer["dim"] == 5
    assert gap(answer["embeddings"], expected) < TOLERANCE
    for bad in ("0", "65", "x"):
        response = client.post(f"/v1/embed?dimensions={bad}", content=png(), headers=PNG)
        assert refused(response, 400, "invalid_request")["param"] == "dimensions"


def test_npz_holds_what_belongs_to_the_embeddings(client: TestClient, torch_encoder: Encoder, exported: Path) -> None:
    query = "/v1/embed?on_error=skip"
    accept = {"accept": "application/x-npz"}
    response = client.post(query, files=files(png(), b"no picture", png(1)), headers=accept)
    with np.load(io.BytesIO(response.content), allow_pickle=False) as file:
        assert gap(file["embeddings"], torch_encoder.embed([png(), png(1)])) < TOLERANCE
        assert file["index"].tolist() == [0, 2]
        assert str(file["model"]) == NAME
        assert str(file["weights_sha256"]) == json.loads((exported / "card.json").read_text())["weights"]["sha256"]
        assert [(row["index"], row["code"]) for row in json.loads(str(file["errors"]))] == [
            (1, "unsupported_media_type")
        ]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/x-npy;q=0", "json"),
        ("application/x-npy; q=0.000, application/x-npz", "x-npz"),
        ("application/x-npy;q=0.3, Application/X-NPZ;Q=0.8, */*;q=0.1", "x-npz"),
        ("application/json;q=0.5, application/x-npy", "x-npy"),
        ("application/x-npy;q=0.5, application/json", "json"),
        ("application/x-npy;level=1;q=wrong", "x-npy"),
        ("application/x-npyramid, text/html, */*", "json"),
        (",;=,q=1;", "json"),
    ],
)
def test_the_answer_has_the_format_that_is_liked_best(client: TestClient, accept: str, kind: str) -> None:
    response = client.post("/v1/embed", content=png(), headers=PNG | {"accept": accept})
    assert (response.status_code, response.headers["content-type"]) == (200, f"application/{kind}")


def test_float16_is_the_rounded_float32_and_no_json(client: TestClient, torch_encoder: Encoder) -> None:
    accept = {"accept": "application/x-npy"}
    response = client.post("/v1/embed?dtype=float16&normalize=true", content=png(), headers=PNG | accept)
    rows = np.load(io.BytesIO(response.content), allow_pickle=False)
    assert rows.dtype == np.dtype("<f2")
    assert np.abs(rows - torch_encoder.embed([png()], normalize=True)).max() < 1e-3
    response = client.post("/v1/embed?dtype=float16", content=png(), headers=PNG)
    assert refused(response, 400, "invalid_request", says="x-npz")["param"] == "dtype"


def test_skipped_images_are_told_and_the_others_answered(client: TestClient, torch_encoder: Encoder) -> None:
    cut, good = png(height=90)[:-500], torch_encoder.embed([png(), png(1)])
    reasons = [(1, "unsupported_media_type"), (3, "invalid_image")]
    response = client.post("/v1/embed?on_error=skip", files=files(png(), b"no picture", png(1), cut))
    answer = response.json()
    assert gap(answer["embeddings"], good) < TOLERANCE
    assert (answer["index"], [(row["index"], row["code"]) for row in answer["errors"]]) == ([0, 2], reasons)
    assert response.headers["x-image-index"] == "0,2"
    assert response.headers["x-image-errors"] == "1:unsupported_media_type,3:invalid_image"
    body = {"input": [text(png()), "%%%", text(png(1)), text(cut)], "on_error": "skip"}
    answer = client.post("/v1/embeddings", json=body).json()
    assert [row["index"] for row in answer["data"]] == [0, 2]
    assert gap([row["embedding"] for row in answer["data"]], good) < TOLERANCE
    assert [(row["index"], row["code"]) for row in answer["errors"]] == [(1, "invalid_request"), reasons[1]]


def test_when_all_images_are_bad_skip_answers_with_no_row(client: TestClient) -> None:
    answer = client.post("/v1/embed?on_error=skip", files=files(b"a", b"b")).json()
    assert (answer["embeddings"], answer["index"], len(answer["errors"])) == ([], [], 2)


def test_similarity_is_the_cosine(client: TestClient, torch_encoder: Encoder) -> None:
    units = torch_encoder.embed([png(), png(1), png(2)], normalize=True)
    body = {"a": text(png()), "b": [text(png(seed)) for seed in range(3)]}
    answer = client.post("/v1/similarity", json=body).json()
    assert answer["model"] == NAME
    assert np.abs(answer["similarities"] - units @ units[0]).max() < TOLERANCE
    assert answer["similarities"][0] == pytest.approx(1)
    body["b"][1] = text(b"no picture")
    response = client.post("/v1/similarity", json=body)
    assert refused(response, 415, "unsupported_media_type", index=1)["param"] == "b"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/similarity", "/v1/search"])
@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[]", b"7", b"null", b"[" * 100_000])
def test_malformed_json_is_a_bad_request(client: TestClient, path: str, body: bytes) -> None:
    refused(client.post(path, content=body, headers=JSON), 400, "invalid_request")
    refused(client.post(path, content=body, headers=PNG), 415, "unsupported_media_type")


def test_faults_of_a_json_body_are_named_with_their_place(client: TestClient) -> None:
    response = client.post("/v1/embeddings", json={"input": [text(png()), 7]})
    assert refused(response, 400, "invalid_request", index=1)["param"] == "input"
    response = client.post("/v1/embeddings", json={"input": text(png()), "inputs": 1})
    assert refused(response, 400, "invalid_request", says="allowed: model, input")["param"] == "inputs"
    for bad in ("http://127.0.0.1/cat.png", "data:text/html;base64,QQ==", "data:image/png,QQ", "/etc/passwd"):
        response = client.post("/v1/embeddings", json={"input": ["QQ==", bad][1:]})
        assert refused(response, 400, "invalid_request", index=0)["param"] == "input"


def test_without_an_index_search_says_how_to_get_one(client: TestClient) -> None:
    refused(client.post("/v1/search", json={"image": text(png())}), 404, "not_found", says="--index")
    assert client.get("/v1/indexes").json() == {"object": "list", "data": []}


def test_metrics_count_images_and_routes_and_no_path_of_a_visitor(client: TestClient) -> None:
    def value(line: str) -> float:
        found = re.search(rf"^{re.escape(line)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    answered = 'zoo_requests_total{route="/v1/embed",status="200"}'
    lost = 'zoo_requests_total{route="other",status="404"}'
    decoded = f'zoo_images_total{{model="{NAME}",outcome="decoded"}}'
    ran = f'zoo_batch_images_sum{{model="{NAME}"}}'
    before = [value(line) for line in (answered, lost, decoded, ran)]
    client.post("/v1/embed", files=files(png(), png(1), png(2)))
    for number in range(5):
        client.get(f"/nobody/knows/{number}")
    after = [value(line) for line in (answered, lost, decoded, ran)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 5, 3, 3]
    page = client.get("/metrics").text
    assert "nobody" not in page
    for name in ("request", "decode", "queue", "inference"):
        assert f"zoo_{name}_seconds_bucket" in page


@pytest.fixture(scope="module")
def guarded() -> TestClient:
    """The routes behind keys, no model loaded: the door stands before the models."""
    return TestClient(app=Guard(make_app(Engine(), Indexes()), keys="first, second, schlüssel"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic first", "Bearer first,", "first"]
)
def test_without_a_key_every_keyed_path_is_a_401(guarded: TestClient, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    keyed = [endpoint.path.format(name="x") for endpoint in ENDPOINTS if not endpoint.public]
    assert {"/v1/embed", "/v1/models/x", "/embed", "/metrics"} <= set(keyed)
    for path in keyed:
        response = guarded.post(path, headers=headers)
        assert response.headers["www-authenticate"] == "Bearer"
        refused(response, 401, "unauthorized", says="Authorization: Bearer KEY")


def test_any_of_the_keys_opens_and_health_needs_none(guarded: TestClient) -> None:
    for key in (b"Bearer first", b"bearer first", b"Bearer second", "Bearer schlüssel".encode()):
        assert guarded.get("/v1/models", headers={"authorization": key}).status_code == 200
    refused(guarded.get("/livez"), 404, "not_found", says="Not Found")  # the door is open; this small app has none


def test_our_document_covers_every_route_and_its_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    spec = client.get("/openapi.json").json()
    shown = {each.path for each in ENDPOINTS if not each.public} - {"/metrics", "/schema.json"}
    assert spec["paths"].keys() == shown
    page = client.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none';")
    assert "<meta name=viewport" in page.text  # else a telephone shows it four times smaller
    for path in spec["paths"]:
        assert path in page.text
    for path in ("/", "/docs"):
        source = client.get(path).text
        assert "http://" not in source
        assert "https://" not in source
    for path in ("/docs.json", "/static_content/swagger-ui.css", "/assets/x"):  # BentoML's pages call others
        refused(client.get(path), 404, "not_found")


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each.path)
def test_every_path_takes_its_methods_and_names_them_when_asked_with_another(
    client: TestClient, endpoint: Endpoint
) -> None:
    path, methods = endpoint.path.format(name=NAME), {"GET": "GET, HEAD", "POST": "POST"}[endpoint.method]
    for method in methods.split(", "):
        assert client.request(method, path).status_code == (200 if method != "POST" else 415)
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        if method not in methods:
            response = client.request(method, path)
            assert response.headers["allow"] == methods
            refused(response, 405, "method_not_allowed", says=f"{method} is not for {endpoint.path}, which takes")


def test_a_model_without_a_name_is_no_model(client: TestClient) -> None:
    refused(client.get("/v1/models/"), 404, "not_found", says="/docs")


def test_a_repeated_query_parameter_is_refused(client: TestClient) -> None:
    for query in (f"model={NAME}&model={OTHER}", "normalize=true&normalize=true", "dtype=float16&x=1&dtype=float32"):
        response = client.post(f"/v1/embed?{query}", content=png(), headers=PNG)
        error = refused(response, 400, "invalid_request", says="sent more than once")
        assert error["param"] == query.split("=")[0]


def test_the_document_is_valid_openapi(client: TestClient) -> None:
    import schemathesis

    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    schema.validate()
    assert len(list(schema.get_all_operations())) == 8
