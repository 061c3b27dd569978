"""The authors' weights by name: fetched from a publisher's server, checked, converted and kept, or refused whole."""

import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from checkpoint_files import mlp, moco, written
from loopback_files import NAME, PATH, PIECE, FileServer, Trouble, state_hash
from test_zoo_files import disk_full_beyond

import zoo
from serve.launch import without_onnx
from zoo.errors import CorruptFile, NoWeights, UnknownName, Unreachable, ZooError
from zoo.hub.author_files import AUTHOR_FILES, AuthorFile
from zoo.hub.resolve import locate
from zoo.hub.store import CARD, keep, read_card
from zoo.model.encoder import Encoder

pytest_plugins = ["author_fixtures"]


def left(home: Path) -> list[str]:
    """Every file in the home but locks."""
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() and path.name != ".lock")


# --- the whole way ----------------------------------------------------------------------------------------------------


def test_a_name_fetches_the_authors_weights_once_and_keeps_them_with_their_facts(
    published: FileServer, encoder: Encoder, home: Path, content: bytes, capsys: pytest.CaptureFixture
):
    found = zoo.load(NAME)
    expected = encoder.backbone.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in found.backbone.state_dict().items())
    card = found.card
    assert (card.licence, card.expects[:26]) == ("CC-BY-NC-4.0", "67.7 % top-1 on ImageNet b")
    assert card.training["url"] == published.url + PATH
    assert card.training["sha256"] == hashlib.sha256(content).hexdigest()
    n_keys = len(expected) + len(mlp(0, 2))
    assert card.training["left_behind"] == f"encoder_k ({n_keys} tensors), queue (1 tensor), queue_ptr (1 tensor)"
    assert card.training["source"].startswith("facebookresearch/moco")
    assert left(home) == [f"models/{NAME}/{file}" for file in (CARD, "head.safetensors", "model.safetensors")]
    said = capsys.readouterr().err
    assert f"{NAME}: fetching the weights of somebody/moco from {published.url}{PATH}" in said
    assert f"{NAME}: licence CC-BY-NC-4.0: no commercial use." in said
    assert f"checked against the publisher's md5 {hashlib.md5(content).hexdigest()[:8]}...; kept in {home}" in said
    published.log.clear()
    assert zoo.load(NAME).card == card
    assert published.log == []
    assert capsys.readouterr().err == ""


def test_before_it_is_fetched_the_card_states_licence_and_published_result_and_nobody_is_asked(published: FileServer):
    card = zoo.info(NAME)
    assert (card.licence, card.weights, card.training["url"]) == ("CC-BY-NC-4.0", None, published.url + PATH)
    assert card.expects.endswith("as stated by the publisher (somebody/moco README.md)")
    assert without_onnx((NAME,)) == [NAME]  # `zoo serve` fetches and exports it
    assert published.log == []


def test_a_version_is_the_authors_file_and_never_another_training_under_its_name(
    published: FileServer, tiny_run: Path, home: Path
):
    assert zoo.load(f"{NAME}@v1").card.licence == "CC-BY-NC-4.0"
    card = json.loads((tiny_run / CARD).read_text())
    (tiny_run / CARD).write_text(json.dumps(card | {"name": NAME}))
    keep(tiny_run, force=True)
    assert zoo.load(NAME).card.licence == ""
    with pytest.raises(NoWeights, match=r"is another training than the authors'.*Move it away to fetch"):
        zoo.load(f"{NAME}@v1")
    with pytest.raises(UnknownName, match="unknown version 'v2'"):
        zoo.load(f"{NAME}@v2")


# --- checks -----------------------------------------------------------------------------------------------------------


def test_without_a_stated_hash_the_first_fetch_is_pinned_and_said_so(
    published: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path, content: bytes, capsys: pytest.CaptureFixture
):
    state_hash(published, monkeypatch, "")
    zoo.load(NAME)
    digest = hashlib.sha256(content).hexdigest()
    assert f"its publisher states no hash: sha256 {digest[:12]}... is pinned from now on" in capsys.readouterr().err
    pin = home / "pins" / f"{NAME}.json"
    assert json.loads(pin.read_text())["sha256"] == digest
    folder = locate(NAME)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    zoo.load(NAME)  # the same file once more


