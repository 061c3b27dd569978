"""What a user, a disk or a network can do to `zoo`: each is told in one line, and nothing is lost or half-written."""

import io
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from huggingface_hub import get_session
from loopback_hub import REPO, Fault, LoopbackHub, Repo, surroundings
from PIL import Image
from safetensors.numpy import load_file, save_file
from test_zoo_files import disk_full_beyond
from test_zoo_hub import nobody, timm_repository

import zoo
from zoo.cli.embed import images_below
from zoo.cli.main import main
from zoo.errors import CorruptFile, NoWeights, UnknownName, Unreachable, ZooError
from zoo.hub.convert import convert
from zoo.hub.store import CARD, GOLDEN, ONNX, WEIGHTS, fetched_folder, read_card
from zoo.model.card import Card
from zoo.model.encoder import Encoder, build_backbone, save_encoder, write_head
from zoo.release.bundle import keep_inside
from zoo.release.key_formats import export
from zoo.release.publish import build_release, publish
from zoo.release.verify import verify, write_golden

pytest_plugins = ["hub_fixtures"]

ADDRESS = f"hf://{REPO}"
RESULT = {"key": "k", "encoder": "simco-r20-digits", "dataset": "digits", "protocol": "k-NN", "value": 0.9}
RESULT |= {"metric": "top-1 accuracy"}


def zoo_command(*words: object, **options: object) -> subprocess.Popen[str]:
    """Runs `zoo WORDS`. It hears Ctrl-C even where the tests run in the background, whose children ignore it."""
    command = [sys.executable, "-m", "zoo.cli", *map(str, words)]
    hear = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hear, **options)


@contextmanager
def silence() -> Iterator[tuple[socket.socket, str]]:
    """A server that accepts and never answers: its socket and its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server, f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def answers(body: bytes) -> Iterator[str]:
    """The address of a server that says the same to everybody, as a login page in a hotel does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_full_disk_behind_the_output_is_one_line():
    with Path("/dev/full").open("w") as full:
        process = zoo_command("list", "*digits", stdout=full)
        assert process.communicate()[1] == "error: [Errno 28] No space left on device\n"
    assert process.returncode == 1


def test_ctrl_c_is_one_line_and_its_exit_code(hub: LoopbackHub, tmp_path: Path):
    with silence() as (server, url):
        process = zoo_command("info", ADDRESS, env=surroundings(hub, tmp_path) | {"HF_ENDPOINT": url})
        with server.accept()[0] as connection:
            assert connection.recv(1 << 16)
            time.sleep(0.5)  # now it has asked, and waits for an answer
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[1] == "stopped\n"
    assert process.returncode == 130


def test_a_home_that_nobody_has_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ZOO_HOME", "~nobody-of-this-name/zoo")
    with pytest.raises(ZooError, match=r"^~nobody-of-this-name/zoo: whose home is that\? Set ZOO_HOME"):
        zoo.list()


def test_an_empty_name_is_not_the_run_in_the_current_folder(tiny_run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tiny_run)
    with pytest.raises(UnknownName, match=r"^'' is not a model name"):
        zoo.load("")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
def test_a_job_that_is_ended_takes_along_what_is_half_written(tiny_run: Path, tmp_path: Path, kind: signal.Signals):
    (tmp_path / "in").mkdir()
    Image.fromarray(np.zeros((2000, 2000, 3), np.uint8)).save(tmp_path / "in" / "0.png")
    for index in range(1, 2000):
        (tmp_path / "in" / f"{index}.png").symlink_to("0.png")
    (tmp_path / "out").mkdir()
    process = zoo_command("embed", tiny_run, tmp_path / "in", "-o", tmp_path / "out" / "x.parquet")
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [path.name.startswith(".x.parquet.") for path in (tmp_path / "out").iterdir()] == [True]
    process.send_signal(kind)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 128 + kind
    assert list((tmp_path / "out").iterdir()) == []


# --- embed ------------------------------------------------------------------------------------------------------------


