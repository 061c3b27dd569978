"""A tiny real encoder, exported once for all tests of `serve`."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from serve_model import NAME, OTHER, make_run
from starlette.testclient import TestClient

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


@pytest.fixture(scope="session")
def other_exported(exported: Path) -> Path:
    """A second model: other weights, another name."""
    folder = make_run(exported.with_name(OTHER), seed=1, name=OTHER)
    export(str(folder))
    return folder


@pytest.fixture(scope="session")
def other_encoder(other_exported: Path) -> Encoder:
    return load_encoder(other_exported)


@pytest.fixture(scope="session")
def client(exported: Path, other_exported: Path) -> Iterator[TestClient]:
    """The whole BentoML service in this process, with two models."""
    os.environ["ZOO_MODEL"] = f"{exported},{other_exported}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pathspec's, from BentoML's imports
        from serve.service import Embeddings

        app = Embeddings.to_asgi()  # type: ignore[attr-defined]
    with TestClient(app=app) as client:
        yield client
    del os.environ["ZOO_MODEL"]
