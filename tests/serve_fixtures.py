"""A tiny real encoder, exported once for all tests of `serve`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from serve_model import NAME, make_run

from serve.export import export
from zoo.encoder import Encoder, load_encoder


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run folder with card.json, model.safetensors and model.onnx."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # spinning threads of torch and onnxruntime slow each other down on a small machine
    folder = make_run(tmp_path_factory.mktemp("runs") / NAME, seed=0)
    export(str(folder))
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def torch_encoder(exported: Path) -> Encoder:
    """The torch encoder of `exported`: what every answer must equal."""
    return load_encoder(exported)