def test_embeddings_into_a_folder_are_refused_before_anything_is_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.argv", ["zoo", "embed", "no-such-model", str(tmp_path), "-o", str(tmp_path)])
    with pytest.raises(SystemExit, match=f"{tmp_path} is a folder; -o names the Parquet file"):
        main()


def test_a_folder_that_may_not_be_searched_is_named():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("closed", "open"):
            (folder / part).mkdir()
            (folder / part / "a.png").touch()
        (folder / "closed").chmod(0)
        bad: list[str] = []
        with nobody():
            assert images_below(folder, bad) == [folder / "open" / "a.png"]
        assert bad == [f"[Errno 13] Permission denied: '{folder / 'closed'}'"]
        (folder / "closed").chmod(0o755)


# --- a Hub that is none -----------------------------------------------------------------------------------------------


def test_a_page_that_is_no_answer_of_a_hub_is_told_as_such(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch):
    for body in (b"<html>Log in</html>", b"{}", b"[]", b'{"id": "a/b"}', b'{"id":"a/b","sha":".."}'):
        with answers(body) as url:
            monkeypatch.setenv("HF_ENDPOINT", url)
            with pytest.raises(Unreachable, match=rf"{url} does not answer as a Hub \(.+\)\. Try again later; check"):
                zoo.load("hf://a/b")


