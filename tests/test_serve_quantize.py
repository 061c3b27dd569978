"""serve/quantize.py: a quarter of the size, near the float model, measured, and refused when it loses too much."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from serve_model import NAME

import serve.quantize
from serve.export import main
from serve.quantize import Comparison, compare, quantize, write_int8
from serve.session import Session, open_model
from zoo.errors import ZooError
from zoo.images.opening import open_images

pytest_plugins = ["serve_fixtures"]


def test_a_convolutional_network_is_a_quarter_of_the_size_and_near_its_original(exported: Path, tmp_path: Path) -> None:
    source, out = exported / "model.onnx", tmp_path / "model.int8.onnx"
    compared = quantize(source, out, dataset="digits", force=True)
    assert out.stat().st_size < source.stat().st_size / 3
    assert compared.cosine > 0.99
    assert compared.knn_float > 0.7
    assert abs(compared.loss) < 5
    assert compared == compare(
        Session(source), Session(out), open_images("digits", "train"), open_images("digits", "test")
    )
    session = open_model(str(out))
    assert (session.name, session.dim) == (f"{NAME}-int8", 64)
    assert session.weights_sha256 == Session(source).weights_sha256
    operators = [node.op_type for node in onnx.load(out).graph.node]
    assert "ConvInteger" not in operators  # several times slower than float
    assert operators.count("QuantizeLinear") > 10


def test_one_that_loses_too_much_is_not_written_unless_forced(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve.quantize, "MAX_LOSS", -100.5)
    monkeypatch.setattr(serve.quantize, "CALIBRATION", 8)
    out = tmp_path / "model.int8.onnx"
    with pytest.raises(ZooError, match=r"nothing written: cosine .* --force"):
        quantize(exported / "model.onnx", out, dataset="digits")
    assert list(tmp_path.iterdir()) == []
    quantize(exported / "model.onnx", out, dataset="digits", force=True)
    assert out.is_file()


def test_a_model_compared_with_itself_loses_nothing(exported: Path) -> None:
    session = Session(exported / "model.onnx")
    train, test = open_images("digits", "train").sample(200), open_images("digits", "test").sample(50)
    compared = compare(session, session, train, test)
    assert compared.cosine == pytest.approx(1)
    assert (compared.agreement, compared.loss, compared.n_bank, compared.n_queries) == (1, 0, 200, 50)


def test_the_loss_is_in_points() -> None:
    compared = Comparison(cosine=1, agreement=1, knn_float=0.9, knn_int8=0.875, n_bank=1, n_queries=1)
    assert compared.loss == pytest.approx(2.5)
    assert "loss 2.50 points" in str(compared)


def test_a_network_of_matrix_products_is_quantized_dynamically(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(48, 32)).astype("f4"), rng.normal(size=(32, 5)).astype("f4")
    nodes = [
        helper.make_node("Cast", ["pixels"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("MatMul", ["flat", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["positive"]),
        helper.make_node("MatMul", ["positive", "second"], ["embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "two products",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", 4, 4, 3])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", 5])],
        [onnx.numpy_helper.from_array(first, "first"), onnx.numpy_helper.from_array(second, "second")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    facts = {"format": "contrastive-zoo/1", "name": "none-vitt4-digits", "weights_sha256": "0" * 64}
    numbers = {"dim": 5, "image_size": 4, "crop": 1.0}
    helper.set_model_props(model, facts | {key: json.dumps(value) for key, value in numbers.items()})
    onnx.save(model, tmp_path / "model.onnx")
    pixels = rng.integers(0, 256, (9, 4, 4, 3), np.uint8)
    write_int8(tmp_path / "model.onnx", tmp_path / "model.int8.onnx", pixels)
    session = Session(tmp_path / "model.int8.onnx")
    assert session.name == "none-vitt4-digits-int8"
    expected = np.maximum(pixels.reshape(9, 48).astype("f4") @ first, 0) @ second
    found = session.embed_pixels(pixels)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
    assert not np.array_equal(found, expected)
    operators = {node.op_type for node in onnx.load(tmp_path / "model.int8.onnx").graph.node}
    assert "MatMulInteger" in operators
    assert "QuantizeLinear" not in operators


def test_the_command_prints_what_int8_loses(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "model.onnx")
    monkeypatch.setattr("sys.argv", ["serve.export", str(exported), "--out", out, "--quantize", "--force"])
    main()
    said = capsys.readouterr().out
    assert "cosine 0.99" in said
    assert "1438 training and 359 test images" in said
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "model.int8.onnx"}
