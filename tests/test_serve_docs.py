"""serve/docs.py: the documentation shows what each endpoint reads and answers, and its examples can be sent."""

import html
import json
import re

import pytest
from serve_model import NAME
from starlette.testclient import TestClient

from serve.docs import SAMPLE

pytest_plugins = ["serve_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_fields' attribute on the instance")  # BentoML does


def section(client: TestClient, title: str) -> str:
    """The part of the page that is about one endpoint."""
    page = client.get("/docs").text
    return html.unescape(page.split(f"<h2><code>{title}</code></h2>")[1].split("<h2>")[0])


def test_the_files_of_embed_are_documented_as_a_form_and_as_a_raw_image(client: TestClient) -> None:
    text = section(client, "POST /v1/embed")
    assert "Body: multipart/form-data" in text
    assert re.search(r"<code>images</code><td>list of file<td>required", text)
    assert "a body of <code>image/*</code>" in text
    assert "Accept: application/x-npy" in text
    assert '"embeddings": [' in text  # the shape of the answer


def test_fields_are_marked_as_required_or_have_their_default(client: TestClient) -> None:
    text = section(client, "POST /v1/search")
    assert re.search(r"<code>image</code><td>string<td>required<td><td>", text)
    assert re.search(r"<code>k</code><td>integer<td>optional<td>10<td>how many", text)
    text = section(client, "POST /v1/embed")
    assert re.search(r"<code>dtype</code><td>float32 or float16<td>optional<td>\"float32\"<td>", text)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/similarity", "/embed"])
def test_every_example_body_is_answered(client: TestClient, path: str) -> None:
    body = json.loads(re.findall("<textarea[^>]*>(.*?)</textarea>", section(client, f"POST {path}"))[0])
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["model"]) == (200, NAME), answer.text


def test_the_script_sends_the_same_sample(client: TestClient) -> None:
    assert f"data-sample='{SAMPLE}'" in section(client, "POST /v1/embed")
    script = client.get("/docs.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert "form.dataset.sample" in script.text