@pytest.mark.parametrize(
    ("variable", "value"), [("HF_ENDPOINT", "http://localhost:abc"), ("HF_TOKEN", "hf_\u00e9"), ("HF_ENDPOINT", "x")]
)
def test_a_setting_that_no_request_can_be_made_with_is_told(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(Unreachable, match=f"check the network, .*{variable}"):
        zoo.load("hf://a/b")


def test_a_hub_that_never_answers_is_not_waited_for(hub: LoopbackHub, tiny_run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("zoo.hub.client.QUICK", 0.1)
    monkeypatch.setattr("zoo.hub.upload.PATIENT", 0.1)
    monkeypatch.setattr(get_session(), "timeout", None)  # the client's own; given back after this test
    with silence() as (_, url):
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(Unreachable, match=r"does not answer as a Hub \(.*timed out"):
            zoo.load("hf://a/b")
        with pytest.raises(Unreachable, match=r"does not answer as a Hub \(.*timed out"):
            publish(tiny_run, repo=REPO)


def test_a_repository_that_the_hub_cannot_have_is_refused_before_anything_is_done(hub: LoopbackHub, tiny_run: Path):
    for repo in ("a/b--c", "a/b..c", "a/b.git", "a/-b", "a/b-", "-a/b", "\u00e4/b", "a/" + 97 * "b"):
        with pytest.raises(UnknownName, match="is no address on the Hub"):
            zoo.load(f"hf://{repo}")
        with pytest.raises(UnknownName, match="is no repository; allowed: ORG/NAME"):
            build_release(tiny_run, repo)
    assert not (tiny_run / "hub").exists()
    assert hub.log == []


def test_a_publisher_who_comes_second_is_told_to_publish_again_and_can(hub: LoopbackHub, tiny_run: Path):
    for path, status in (("/commit/", 412), ("/tag/", 409)):
        hub.faults = [Fault("POST", path, 1, status=status)]
        with pytest.raises(ZooError, match=rf"somebody else changed {REPO} meanwhile \({status}\).* Publish again"):
            publish(tiny_run, repo=REPO)
    _, commit = publish(tiny_run, repo=REPO)
    assert hub.repos[REPO].tags == {"v1": commit.revision}


def test_a_disk_that_is_full_while_fetching_is_told_and_the_next_call_goes_on(hub: LoopbackHub, tiny_run: Path):
    publish(tiny_run, repo=REPO)
    with disk_full_beyond(65536), pytest.raises(ZooError, match=f"cannot keep {REPO} in .*: .*Make room"):
        zoo.load(ADDRESS)
    assert zoo.load(ADDRESS).card.name == "simco-r20-digits"


# --- what has been fetched --------------------------------------------------------------------------------------------


def test_a_fetched_folder_that_somebody_emptied_is_fetched_again(hub: LoopbackHub, tiny_run: Path):
    entry, _ = publish(tiny_run, repo=REPO)
    zoo.load(ADDRESS)
    folder = fetched_folder(REPO, entry.published.revision)
    (folder / CARD).unlink()
    for address in (ADDRESS, f"{ADDRESS}@{entry.published.revision}"):
        assert zoo.load(address).card == entry
        (folder / CARD).unlink()


def test_a_damaged_fetched_model_says_which_folder_to_delete(hub: LoopbackHub, tiny_run: Path):
    entry, _ = publish(tiny_run, repo=REPO)
    zoo.load(ADDRESS)
    folder = fetched_folder(REPO, entry.published.revision)
    (folder / WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(CorruptFile, match=rf"Delete {folder} and load again$"):
        zoo.load(ADDRESS)
    (folder / WEIGHTS).unlink()
    with pytest.raises(NoWeights, match=rf"Delete {folder} and load again$"):
        zoo.load(ADDRESS)


def test_a_damaged_note_of_a_tag_is_as_none(
    hub: LoopbackHub, tiny_run: Path, home: Path, monkeypatch: pytest.MonkeyPatch
):
    publish(tiny_run, repo=REPO)
    zoo.load(ADDRESS)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert zoo.load(ADDRESS).card.name == "simco-r20-digits"
    for noted in (b"", b"\xff", b"../../elsewhere"):
        refs = Path(huggingface_hub.constants.HF_HUB_CACHE, f"models--{REPO.replace('/', '--')}", "refs")
        (refs / "main").write_bytes(noted)
        with pytest.raises(Unreachable):
            zoo.load(ADDRESS)


def altered_config(files: dict[str, bytes], **entries: object) -> dict[str, bytes]:
    config = json.loads(files["config.json"])
    settings = entries.pop("pretrained_cfg", {})
    config = config | entries | {"pretrained_cfg": config["pretrained_cfg"] | settings}
    return files | {"config.json": json.dumps(config).encode()}


def test_what_cannot_be_used_is_refused_before_its_weights_are_fetched(hub: LoopbackHub, tmp_path: Path):
    _, files = timm_repository(tmp_path / "x")
    hub.repos["timm/x"] = Repo()
    for config, error, said in (
        (altered_config(files, pretrained_cfg={"interpolation": "bilinear"}), ZooError, "wants .*bilinear"),
        (altered_config(files, pretrained_cfg={"crop_pct": 0}), CorruptFile, "no such value allowed in crop"),
        (altered_config(files, pretrained_cfg={"input_size": [3, 0, 0]}), CorruptFile, "allowed in image_size"),
        (files | {"config.json": b'{"model_type": "vit"}'}, CorruptFile, "neither this zoo's nor timm's"),
        (files | {"config.json": b"[]"}, CorruptFile, "not an object"),
    ):
        hub.repos["timm/x"].commit(config)
        with pytest.raises(error, match=said):
            zoo.load("timm/x")
    assert hub.requests("/resolve/.*config.json")
    assert not hub.requests(f"/resolve/.*{WEIGHTS}")


def test_a_network_that_this_timm_cannot_build_is_told_so(hub: LoopbackHub, tmp_path: Path):
    _, files = timm_repository(tmp_path / "x")
    hub.repos["timm/x"] = Repo()
    for entries, said in (({"architecture": "resnet_of_tomorrow"}, "Unknown model"), ({"model_args": {"y": 1}}, "y")):
        hub.repos["timm/x"].commit(altered_config(files, **entries))
        with pytest.raises(ZooError, match=rf"^timm [\d.]+\S* cannot open timm/x \(.*{said}.*Upgrade timm"):
            zoo.load("timm/x")


def test_a_repository_of_timms_is_neither_put_inside_nor_published(hub: LoopbackHub, tmp_path: Path):
    hub.repos["timm/x"] = Repo()
    revision = hub.repos["timm/x"].commit(timm_repository(tmp_path / "x")[1])
    zoo.load("timm/x")
    for act in (keep_inside, lambda folder: build_release(folder, REPO)):
        with pytest.raises(ZooError, match="timm/x is no name of this zoo"):
            act(fetched_folder("timm/x", revision))


# --- full disks -------------------------------------------------------------------------------------------------------


def test_weights_that_find_no_room_are_told_and_leave_nothing(
    tiny_run: Path, tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
):
    """Whoever writes safetensors; their library has a class of its own for a full disk."""
    monkeypatch.setattr("zoo.hub.store.BUNDLED", tmp_path / "weights")
    build_release(tiny_run, REPO)
    before = {path.name for path in tiny_run.rglob("*")}
    card = read_card(tiny_run)
    for write, limit in (
        (lambda: save_encoder(encoder, tiny_run, card), 65536),
        (lambda: write_head({"projector.weight": torch.zeros(100, 300)}, tiny_run, card), 65536),
        (lambda: build_release(tiny_run, REPO), 65536),
        (lambda: keep_inside(tiny_run), 65536),
        (lambda: write_golden(encoder, tiny_run / GOLDEN), 1024),
    ):
        with disk_full_beyond(limit), pytest.raises(ZooError, match=r"^cannot write .*File too large.*untouched$"):
            write()
    assert {path.name for path in tiny_run.rglob("*")} == before
    assert list((tmp_path / "weights").iterdir()) == []
    assert verify(tiny_run) == {"torch": 0.0}


def test_an_export_that_finds_no_room_leaves_nothing(tmp_path: Path):
    encoder = Encoder(build_backbone("r18", image_size=224), mean=[0] * 3, std=[1] * 3, image_size=224)
    with disk_full_beyond(65536):
        for to in ("torchvision", "detectron2"):
            with pytest.raises(ZooError, match=r"cannot write .*File too large"):
                export(encoder, tmp_path / "x", to=to)
    assert list(tmp_path.iterdir()) == []


# --- damaged files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "results",
    [
        [RESULT | {"value": "high"}],
        [RESULT | {"value": None}],
        [RESULT | {"value": True}],
        [RESULT | {"protocol": 3}],
        [{"key": "k", "metric": "top-1 accuracy", "encoder": "simco-r20-digits"}],
    ],
)
def test_a_result_that_no_table_can_show_is_a_corrupt_card(tiny_run: Path, results: list):
    text = (tiny_run / CARD).read_text()
    (tiny_run / CARD).write_text(json.dumps(json.loads(text) | {"results": [RESULT]}))
    assert len(zoo.info(tiny_run).accuracies) == 1
    (tiny_run / CARD).write_text(json.dumps(json.loads(text) | {"results": results}))
    with pytest.raises(CorruptFile, match="no such value allowed in results"):
        zoo.info(tiny_run)


@pytest.mark.parametrize("size", [8193, 10**30])
def test_an_image_size_that_would_take_all_memory_is_a_corrupt_card(tiny_run: Path, size: int):
    (tiny_run / CARD).write_text(json.dumps(json.loads((tiny_run / CARD).read_text()) | {"image_size": size}))
    with pytest.raises(CorruptFile, match="no such value allowed in image_size"):
        zoo.load(tiny_run)


@pytest.mark.parametrize("entries", [{"results": (RESULT,)}, {"training": {"images": "many"}}])
def test_a_run_whose_record_the_model_card_cannot_tell_is_not_published(tiny_run: Path, entries: dict):
    """The result lacks the command that made it; the training's images are no number."""
    (tiny_run / CARD).write_text(replace(read_card(tiny_run), **entries).to_json())
    with pytest.raises(CorruptFile, match=r"card\.json: its results or training record are not as they were written"):
        build_release(tiny_run, REPO)
    assert not (tiny_run / "hub").exists()


def test_golden_embeddings_of_another_shape_are_a_corrupt_file(tiny_run: Path, encoder: Encoder):
    write_golden(encoder, tiny_run / GOLDEN)
    golden = load_file(tiny_run / GOLDEN)
    pixels, embeddings = golden["pixels"], golden["embeddings"]
    for damaged in (
        {"pixels": pixels.astype(np.float32), "embeddings": embeddings},
        {"pixels": pixels[0], "embeddings": embeddings},
        {"pixels": pixels[:0], "embeddings": embeddings[:0]},
        {"pixels": pixels[:, :1, :1].copy(), "embeddings": embeddings},
        {"pixels": pixels[:3], "embeddings": embeddings},
        {"pixels": pixels, "embeddings": np.float32(1)},
    ):
        save_file({key: np.array(value) for key, value in damaged.items()}, tiny_run / GOLDEN)
        with pytest.raises(CorruptFile, match="no golden embeddings"):
            verify(tiny_run)
    save_file({"pixels": pixels, "embeddings": 0 * embeddings}, tiny_run / GOLDEN)
    with pytest.raises(CorruptFile, match="by torch is not what was published"):
        verify(tiny_run)


def test_an_onnx_file_of_something_else_is_a_corrupt_file(tiny_run: Path, encoder: Encoder):
    from onnx import TensorProto, helper

    write_golden(encoder, tiny_run / GOLDEN)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tiny_run / ONNX).write_bytes(model.SerializeToString())
    with pytest.raises(CorruptFile, match=r"model\.onnx: onnxruntime cannot use it \(.*Export or fetch it again"):
        verify(tiny_run)


def test_an_address_that_is_none_is_told_the_form(tiny_run: Path, encoder: Encoder):
    write_golden(encoder, tiny_run / GOLDEN)
    for url in ("", "localhost:3000", "http://localhost:abc", "http://[bad", "http://a b/"):
        with pytest.raises(Unreachable, match=r"does not answer as a server of .*Is it http://HOST:PORT\?"):
            verify(tiny_run, url=url)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_a_server_of_something_else_is_told(tiny_run: Path, encoder: Encoder):
    write_golden(encoder, tiny_run / GOLDEN)
    arrays = (np.float32(3), np.zeros(64, np.float32), np.array([["x"] * 64]))
    for body in (b"", b"<html>", *map(npy, arrays)):
        with answers(body) as url, pytest.raises(Unreachable, match="does not answer as a server of simco-r20-digits"):
            verify(tiny_run, url=url)


# --- convert ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def official(encoder: Encoder, tmp_path: Path) -> Path:
    """A checkpoint of MoCo's code."""
    state = {f"module.encoder_q.{key}": value for key, value in encoder.backbone.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "official.pth.tar")
    return tmp_path / "official.pth.tar"


def test_a_conversion_never_replaces_a_run(official: Path, tiny_run: Path, tmp_path: Path):
    before = {path: path.read_bytes() for path in tiny_run.iterdir()}
    with pytest.raises(ZooError, match=rf"^{tiny_run} is not empty, and no run is replaced\. Give another .* with -o"):
        convert(official, name="mocov2-r20-digits", out=tiny_run)
    assert {path: path.read_bytes() for path in tiny_run.iterdir()} == before
    (tmp_path / "new").mkdir()
    assert zoo.load(convert(official, name="mocov2-r20-digits", out=tmp_path / "new")).card.name == "mocov2-r20-digits"


def test_a_conversion_takes_the_runs_folder_of_its_name_only_if_it_is_free(
    official: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoder: Encoder, card: Card
):
    monkeypatch.chdir(tmp_path)
    save_encoder(encoder, Path("runs/mocov2-r20-digits"), replace(card, name="mocov2-r20-digits"))
    with pytest.raises(ZooError, match=r"^runs/mocov2-r20-digits is not empty"):
        convert(official, name="mocov2-r20-digits")


def test_two_tensors_of_one_name_are_not_told_apart_by_guessing(official: Path, tmp_path: Path):
    state = torch.load(official)["state_dict"]
    state["encoder_q.conv1.weight"] = 2 * state["module.encoder_q.conv1.weight"]
    torch.save({"state_dict": state}, official)
    with pytest.raises(CorruptFile, match=r"two tensors are called encoder_q\.conv1\.weight"):
        convert(official, name="mocov2-r20-digits", out=tmp_path / "new")


def test_an_empty_file_is_no_checkpoint(tmp_path: Path):
    (tmp_path / "empty.pth").touch()
    with pytest.raises(CorruptFile, match=r"not a checkpoint that can be read safely \(\w+"):
        convert(tmp_path / "empty.pth", name="mocov2-r20-digits", out=tmp_path / "new")
