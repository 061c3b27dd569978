"""serve/export.py: the ONNX file is torch's encoder, carries its own preprocessing, and appears whole or not at all."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from serve_model import NAME, card_of, gap, make_run, noise

from serve.export import check, export, main, parity_of
from zoo.encoder import Encoder, load_encoder, save_encoder
from zoo.errors import ZooError
from zoo.store import read_card

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


def test_a_wrong_name_is_one_clean_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["serve.export", "simco-r21-digits"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert re.fullmatch(r"error: unknown backbone 'r21'; nearest: r20.*\n", capsys.readouterr().err)