def test_a_file_that_changed_since_it_was_pinned_is_refused(
    published: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path, encoder: Encoder, tmp_path: Path
):
    state_hash(published, monkeypatch, "")
    zoo.load(NAME)
    (home / "models" / NAME).rename(tmp_path / "away")
    other = moco(mlp(0, 2), encoder.backbone.state_dict())
    published.files[PATH] = written(other, tmp_path / "other.pth").read_bytes()
    with pytest.raises(CorruptFile, match=r"has other content than at its first fetch on .*delete .*pins.* to accept"):
        zoo.load(NAME)
    assert left(home) == [f"pins/{NAME}.json"]
    (home / "pins" / f"{NAME}.json").unlink()
    zoo.load(NAME)


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_with_another_hash_is_fetched_once_more_and_then_refused(
    published: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path, kind: str, content: bytes
):
    state_hash(published, monkeypatch, f"{kind}:00000000")
    found = hashlib.new(kind, content).hexdigest()[:8]
    with pytest.raises(CorruptFile, match=rf"came twice with other content .*{kind} {found}\.\.\. instead of 00000000"):
        zoo.load(NAME)
    assert len(published.requests("^GET")) == 2
    assert left(home) == []


def test_a_bit_that_flips_on_the_way_is_found_and_the_file_fetched_again(published: FileServer):
    published.troubles = [Trouble("corrupt", 1)]
    zoo.load(NAME)
    assert len(published.requests("^GET")) == 2


def test_a_whole_file_that_is_no_checkpoint_of_the_layout_leaves_nothing(
    published: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path, encoder: Encoder, tmp_path: Path
):
    for state, said in (
        ({"trunk.weight": torch.rand(1)}, "are not those of --source moco"),
        (moco(mlp(0, 2), {"conv1.weight": torch.rand(16, 3, 3, 3)}), f"is no {NAME}: missing"),
        (moco({"weight": torch.rand(4, 4)}, encoder.backbone.state_dict()), "does not hold the projector of mocov2"),
    ):
        content = written(state, tmp_path / "x.pth").read_bytes()
        published.files[PATH] = content
        state_hash(published, monkeypatch, f"sha256:{hashlib.sha256(content).hexdigest()[:8]}")
        with pytest.raises(ZooError, match=said):
            zoo.load(NAME)
        assert left(home) == []


def test_a_truncated_file_without_a_stated_hash_leaves_nothing(
    published: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path, content: bytes
):
    """As when the publisher's own copy is broken: its size is what the server says."""
    published.files[PATH] = content[:-1000]
    state_hash(published, monkeypatch, "")
    with pytest.raises(CorruptFile, match=f"{published.url}{PATH}: not a checkpoint that can be read safely"):
        zoo.load(NAME)
    assert left(home) == []


# --- a bad day on the web ---------------------------------------------------------------------------------------------


def test_a_connection_that_breaks_is_taken_up_where_it_broke(published: FileServer, content: bytes):
    published.troubles = [Trouble("break", 2)]
    zoo.load(NAME)
    starts = [int(re.search(r"bytes=(\d+)-", line)[1]) for line in published.requests("^GET .*bytes=")]
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1] < len(content)
    assert all(start % PIECE == 0 for start in starts)


def test_a_file_that_is_gone_is_told_as_such(published: FileServer, home: Path):
    published.files.clear()
    with pytest.raises(NoWeights, match=r"moco_v2.pth.tar is not there any more \(404\)"):
        zoo.load(NAME)
    assert left(home) == []


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "binary/octet-stream"])
def test_a_web_page_in_the_place_of_the_file_is_told_as_such(
    published: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path, kind: str
):
    published.files[PATH] = b"<!DOCTYPE html><title>Log in to the hotel's network</title>"
    published.types[PATH] = kind
    state_hash(published, monkeypatch, "")
    with pytest.raises(CorruptFile, match=r"moco_v2\.pth\.tar.* a web page, not a checkpoint"):
        zoo.load(NAME)
    assert left(home) == []


def test_a_redirect_to_another_host_is_followed_only_where_a_hash_proves_the_content(
    published: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path, content: bytes
):
    published.moved["/old"] = f"http://localhost:{published.server_port}{PATH}"
    state_hash(published, monkeypatch, "", "/old")
    with pytest.raises(ZooError, match=r"redirects to http://localhost:\d+, and its publisher states no hash"):
        zoo.load(NAME)
    assert published.requests("^GET") == []
    assert left(home) == []
    state_hash(published, monkeypatch, f"md5:{hashlib.md5(content).hexdigest()[:8]}", "/old")
    zoo.load(NAME)


