"""Bad requests: each is told what is wrong and where, on every endpoint, and harms no other."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from PIL import Image
from serve_http import JSON, PNG, TOLERANCE, bomb, files, refused, text
from serve_model import NAME, OTHER, encode, gap, noise, png
from starlette.testclient import TestClient

from serve.limits import MAX_BODY, MAX_IMAGE
from zoo.model.encoder import Encoder

pytest_plugins = ["serve_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_fields' attribute on the instance")  # BentoML does


def test_an_unknown_model_is_a_404_with_the_nearest_names(client: TestClient) -> None:
    for response in (
        client.post("/v1/embed?model=simco-r20-digit", content=png(), headers=PNG),
        client.post("/embed", json={"images": [text(png())], "model": "simco-r20-digit"}),
        client.post("/v1/embeddings", json={"input": text(png()), "model": "simco-r20-digit"}),
        client.post("/v1/similarity", json={"a": text(png()), "b": [], "model": "simco-r20-digit"}),
    ):
        assert refused(response, 404, "model_not_found", says=f"nearest: {NAME}, {OTHER}")["param"] == "model"


BAD_PICTURES: dict[str, tuple[bytes, int, str]] = {
    "garbage": (b"\x00\x01 no picture \xff" * 20, 415, "unsupported_media_type"),
    "gif": (encode(Image.new("RGB", (9, 9)), "GIF"), 415, "unsupported_media_type"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', 415, "unsupported_media_type"),
    "truncated png": (png(height=90, width=90)[:-500], 422, "invalid_image"),
    "png cut in its header": (png()[:40], 415, "unsupported_media_type"),
    "200 megapixels": (bomb(20_000, 10_000), 422, "invalid_image"),
    "26 megapixels": (bomb(5_200, 5_000), 422, "invalid_image"),
    "side of 9000": (bomb(9_000, 1), 422, "invalid_image"),
    "empty": (b"", 422, "invalid_image"),
    "too long": (png() + bytes(MAX_IMAGE), 413, "too_large"),
}


@pytest.mark.parametrize("name", BAD_PICTURES)
def test_a_bad_picture_is_named_by_its_place_on_every_endpoint(client: TestClient, name: str) -> None:
    content, status, code = BAD_PICTURES[name]
    refused(client.post("/v1/embed", files=files(png(), content, png())), status, code, index=1)
    refused(client.post("/embed", json={"images": [text(png()), text(png()), text(content)]}), status, code, index=2)
    if content:
        refused(client.post("/v1/embed", content=content, headers=PNG), status, code, index=0)


def test_the_first_of_several_bad_pictures_is_named(client: TestClient) -> None:
    slow_and_cut = encode(Image.fromarray(noise(900, 900, 3)), "PNG")[:-100]
    response = client.post("/v1/embed", files=files(png(), slow_and_cut, b"quickly seen to be bad"))
    refused(response, 422, "invalid_image", index=1)


def test_no_image_is_a_bad_request(client: TestClient) -> None:
    refused(client.post("/v1/embed", content=b"", headers=PNG), 400, "invalid_request", says="at least one")
    refused(client.post("/embed", json={"images": []}), 400, "invalid_request", says="at least one")
    refused(client.post("/embed", content=b"", headers=JSON), 400, "invalid_request", says="Field required")


def test_thirty_two_images_are_served_and_thirty_three_are_too_many(client: TestClient, torch_encoder: Encoder) -> None:
    contents = [png(seed) for seed in range(32)]
    response = client.post("/v1/embed", files=files(*contents))
    assert gap(response.json()["embeddings"], torch_encoder.embed(contents)) < TOLERANCE
    refused(client.post("/v1/embed", files=files(*contents, png())), 413, "too_large", says="32")
    refused(client.post("/embed", json={"images": [text(png())] * 33}), 413, "too_large", says="33")


@pytest.mark.parametrize("path", ["/v1/embed", "/embed"])
def test_a_body_over_the_limit_is_refused_announced_or_streamed(client: TestClient, path: str) -> None:
    def stream() -> Iterator[bytes]:
        for _ in range(MAX_BODY // 2**20 + 1):
            yield bytes(2**20)

    headers = PNG if path == "/v1/embed" else JSON
    refused(client.post(path, content=bytes(MAX_BODY + 1), headers=headers), 413, "too_large")
    response = client.post(path, content=stream(), headers=headers)
    assert "content-length" not in response.request.headers
    refused(response, 413, "too_large")


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/octet-stream", ""])
def test_a_body_of_another_type_is_refused(client: TestClient, kind: str) -> None:
    refused(client.post("/v1/embed", content=png(), headers={"content-type": kind}), 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "kind", ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "application/vnd.bentoml+pickle"]
)
def test_the_native_endpoint_reads_json_alone(client: TestClient, kind: str) -> None:
    response = client.post("/embed", content=b"images=http://127.0.0.1/", headers={"content-type": kind})
    refused(response, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "body", [b"{", b"\xff\xfe", b"[]", b"7", b"null", b'{"images": "QQ=="}', b'{"images": null}', b"[" * 100_000]
)
def test_malformed_json_is_a_bad_request(client: TestClient, body: bytes) -> None:
    refused(client.post("/embed", content=body, headers=JSON), 400, "invalid_request")


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/v1/similarity", "/v1/search"])
@pytest.mark.parametrize(
    "body",
    [b'{"images":[' + b"1," * 9_000_000 + b"1]}", b'{"a":1' + b',"a":1' * 3_000_000 + b"}"],
    ids=["list", "object"],
)
def test_a_json_body_of_millions_of_items_is_refused_before_it_fills_the_memory(
    client: TestClient, path: str, body: bytes
) -> None:
    start, resident = time.monotonic(), psutil.Process().memory_info().rss
    refused(client.post(path, content=body, headers=JSON), 413, "too_large", says="commas")
    assert time.monotonic() - start < 2
    assert psutil.Process().memory_info().rss - resident < 200e6


def test_fields_of_the_wrong_name_or_type_are_named(client: TestClient) -> None:
    response = client.post("/embed", json={"images": [text(png())], "normalise": True})
    assert refused(response, 400, "invalid_request")["param"] == "normalise"
    response = client.post("/embed", json={"images": [text(png()), 7]})
    assert refused(response, 400, "invalid_request", index=1)["param"] == "images"
    response = client.post("/v1/embed", files=[("pictures", ("a.png", png()))])
    assert refused(response, 400, "invalid_request")["param"] == "pictures"


@pytest.mark.parametrize(
    "bad", ["%%%", "QQ", "Q Q==", "ünïcödé", "🙂", "http://127.0.0.1:1/cat.png", "/etc/passwd", "-_-_"]
)
def test_what_is_not_base64_is_a_bad_request_and_no_address_is_read(client: TestClient, bad: str) -> None:
    response = client.post("/embed", json={"images": [text(png()), bad]})
    refused(response, 400, "invalid_request", index=1, says="not base64")
    response = client.post("/v1/embed", data={"images": bad}, files=files(png()))
    refused(response, 400, "invalid_request", says="files")


def test_broken_forms_are_bad_requests(client: TestClient) -> None:
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        refused(client.post("/v1/embed", content=b"nonsense", headers={"content-type": kind}), 400, "invalid_request")


def test_a_form_that_was_cut_off_is_a_bad_request_and_not_answered_for_its_whole_parts(client: TestClient) -> None:
    form = client.build_request("POST", "/v1/embed", files=files(png(), png(1)))
    headers = {"content-type": form.headers["content-type"]}
    whole = form.read().removesuffix(b"\r\n")
    assert client.post("/v1/embed", content=whole, headers=headers).status_code == 200
    second = whole.rindex(b"Content-Disposition")
    for end in [0, 9, second - 2, *range(second, len(whole), 23), len(whole) - 1]:
        response = client.post("/v1/embed?on_error=skip", content=whole[:end], headers=headers)
        refused(response, 400, "invalid_request", says="before its last boundary")


def test_bad_requests_never_harm_their_neighbours(client: TestClient, torch_encoder: Encoder) -> None:
    contents = [png(seed) for seed in range(60)]
    expected = torch_encoder.embed(contents)

    def ask(number: int) -> float:
        if number % 3:
            content, status, code = list(BAD_PICTURES.values())[number % 9]
            if content:
                refused(client.post("/v1/embed", files=files(png(), content)), status, code, index=1)
            return 0.0
        if number % 2:
            response = client.post("/embed", json={"images": [text(contents[number])]})
        else:
            response = client.post("/v1/embed", content=contents[number], headers=PNG)
        return gap(response.json()["embeddings"], expected[number : number + 1])

    with ThreadPoolExecutor(16) as threads:
        assert max(threads.map(ask, range(60))) < TOLERANCE
