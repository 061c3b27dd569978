"""serve/export.py: the ONNX file is torch's encoder, carries its own preprocessing, and appears whole or not at all."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from serve_model import NAME, card_of, gap, make_run, noise

from serve.export import _pictures, check, export, main, parity_of
from serve.onnx_file import metadata
from serve.session import Session
from zoo.errors import ZooError
from zoo.hub.load import load_encoder
from zoo.hub.store import read_card
from zoo.images.opening import open_images
from zoo.model.card import Published
from zoo.model.embedding import unit_rows
from zoo.model.encoder import Encoder, new_encoder, save_encoder

pytest_plugins = ["serve_fixtures"]


def test_the_graph_takes_uint8_pixels_of_any_batch_and_equals_torch(exported: Path, torch_encoder: Encoder) -> None:
    runtime = onnxruntime.InferenceSession(exported / "model.onnx")
    (node,) = runtime.get_inputs()
    assert (node.name, node.type, node.shape) == ("pixels", "tensor(uint8)", ["batch", 8, 8, 3])
    (node,) = runtime.get_outputs()
    assert (node.name, node.type, node.shape) == ("embedding", "tensor(float)", ["batch", 64])
    for batch in (1, 3, 16, 33):
        pixels = np.stack([noise(8, 8, 3, seed=seed) for seed in range(batch)])
        (features,) = runtime.run(None, {"pixels": pixels})
        assert gap(features, torch_encoder.embed(list(pixels))) < 1e-5


def test_normalisation_is_inside_the_graph(exported: Path, torch_encoder: Encoder) -> None:
    pixels = noise(8, 8, 3)[None]
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    with torch.inference_mode():
        by_hand = torch_encoder.backbone((x - 0.3055) / 0.3754).numpy()
    (features,) = onnxruntime.InferenceSession(exported / "model.onnx").run(None, {"pixels": pixels})
    assert gap(features, by_hand) < 1e-5


def test_the_metadata_say_what_the_file_is_and_nothing_of_this_machine(exported: Path) -> None:
    path = exported / "model.onnx"
    model = onnx.load(path)
    facts = {entry.key: entry.value for entry in model.metadata_props}
    weights = read_card(exported).weights
    assert weights is not None
    assert facts["format"] == "contrastive-zoo/1"
    assert facts["name"] == NAME
    assert facts["weights_sha256"] == weights.sha256
    assert facts["interpolation"] == "bicubic"
    assert [json.loads(facts[key]) for key in ("dim", "image_size", "crop")] == [64, 8, 1.0]
    assert json.loads(facts["mean"]) == pytest.approx([0.3055] * 3)
    assert json.loads(facts["std"]) == pytest.approx([0.3754] * 3)
    assert set(json.loads(facts["exporter"])) == {"torch", "onnx", "onnxscript"}
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20)]
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)
    content = path.read_bytes()
    for secret in (str(Path(__file__).parents[1]), "site-packages", ".py", "stack_trace"):
        assert secret.encode() not in content


def test_a_published_model_carries_its_revision(torch_encoder: Encoder) -> None:
    assert torch_encoder.card is not None
    assert "revision" not in metadata(torch_encoder.card)
    card = replace(torch_encoder.card, published=Published(repo="someone/model", revision="a" * 40, files=()))
    assert metadata(card)["revision"] == "a" * 40


@pytest.mark.slow
def test_a_vision_transformer_equals_torch_and_loses_nothing_in_int8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "mocov3-vitt4-digits", seed=0, name="mocov3-vitt4-digits")
    export(str(folder), quantize=True)  # refused if it lost more than a point
    encoder, pixels = load_encoder(folder), np.stack([noise(8, 8, 3, seed=seed) for seed in range(9)])
    expected = encoder.embed(list(pixels))
    assert gap(Session(folder / "model.onnx").embed_pixels(pixels), expected) < 1e-5
    int8 = Session(folder / "model.int8.onnx").embed_pixels(pixels)
    assert 1e-5 < gap(int8, expected) < 0.2
    cosines = (unit_rows(int8) * unit_rows(expected)).sum(1)
    assert cosines.min() > 0.99
    operators = {node.op_type for node in onnx.load(folder / "model.int8.onnx").graph.node}
    assert "MatMulInteger" in operators
    assert re.search(r"cosine 0\.99\d+, same nearest image [89]\d\.\d %.*loss -?0\.\d+ points", capsys.readouterr().out)


@pytest.mark.realdata
def test_with_data_at_hand_its_images_are_compared(realdata: Path) -> None:
    encoder = new_encoder("mocov2-r20-signdigits")
    encoder.card = card_of(encoder, "mocov2-r20-signdigits")
    pictures = _pictures(encoder, 3, realdata / "signdigits")
    test = open_images("signdigits", "test", data=realdata / "signdigits").pixels()
    assert pictures.shape == (3, 64, 64, 3)
    assert all((test == picture).all(axis=(1, 2, 3)).any() for picture in pictures)


def test_one_file_is_written_and_nothing_beside_it(exported: Path) -> None:
    assert {path.name for path in exported.iterdir()} == {"card.json", "model.safetensors", "model.onnx"}


def test_an_export_is_the_same_again_byte_for_byte(exported: Path, tmp_path: Path) -> None:
    again = export(str(exported), out=tmp_path / "again.onnx")
    assert again.read_bytes() == (exported / "model.onnx").read_bytes()


def test_other_weights_do_not_pass_the_parity_gate(exported: Path, tmp_path: Path) -> None:
    other = load_encoder(make_run(tmp_path / NAME, seed=1))
    with pytest.raises(ZooError, match=r"nothing written: in a batch of 1 the ONNX graph and torch differ by"):
        check(exported / "model.onnx", other)


def test_a_failed_export_leaves_the_earlier_file_and_nothing_else(exported: Path, tmp_path: Path) -> None:
    broken = load_encoder(exported)
    with torch.no_grad():
        broken.backbone.conv1.weight[0] = 3e38  # type: ignore[union-attr, index]
    save_encoder(broken, tmp_path, card_of(broken))
    (tmp_path / "model.onnx").write_bytes(b"earlier")
    with pytest.raises(ZooError, match="differ by nan"):
        export(str(tmp_path))
    assert (tmp_path / "model.onnx").read_bytes() == b"earlier"
    assert {path.name for path in tmp_path.iterdir()} == {"card.json", "model.safetensors", "model.onnx"}


def test_parity_is_relative_to_the_largest_value_and_the_angle_is_one_minus_the_cosine() -> None:
    gap, angle = parity_of(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[4.0, 3.0], [0.0, 0.0]]))
    assert gap == pytest.approx(1 / 4)
    assert angle == pytest.approx(1 - 24 / 25)
    with pytest.raises(ZooError, match=r"ONNX gives \(1, 2\), torch \(1, 3\)"):
        parity_of(np.ones((1, 2)), np.ones((1, 3)))


def test_a_wrong_name_is_one_clean_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["serve.export", "simco-r21-digits"])
    with pytest.raises(SystemExit, match=r"^error: unknown backbone 'r21'; nearest: r20.*$"):
        main()