def test_a_redirect_on_the_same_host_is_followed(published: FileServer, monkeypatch: pytest.MonkeyPatch):
    published.moved["/old"] = PATH
    state_hash(published, monkeypatch, "", "/old")
    zoo.load(NAME)


def test_a_server_that_is_down_or_busy_is_told_within_seconds(
    published: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path
):
    published.troubles = [Trouble("status", 99)]
    with pytest.raises(Unreachable, match="503"):
        zoo.load(NAME)
    monkeypatch.setitem(AUTHOR_FILES, NAME, AuthorFile("http://127.0.0.1:9/x", 1.0, "X", "moco", "x/y", ""))
    with pytest.raises(Unreachable, match=r"http://127.0.0.1:9/x cannot be fetched"):
        zoo.load(NAME)
    assert left(home) == []


def test_offline_nobody_is_asked_and_the_way_by_hand_is_told(published: FileServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 sets at the start
    with pytest.raises(NoWeights, match=rf"fetch {published.url}{PATH} elsewhere and `zoo convert FILE --as {NAME}`"):
        zoo.load(NAME)
    assert published.log == []


def test_a_disk_that_fills_up_on_the_way_keeps_nothing(published: FileServer, home: Path):
    with disk_full_beyond(65536), pytest.raises(ZooError, match=f"no room for {NAME} in .*Nothing of it is kept"):
        zoo.load(NAME)
    assert left(home) == []
    zoo.load(NAME)


def test_a_disk_without_room_for_the_file_is_not_filled(
    published: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path, content: bytes
):
    usage = type("Usage", (), {"free": len(content) - 1})
    monkeypatch.setattr("zoo.hub.download.shutil.disk_usage", lambda _: usage)
    with pytest.raises(ZooError, match=rf"no room for {NAME}: .* MB more are needed"):
        zoo.load(NAME)
    assert published.requests("^GET") == []


# --- several at once, and a kill --------------------------------------------------------------------------------------

FETCH = f"""if True:
    import sys
    import huggingface_hub.constants
    huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = {PIECE}
    from zoo.hub.author_files import AUTHOR_FILES, AuthorFile
    from zoo.hub.store import read_card
    from zoo.hub.resolve import locate
    AUTHOR_FILES["{NAME}"] = AuthorFile(sys.argv[1], 1.0, "MIT", "moco", "x/y README.md", sys.argv[2])
    print(read_card(locate("{NAME}")).weights.sha256)
"""


def process(published: FileServer) -> subprocess.Popen[str]:
    row = AUTHOR_FILES[NAME]
    return subprocess.Popen([sys.executable, "-c", FETCH, row.url, row.digest], stdout=subprocess.PIPE, text=True)


def test_two_processes_at_once_fetch_the_file_once(published: FileServer, home: Path):
    published.troubles = [Trouble("slow", 1, wait=0.02)]
    both = [process(published), process(published)]
    answers = {running.communicate(timeout=300)[0] for running in both}
    assert answers == {read_card(locate(NAME)).weights.sha256 + "\n"}
    assert len(published.requests("^GET")) == 1


def test_a_kill_half_way_leaves_no_model_and_the_next_call_goes_on(published: FileServer, home: Path, content: bytes):
    published.troubles = [Trouble("slow", 1, wait=0.1)]
    running = process(published)
    deadline = time.monotonic() + 120
    while not [path for path in home.rglob("*.part") if path.stat().st_size > 0] and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=60)
    (part,) = home.rglob("*.part")
    came = part.stat().st_size
    assert 0 < came < len(content)
    assert not (home / "models").exists()
    zoo.load(NAME)
    assert published.requests("^GET")[1] == f"GET {PATH} bytes={came}-"
    assert list(home.rglob("*.part")) == []


def test_a_part_of_an_older_version_of_the_file_is_not_completed_with_the_new_one(
    published: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path, encoder: Encoder, tmp_path: Path
):
    state_hash(published, monkeypatch, "")
    published.troubles = [Trouble("break", 99)]
    with pytest.raises(Unreachable, match="the next call goes on from there"):
        zoo.load(NAME)
    assert len(list(home.rglob("*.part"))) == 1
    published.troubles.clear()
    published.files[PATH] = written(moco(mlp(0, 2), encoder.backbone.state_dict()), tmp_path / "new.pth").read_bytes()
    published.log.clear()
    zoo.load(NAME)
    assert published.requests("^GET") == [f"GET {PATH}"]
    assert list(home.rglob("*.part")) == []
