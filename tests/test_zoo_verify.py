import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from serve_http import running_server

from zoo.cli.main import main
from zoo.errors import CorruptFile, NoWeights, Unreachable
from zoo.hub.load import load_encoder
from zoo.hub.store import GOLDEN, read_card
from zoo.model.encoder import Encoder, save_encoder
from zoo.release.verify import verify, write_golden


@pytest.fixture
def golden_run(tiny_run: Path) -> Path:
    write_golden(load_encoder(tiny_run), tiny_run / GOLDEN)
    return tiny_run


def test_an_untouched_model_gives_its_golden_embeddings(golden_run: Path):
    assert verify(golden_run) == {"torch": 0.0}


def test_other_weights_under_the_same_name_are_found(golden_run: Path, encoder: Encoder):
    with torch.no_grad():
        encoder.backbone.conv1.weight.mul_(1.01)
    golden = (golden_run / GOLDEN).read_bytes()
    save_encoder(encoder, golden_run, read_card(golden_run))
    assert not (golden_run / GOLDEN).exists()  # training on voids what was published of earlier weights
    (golden_run / GOLDEN).write_bytes(golden)
    with pytest.raises(CorruptFile, match="by torch is not what was published"):
        verify(golden_run)


def test_a_golden_file_that_was_edited_is_found(golden_run: Path):
    golden = load_file(golden_run / GOLDEN)
    golden["embeddings"][3, 7] += 0.01 * np.abs(golden["embeddings"]).max()
    save_file(golden, golden_run / GOLDEN)
    with pytest.raises(CorruptFile, match="differ by 1"):
        verify(golden_run)


def test_a_model_without_golden_embeddings_is_told_how_to_get_them(tiny_run: Path):
    with pytest.raises(NoWeights, match="zoo publish --dry-run"):
        verify(tiny_run)


def test_the_onnx_file_is_verified_and_a_stale_one_is_found(golden_run: Path, encoder: Encoder):
    from serve.export import export

    export(str(golden_run))
    gaps = verify(golden_run)
    assert gaps.keys() == {"torch", "onnx"}
    assert gaps["onnx"] < 1e-5
    with torch.no_grad():
        encoder.backbone.conv1.weight.mul_(1.01)
    save_encoder(encoder, golden_run, read_card(golden_run))
    write_golden(encoder, golden_run / GOLDEN)
    with pytest.raises(CorruptFile, match="by onnx is not what was published"):
        verify(golden_run)


@pytest.mark.slow
def test_zoo_verify_asks_torch_onnx_and_the_server_that_zoo_serve_starts(
    golden_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    from serve.export import export

    export(str(golden_run))
    monkeypatch.setenv("ZOO_API_KEY", "secret")
    with running_server(golden_run, tmp_path / "log", ZOO_API_KEY="secret") as (url, _):
        monkeypatch.setattr("sys.argv", ["zoo", "verify", str(golden_run), "--url", url])
        capsys.readouterr()
        main()
        said = capsys.readouterr().out.splitlines()
    assert [line.split(": equal but for")[0] for line in said] == ["torch", "onnx", url]


def test_a_running_endpoint_is_verified_and_one_of_another_model_is_found(
    golden_run: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
):
    """The wire format is the server's; the slow test above asks the real one."""
    monkeypatch.setenv("ZOO_API_KEY", "secret, another")
    with endpoint(encoder) as url:
        assert verify(golden_run, url=url)[url] < 1e-5
    with torch.no_grad():
        encoder.backbone.conv1.weight.mul_(1.01)
    with endpoint(encoder) as url, pytest.raises(CorruptFile, match=f"by {url} is not what was published"):
        verify(golden_run, url=url)
    with pytest.raises(Unreachable, match="does not answer as a server of simco-r20-digits"):
        verify(golden_run, url="http://127.0.0.1:9")


class endpoint:  # noqa: N801  (a context manager)
    """The encoder behind POST /v1/embed on loopback: an encoded image in, npy out."""

    def __init__(self, encoder: Encoder) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/embed?model=simco-r20-digits"
                assert self.headers["Content-Type"] == "image/png"
                assert self.headers["Authorization"] == "Bearer secret"
                image = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()
                np.save(self.wfile, encoder.embed([image]))

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
