"""`zoo serve` as a process of its own, among clients that never finish and workers that die."""

import os
import resource
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from serve_http import TOLERANCE, running_server
from serve_model import gap, png

from serve.client import Client
from zoo.model.encoder import Encoder

pytest_plugins = ["serve_fixtures"]
CROWD = 300  # clients, more than the 256 files a process may open before `zoo serve` asks for more


@pytest.fixture
def few_files() -> Any:
    """Processes started meanwhile may open 256 files, unless they ask for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_clients_that_never_end_their_headers_delay_nobody(
    exported: Path, torch_encoder: Encoder, tmp_path: Path, few_files: Any
) -> None:
    with running_server(exported, tmp_path / "log") as (url, _), ExitStack() as crowd, Client(url) as client:
        few_files()  # here again as many as before
        for _ in range(CROWD):
            connection = crowd.enter_context(socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 10))
            connection.sendall(b"POST /v1/embed HTTP/1.1\r\nHost: zoo\r\nX-Slow: ")
        start = time.monotonic()
        assert gap(client.embed([png()]), torch_encoder.embed([png()])) < TOLERANCE
        assert time.monotonic() - start < 5


def test_a_worker_whose_main_process_was_killed_ends_and_leaves_the_port_to_the_next(
    exported: Path, tmp_path: Path
) -> None:
    with running_server(exported, tmp_path / "log") as (url, server):
        (worker,) = map(psutil.Process, workers(server.pid))
        server.kill()
        worker.wait(timeout=30)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 10)


@pytest.mark.slow  # BentoML looks for dead workers every few seconds
def test_when_a_worker_is_killed_the_others_answer_and_it_is_replaced(
    exported: Path, torch_encoder: Encoder, tmp_path: Path
) -> None:
    expected = torch_encoder.embed([png()])
    with running_server(exported, tmp_path / "log", "--workers", "2") as (url, server), Client(url) as client:
        victim, other = workers(server.pid)
        os.kill(victim, signal.SIGKILL)
        for _ in range(50):
            assert gap(client.embed([png()]), expected) < TOLERANCE
        deadline = time.monotonic() + 60
        while len(now := workers(server.pid)) < 2 or victim in now:
            assert time.monotonic() < deadline, "no new worker within a minute"
            time.sleep(0.2)
        assert other in now


def workers(server: int) -> list[int]:
    """Process ids of the living workers of a server."""
    children = psutil.Process(server).children(recursive=True)
    return sorted(each.pid for each in children if each.status() != psutil.STATUS_ZOMBIE)
