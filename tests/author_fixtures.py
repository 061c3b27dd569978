"""A publisher of a checkpoint of MoCo's code on this machine, in the table of the authors' files."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_files import mlp, moco, written
from loopback_files import PATH, PIECE, FileServer, file_server, state_hash

from zoo.model.encoder import Encoder


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        yield running


@pytest.fixture
def content(encoder: Encoder, tmp_path: Path) -> bytes:
    """A checkpoint of MoCo's code with the weights of `encoder`."""
    state = moco(mlp(0, 2), encoder.backbone.state_dict())
    return written(state, tmp_path / "official.pth.tar").read_bytes()


@pytest.fixture
def published(server: FileServer, content: bytes, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """A publisher who states a hash; pauses between retries are short."""
    server.files[PATH] = content
    state_hash(server, monkeypatch, f"md5:{hashlib.md5(content).hexdigest()[:8]}")
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", PIECE)  # 10 MB, more than the file
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return server
