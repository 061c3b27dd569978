"""A tiny real encoder, exported once for all tests of `serve`."""

import os
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
import uvicorn
from serve_http import free_port
from serve_model import NAME, OTHER, make_run, png
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.testclient import TestClient

from serve.app import make_app
from serve.engine import Engine
from serve.export import export
from serve.guard import Guard
from serve.index import build
from serve.search import Indexes
from serve.session import Session
from zoo.hub.load import load_encoder
from zoo.model.encoder import Encoder


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
    with TestClient(app=app, base_url="http://127.0.0.1", client=("127.0.0.1", 50_000)) as client:
        yield client
    del os.environ["ZOO_MODEL"]


@pytest.fixture(scope="session")
def indexed(exported: Path) -> tuple[Path, Path]:
    """A folder of five images in two folders, and the index of it."""
    folder = exported.parent / "pictures"
    for seed in range(5):
        path = folder / ("ab"[seed % 2]) / f"{seed} 🙂.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(seed))
    return folder, build(str(exported), folder, output=exported.parent / "pictures.index.npz")


@pytest.fixture(scope="session")
def live(exported: Path, other_exported: Path, indexed: tuple[Path, Path]) -> Iterator[str]:
    """The URL of a server on loopback with two models and an index: all but BentoML's own endpoint."""
    engine, indexes = Engine(), Indexes()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sessions = [Session(folder / "model.onnx") for folder in (exported, other_exported)]
        indexes.start([indexed[1]], {session.name: session.weights_sha256 for session in sessions})
        await engine.start(sessions)
        yield
        await engine.stop()

    app = Starlette(routes=[Mount("/", make_app(engine, indexes))], lifespan=lifespan, middleware=[Middleware(Guard)])
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server died"
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()
