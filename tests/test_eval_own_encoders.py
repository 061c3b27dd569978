"""Encoders of one's own: modules, functions, ONNX files and endpoints give the numbers of what they compute."""

import base64
import io
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image
from torch import nn

from eval.own_encoders import CallableEncoder, probe_images
from eval.score import main, score
from zoo.errors import BadData, CorruptFile, UnknownName, Unreachable
from zoo.model.encoder import new_encoder

FEW = {"data": {"digits": None}, "max_train": 120, "max_test": 50}


class Projection(nn.Module):
    """A linear layer on the pixels; counts the images it sees."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer, self.seen = nn.Linear(192, 16), 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += len(images)
        return self.layer(images.flatten(1))


def flat(images: torch.Tensor) -> torch.Tensor:
    """The pixels in the order that raw pixels have."""
    return images.permute(0, 2, 3, 1).flatten(1)


def test_a_function_and_a_module_that_hand_on_the_pixels_score_as_raw_pixels():
    class Flat(nn.Module):
        def forward(self, images):
            return flat(images)

    pixels, function, module = score(["pixels:", flat, Flat()], protocols="knn", **FEW)
    assert [one.encoder.name for one in (pixels, function, module)] == ["pixels", "flat", "Flat"]
    assert pixels.value == function.value == module.value
    assert function.encoder.dim == 192


def test_features_of_a_module_are_kept_for_its_weights_and_never_answer_for_others():
    model = Projection()
    (first,) = score(model, **FEW)
    assert model.seen > 170
    model.seen = 0
    (again,) = score(model, **FEW)
    assert model.seen < 30  # those that identify it; the features are on disk
    assert again.encoder.sha256 == first.encoder.sha256
    with torch.no_grad():
        model.layer.weight.zero_()
    (changed,) = score(model, **FEW)
    assert changed.encoder.sha256 != first.encoder.sha256
    assert changed.collapsed
    assert changed.value < first.value


def test_the_same_weights_in_another_computation_are_another_encoder():
    class Squared(Projection):
        def forward(self, images):
            return super().forward(images) ** 2

    Squared.__name__ = Squared.__qualname__ = "Projection"
    plain, squared = score([Projection(), Squared()], **FEW)
    assert plain.encoder.sha256 != squared.encoder.sha256
    assert [one.encoder.name for one in (plain, squared)] == ["Projection"] * 2


def test_a_function_is_asked_anew_each_time_and_its_results_are_of_what_it_returned(tmp_path):
    power = 1.0

    def bent(images):
        return flat(images) ** power

    (first,) = score(bent, out=tmp_path, **FEW)
    (again,) = score(bent, out=tmp_path, **FEW)
    assert again == first  # from the folder
    power = 0.0
    (changed,) = score(bent, out=tmp_path, **FEW)
    assert changed.encoder.sha256 != first.encoder.sha256
    assert changed.collapsed


def test_a_module_is_measured_in_evaluation_mode_and_a_zoo_encoder_as_itself():
    dropping = nn.Sequential(nn.Flatten(), nn.Dropout(0.9))
    (one,) = score(dropping, **FEW)
    (plain,) = score(nn.Flatten(), **FEW)
    assert one.value == plain.value
    encoder = new_encoder("simco-r20-digits")
    (own,) = score(encoder, protocols="knn", **FEW)
    assert (own.encoder.name, own.encoder.dim, own.encoder.feature) == ("Encoder", 64, "backbone")


def test_features_that_are_not_b_times_d_are_refused_with_what_came():
    with pytest.raises(
        BadData, match=r"Identity returned \(2, 3, 8, 8\) for images \(2, 3, 8, 8\); an encoder returns"
    ):
        score(nn.Identity(), **FEW)
    with pytest.raises(BadData, match="flat: no data set of its own; say which"):
        score(flat)


def test_any_image_size_of_a_module_is_the_one_it_is_given():
    model = nn.Flatten()
    model.image_size = 4
    encoder = CallableEncoder(model, image_size=8)
    assert (encoder.image_size, encoder.dim) == (4, 48)


def onnx_file(path, kind: int, shape: list[int | str], order: list[int]):
    """A graph that casts, reorders and flattens its input."""
    nodes = [
        helper.make_node("Cast", ["x"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["cast"], ["ordered"], perm=order),
        helper.make_node("Flatten", ["ordered"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 192])]
    graph = helper.make_graph(nodes, "pixels", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_an_onnx_file_of_either_form_scores_as_what_it_computes(tmp_path):
    images = onnx_file(tmp_path / "images.onnx", TensorProto.FLOAT, ["n", 3, 8, 8], [0, 2, 3, 1])
    pixels = onnx_file(tmp_path / "pixels.onnx", TensorProto.UINT8, ["n", 8, 8, 3], [0, 1, 2, 3])
    raw, first, second = score(["pixels:", f"onnx:{images}", f"onnx:{pixels}"], **FEW)
    assert raw.value == first.value == second.value
    assert (first.encoder.name, first.encoder.dim) == ("images.onnx", 192)
    vector = onnx_file(tmp_path / "vector.onnx", TensorProto.INT64, ["n", 3, 8, 8], [0, 1, 2, 3])
    with pytest.raises(BadData, match=r"vector.onnx: its inputs are .*int64.*an encoder takes images \(B, 3, S, S\)"):
        score(f"onnx:{vector}", **FEW)
    vector.write_bytes(b"no")
    with pytest.raises(CorruptFile, match=r"vector.onnx: onnxruntime cannot read it"):
        score(f"onnx:{vector}", **FEW)
    with pytest.raises(FileNotFoundError, match="onnx:FILE takes"):
        score("onnx:nowhere.onnx", **FEW)


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A server whose embeddings are the pixels; /broken fails and /odd answers something else."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["images"]
            images = [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in asked]
            answer = {"embeddings": [(image.ravel() / 255).tolist() for image in images]}
            self.send_response(503 if self.path == "/broken" else 200)
            self.end_headers()
            self.wfile.write(json.dumps(answer if self.path == "/embed" else {"error": "busy"}).encode())

        def log_message(self, *_):
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_endpoint_scores_as_what_it_answers_and_its_refusal_is_told(endpoint):
    raw, remote = score(["pixels:", f"{endpoint}/embed"], **FEW)
    assert raw.value == remote.value
    assert remote.encoder.name == f"{endpoint}/embed"
    with pytest.raises(BadData, match=r"/broken refused 1 images: 503 .*busy"):
        score(f"{endpoint}/broken", **FEW)
    with pytest.raises(BadData, match="/odd answered something else than"):
        score(f"{endpoint}/odd", **FEW)
    with pytest.raises(Unreachable, match=r"does not answer .* Is the service running"):
        score("http://127.0.0.1:9/embed", **FEW)


def test_a_function_of_a_module_is_an_encoder_on_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_encoders.py").write_text(
        "import torch\n\n\ndef flat():\n    return torch.nn.Flatten()\n\n\ntwo = 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--data", "digits", "--max-train", "60", "--max-test", "30"]
    monkeypatch.setattr(sys, "argv", ["eval.score", "--encoder", "my_encoders:flat", *words])
    main()
    assert "| Flatten | 192 |" in capsys.readouterr().out
    with pytest.raises(UnknownName, match="unknown function of my_encoders 'flad'; nearest: flat"):
        score("python:my_encoders:flad", **FEW)
    with pytest.raises(BadData, match="no_such_module cannot be imported"):
        score("python:no_such_module:f", **FEW)
    with pytest.raises(BadData, match=r"my_encoders: an encoder of your own is package.module:function"):
        score("python:my_encoders", **FEW)


def test_the_images_that_identify_an_encoder_are_always_the_same():
    assert probe_images(8).shape == (8, 8, 8, 3)
    assert (probe_images(8) == probe_images(8)).all()
    assert probe_images(8).std() > 20
