"""serve/launch.py: `zoo serve` as a process of its own; what it refuses to start, and that SIGTERM loses no request."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from serve_http import PNG, TOLERANCE, free_port, running_server, start_server, text
from serve_model import NAME, encode, gap, noise, png

from serve.launch import check, environment, hold_address
from serve.limits import MAX_BODY
from zoo.errors import ZooError, how_to_install
from zoo.model.encoder import Encoder

pytest_plugins = ["serve_fixtures"]


def ask_with_bentoml(url: str, token: str, **fields: Any) -> Any:
    """What `bentoml.SyncHTTPClient(url).embed(**fields)` returns, from a program of its own."""
    program = (
        "import bentoml, json, sys\n"
        "with bentoml.SyncHTTPClient(sys.argv[1], token=sys.argv[2]) as client:\n"
        "    json.dump(client.embed(**json.load(sys.stdin)), sys.stdout)\n"
    )
    command = [sys.executable, "-c", program, url, token]
    done = subprocess.run(command, input=json.dumps(fields), stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def ask(url: str, path: str, body: bytes | None = None, **headers: str) -> Any:
    request = urllib.request.Request(url + path, body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read()


def test_zoo_serve_answers_with_a_key_counts_and_loses_nothing_on_sigterm(
    exported: Path, torch_encoder: Encoder, tmp_path: Path
) -> None:
    log, key = tmp_path / "log", {"authorization": "Bearer secret-key"}
    with running_server(exported, log, "--workers", "2", ZOO_API_KEY="secret-key") as (url, server):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(url, "/v1/embed", png(), **PNG)
        answer = json.loads(ask(url, "/v1/embed", png(), **PNG, **key))
        assert gap(answer["embeddings"], torch_encoder.embed([png()])) < TOLERANCE
        answer = ask_with_bentoml(url, "secret-key", images=[text(png()), text(png(1))], normalize=True)
        assert gap(answer["embeddings"], torch_encoder.embed([png(), png(1)], normalize=True)) < TOLERANCE
        refuse_a_body_that_is_only_announced(url, key)
        assert b'zoo_requests_total{route="/v1/embed",status="413"} 1.0' in ask(url, "/metrics", **key)
        under_way, lost = stop_under_load(url, server, key)
        assert under_way >= 4
        assert lost == 0
        assert server.wait(timeout=40) == 0, log.read_text()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=5)
    check_log(log.read_text())


def refuse_a_body_that_is_only_announced(url: str, key: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.putrequest("POST", "/v1/embed")
    for name, value in {**PNG, **key, "content-length": str(MAX_BODY + 1)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    reply = connection.getresponse()
    assert (reply.status, json.load(reply)["error"]["code"]) == (413, "too_large")
    connection.close()


def stop_under_load(url: str, server: "subprocess.Popen[bytes]", key: dict[str, str]) -> tuple[int, int]:
    """SIGTERM while 8 clients ask without a pause: how many requests were under way, and how many of them were lost.

    A client stops at its first failure: after SIGTERM new connections are refused. Under way is what began a quarter
    of a second before, long after the server had read it.
    """
    large = encode(Image.fromarray(noise(500, 500, 3)), "PNG", compress_level=1)
    body = json.dumps({"input": [text(large)] * 8}).encode()
    stopping = threading.Event()
    finished: list[tuple[float, float, bool]] = []  # start, end, answered
    headers = {"content-type": "application/json"} | key

    def client(_: int) -> None:
        answered = True
        while answered:
            start = time.monotonic()
            try:
                answered = len(json.loads(ask(url, "/v1/embeddings", body, **headers))["data"]) == 8
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 503 and not stopping.is_set():  # too much for a slow machine
                    time.sleep(0.05)
                    continue
                answered = False
            except (OSError, http.client.HTTPException):
                answered = False
            finished.append((start, time.monotonic(), answered))

    with ThreadPoolExecutor(8) as threads:
        for number in range(8):
            threads.submit(client, number)
        while len(finished) < 16:
            time.sleep(0.01)
        stopped = time.monotonic()
        stopping.set()
        server.send_signal(signal.SIGTERM)
    under_way = [answered for start, end, answered in finished if start < stopped - 0.25 and end > stopped]
    return len(under_way), under_way.count(False)


def check_log(text: str) -> None:
    """Every request is one JSON object with its id, and the key is nowhere."""
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    requests = [row for row in rows if row["event"] == "request"]
    assert len(requests) > 10
    for row in requests:
        assert {"time", "level", "request_id", "status", "route", "seconds"} <= row.keys()
    assert {row["status"] for row in requests} - {503} == {200, 401, 413}  # 503: sent while it was stopping
    assert "secret-key" not in text
    assert "Traceback" not in text


def test_a_server_without_its_model_says_so_once_and_ends(tmp_path: Path) -> None:
    command = ["zoo.cli", "serve", str(tmp_path / "runs"), "--port", str(free_port())]
    server = start_server(command, tmp_path / "log", BENTOML_HOME=str(tmp_path))
    try:
        assert server.wait(timeout=60) == 1
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    assert re.fullmatch(r"(.* ENV VAR: .*\n)?error: .*runs: .*\n", (tmp_path / "log").read_text())


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::"])
def test_other_addresses_need_a_key(host: str) -> None:
    for keys in ("", " ", ",", ", ,"):
        with pytest.raises(ZooError, match="ZOO_API_KEY"):
            check((NAME,), (), host=host, workers=1, keys=keys)
    check((NAME,), (), host=host, workers=1, keys="key")


def test_loopback_needs_no_key() -> None:
    for host in ("127.0.0.1", "::1", "127.0.0.9"):
        check((NAME,), (), host=host, workers=1, keys="")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"host": "localhost"}, "127.0.0.1"),
        ({"workers": 0}, "at least 1"),
        ({"models": ()}, "zoo list"),
        ({"models": ("a,b",)}, "'a,b': names are separated by spaces"),
        ({"index": ("a,b.index.npz",)}, "a path has no comma"),
    ],
)
def test_a_wrong_command_says_what_is_right(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ZooError, match=says):
        check(**{"models": (NAME,), "index": (), "host": "127.0.0.1", "workers": 1, "keys": ""} | changes)


def test_an_address_that_cannot_be_had_is_told_before_anything_starts() -> None:
    for port in (0, -1, 65_536, 99_999):
        with pytest.raises(ZooError, match=f"--port {port}; .* 1 to 65535"):
            hold_address("127.0.0.1", port)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ZooError, match=rf"127\.0\.0\.1, port {port}: .*in use.* another --port "):
            hold_address("127.0.0.1", port)
    hold_address("127.0.0.1", port).close()  # free again
    with pytest.raises(ZooError, match=r"cannot listen on 192\.0\.2\.1"):
        hold_address("192.0.2.1", port)


def test_workers_compute_in_one_thread_and_report_to_nobody() -> None:
    settings = environment(("a", "b", "c=./d"), (), host="127.0.0.1", port=3000, workers=3)
    assert settings["ZOO_MODEL"] == f"a,b,c={Path('d').absolute()}"
    assert settings["BENTOML_CONFIG_OPTIONS"] == "services.Embeddings.workers=3"
    assert (settings["OMP_NUM_THREADS"], settings["BENTOML_DO_NOT_TRACK"]) == ("1", "True")


def test_servers_side_by_side_count_in_folders_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path))
    addresses = ("127.0.0.1", 3000), ("127.0.0.1", 3001), ("::1", 3000)
    homes = [environment(("a",), (), host=host, port=port, workers=1)["BENTOML_HOME"] for host, port in addresses]
    assert homes == [str(tmp_path / name) for name in ("127.0.0.1-3000", "127.0.0.1-3001", "..1-3000")]


@pytest.mark.parametrize(
    ("file", "package", "extra"),
    [("index", "onnxruntime", "index"), ("bulk", "pyarrow", "bulk"), ("launch", "bentoml", "serve")],
)
def test_a_command_without_its_extra_says_in_one_line_what_to_install(file: str, package: str, extra: str) -> None:
    hide = f"import runpy, sys; sys.modules[{package!r}] = None; runpy.run_module('serve.{file}', run_name='__main__')"
    command = [sys.executable, "-c", hide, *(["a"] if file == "launch" else ["--help"])]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"error: {package} is not installed. {how_to_install(extra)}\n"


def test_while_it_stops_probes_are_answered_new_requests_refused_and_the_one_in_flight_answered(
    exported: Path, tmp_path: Path
) -> None:
    slow = encode(Image.new("RGB", (4000, 4000)), "WEBP", lossless=True)
    body = json.dumps({"input": [text(slow)] * 8}).encode()
    with running_server(exported, tmp_path / "log") as (url, server), ThreadPoolExecutor(1) as thread:
        ask(url, "/v1/embed", png(), **PNG)
        in_flight = thread.submit(ask, url, "/v1/embeddings", body, **{"content-type": "application/json"})
        time.sleep(0.4)
        server.send_signal(signal.SIGTERM)
        time.sleep(0.4)
        assert not in_flight.done()
        assert ask(url, "/livez") == b"\n"
        for path, content in (("/readyz", None), ("/v1/embed", png())):
            with pytest.raises(urllib.error.HTTPError, match="503") as caught:
                ask(url, path, content, **PNG)
            assert caught.value.headers["connection"] == "close"
            caught.value.close()
        assert len(json.loads(in_flight.result(timeout=30))["data"]) == 8
        assert server.wait(timeout=40) == 0
