import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from loopback_hub import REPO, TOKEN, Fault, LoopbackHub, Repo, elsewhere, surroundings
from PIL import Image
from serve_model import noise

import zoo
from serve.export import export
from zoo.errors import AccessDenied, CorruptFile, NoWeights, UnknownName, Unreachable, ZooError
from zoo.files import sha256
from zoo.hub.resolve import locate
from zoo.hub.store import CARD, GOLDEN, WEIGHTS, fetched_folder, keep, read_card
from zoo.model.card import Card
from zoo.model.encoder import Encoder, save_encoder, write_head
from zoo.release.publish import publish

pytest_plugins = ["hub_fixtures"]

NAME = "simco-r20-digits"
ADDRESS = f"hf://{REPO}"


@pytest.fixture
def run(tmp_path: Path, encoder: Encoder, card: Card) -> Path:
    save_encoder(encoder, tmp_path / "runs" / NAME, replace(card, results=()))
    return tmp_path / "runs" / NAME


@pytest.fixture
def entry(run: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> Card:
    """The run is on the Hub, and the catalogue has its entry; the request log is empty."""
    card, _ = publish(run, repo=REPO)
    monkeypatch.setattr("zoo.hub.resolve.catalog", lambda: {NAME: card})
    hub.log.clear()
    return card


def same(found: Encoder, expected: Encoder) -> bool:
    states = found.state_dict(), expected.state_dict()
    return states[0].keys() == states[1].keys() and all(torch.equal(states[0][k], states[1][k]) for k in states[0])


def in_cache(entry: Card) -> Path:
    return fetched_folder(entry.published.repo, entry.published.revision)


# --- by name ----------------------------------------------------------------------------------------------------------


def test_a_name_of_the_catalogue_is_fetched_at_its_commit_and_is_the_trained_encoder(
    entry: Card, hub: LoopbackHub, run: Path, encoder: Encoder
):
    hub.repos[REPO].commit({"config.json": b"another model meanwhile"})
    found = zoo.load(NAME)
    assert same(found, encoder)
    assert found.card == entry
    assert sha256(in_cache(entry) / WEIGHTS) == sha256(run / WEIGHTS)
    assert not list(in_cache(entry).parent.glob(".download*"))


def test_info_of_a_name_asks_nobody_and_is_the_card_that_loading_gives(entry: Card, hub: LoopbackHub):
    assert zoo.info(NAME) == entry
    assert hub.log == []
    assert not in_cache(entry).exists()
    assert zoo.info(NAME) == zoo.load(NAME).card


def test_once_fetched_it_costs_no_request_and_works_with_a_dead_hub(
    entry: Card, hub: LoopbackHub, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
):
    zoo.load(NAME)
    hub.log.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 sets at the start
    started = time.process_time()  # of this process: other work on the machine does not count
    assert same(zoo.load(NAME), encoder)
    assert time.process_time() - started < 1
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert same(zoo.load(NAME), encoder)
    assert same(zoo.load(f"{ADDRESS}@{entry.published.revision}"), encoder)
    assert hub.log == []


def test_offline_and_not_here_it_fails_at_once_and_says_what_to_do(
    entry: Card, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
):
    import zoo.hub.client  # its import is not what is timed

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 sets at the start
    started = time.monotonic()
    for what in (NAME, ADDRESS, "timm/resnet18.a1_in1k"):
        with pytest.raises(NoWeights, match=r"HF_HUB_OFFLINE forbids fetching it.* Unset HF_HUB_OFFLINE, or copy"):
            zoo.load(what)
    assert time.monotonic() - started < 1
    assert hub.log == []


def test_a_dead_hub_is_told_within_a_second(entry: Card, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    started = time.monotonic()
    for what in (NAME, ADDRESS):
        with pytest.raises(Unreachable, match=r"http://127.0.0.1:9 does not answer .*check the network"):
            zoo.load(what)
    assert time.monotonic() - started < 1


def test_a_kept_model_comes_before_the_hub_and_a_path_before_both(
    entry: Card, hub: LoopbackHub, run: Path, home: Path, monkeypatch: pytest.MonkeyPatch
):
    keep(run)
    assert locate(NAME) == home / "models" / NAME
    monkeypatch.chdir(run.parent)
    assert locate(NAME) == Path(NAME)
    assert hub.log == []


def test_another_commit_in_the_catalogue_is_another_folder(
    entry: Card, run: Path, hub, monkeypatch: pytest.MonkeyPatch
):
    first = zoo.load(NAME)
    (run / CARD).write_text(replace(read_card(run), expects="better").to_json())
    newer, commit = publish(run, repo=REPO)
    monkeypatch.setattr("zoo.hub.resolve.catalog", lambda: {NAME: newer})
    assert commit.tag == "v2"
    assert (first.card.expects, zoo.load(NAME).card.expects) == ("none published", "better")
    assert len([path for path in in_cache(entry).parent.iterdir() if not path.name.startswith(".")]) == 2


# --- by address -------------------------------------------------------------------------------------------------------


def test_an_address_is_loaded_at_main_at_a_tag_and_at_a_commit(entry: Card, hub: LoopbackHub, encoder: Encoder):
    for revision in ("", "@main", "@v1", f"@{entry.published.revision}"):
        found = zoo.load(ADDRESS + revision)
        assert same(found, encoder)
        assert found.card == entry
    assert len(hub.requests(f"GET /cdn/{sha256_of(hub, WEIGHTS)}")) == 1


def sha256_of(hub: LoopbackHub, file: str) -> str:
    repo = hub.repos[REPO]
    return hashlib.sha256(repo.commits[repo.branches["main"]][file]).hexdigest()


def test_a_tag_is_taken_as_last_seen_where_nobody_answers(
    entry: Card, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
):
    zoo.load(f"{ADDRESS}@v1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert same(zoo.load(f"{ADDRESS}@v1"), encoder)
    with pytest.raises(Unreachable):
        zoo.load(f"{ADDRESS}@v2")


@pytest.mark.parametrize(
    "text", ["hf://x", "hf://../x", "hf://a/..", "hf://a/b/c", "hf://a/b@", "hf://a/b@../x", "timm/"]
)
def test_a_malformed_address_is_told_the_form(text: str, hub: LoopbackHub):
    with pytest.raises(UnknownName, match="is no address on the Hub; allowed: hf://ORG/NAME"):
        zoo.load(text)
    assert hub.log == []


def test_an_unknown_revision_and_a_foreign_repository_are_told_apart(entry: Card, hub: LoopbackHub):
    with pytest.raises(UnknownName, match="has no revision 'v7'"):
        zoo.load(f"{ADDRESS}@v7")
    hub.repos["tester/other"] = Repo()
    hub.repos["tester/other"].commit({"README.md": b"text", "pytorch_model.bin": b"pickle"})
    with pytest.raises(NoWeights, match=r"holds no config\.json and no model\.safetensors"):
        zoo.load("hf://tester/other")
    assert not hub.requests("pytorch_model")


def timm_repository(folder: Path, **settings: object) -> tuple[torch.nn.Module, dict[str, bytes]]:
    """A network and what timm itself pushes of it: config.json and model.safetensors, written by timm; and a pickle."""
    torch.manual_seed(0)
    network = timm.create_model("test_resnet.r160_in1k", pretrained=False).eval()
    network.pretrained_cfg |= {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    network.pretrained_cfg |= {"interpolation": "bicubic", "crop_pct": 0.8} | settings
    timm.models.save_for_hf(network, folder, safe_serialization="both")
    return network, {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_repository_of_timms_is_an_encoder_with_timms_features_and_a_card(hub: LoopbackHub, tmp_path: Path):
    network, files = timm_repository(tmp_path / "pushed")
    assert {"config.json", WEIGHTS, "pytorch_model.bin"} <= files.keys()
    hub.repos["timm/test_resnet.ours"] = Repo()
    revision = hub.repos["timm/test_resnet.ours"].commit(files)
    found = zoo.load("timm/test_resnet.ours")
    config = timm.data.resolve_model_data_config(network)
    side = round(config["input_size"][1] / config["crop_pct"])
    picture = Image.fromarray(noise(side, side, 3))  # its central crop is exact in both
    x = timm.data.create_transform(**config, is_training=False)(picture)
    with torch.inference_mode():
        expected = network.forward_head(network.forward_features(x[None]), pre_logits=True)
    assert np.allclose(found.embed([picture]), expected, atol=1e-5)
    assert not hub.requests(r"\.bin")
    assert (found.card.name, found.card.dim, found.card.mean) == ("timm/test_resnet.ours", found.dim, (0.5, 0.4, 0.3))
    assert (found.card.image_size, found.card.crop) == (config["input_size"][1], config["crop_pct"])
    assert zoo.info("timm/test_resnet.ours").published.revision == revision
    for options in ({"quantize": True}, {"data": tmp_path}):
        with pytest.raises(ZooError, match="leave out --data and --quantize"):
            export("timm/test_resnet.ours", **options)


def test_a_preprocessing_that_is_not_ours_is_refused(hub: LoopbackHub, tmp_path: Path):
    hub.repos["timm/test_resnet.other"] = Repo()
    hub.repos["timm/test_resnet.other"].commit(timm_repository(tmp_path / "x", interpolation="bilinear")[1])
    with pytest.raises(ZooError, match=r"wants .'interpolation': 'bilinear'"):
        zoo.load("timm/test_resnet.other")


def test_a_repository_of_timms_is_not_kept_under_a_name_that_nothing_would_find(
    hub: LoopbackHub, tmp_path: Path, home: Path
):
    hub.repos["timm/test_resnet.ours"] = Repo()
    hub.repos["timm/test_resnet.ours"].commit(timm_repository(tmp_path / "x")[1])
    folder = locate("timm/test_resnet.ours")
    with pytest.raises(ZooError, match=r"timm/test_resnet\.ours is no name of this zoo; once fetched it is kept"):
        keep(folder)
    assert not (home / "models").exists()


@pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
def test_a_file_of_timms_damaged_after_it_was_fetched_is_found(hub: LoopbackHub, tmp_path: Path, file: str):
    hub.repos["timm/test_resnet.ours"] = Repo()
    revision = hub.repos["timm/test_resnet.ours"].commit(timm_repository(tmp_path / "x")[1])
    zoo.load(f"timm/test_resnet.ours@{revision}")
    path = fetched_folder("timm/test_resnet.ours", revision) / file
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6") if file.endswith("json") else path.read_bytes()[:-1])
    with pytest.raises(CorruptFile, match=f"{file}.* (is not as it was fetched|does not match its card)"):
        zoo.load(f"timm/test_resnet.ours@{revision}")


# --- who may --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "hf_revoked"])
def test_a_private_repository_opens_with_the_token_only(
    run: Path, hub: LoopbackHub, encoder: Encoder, monkeypatch: pytest.MonkeyPatch, token: str
):
    publish(run, repo=REPO, private=True)
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(AccessDenied, match=r"private, gated or misspelt.*HF_TOKEN"):
        zoo.load(ADDRESS)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert same(zoo.load(ADDRESS), encoder)


def test_a_name_that_is_not_on_the_hub_is_told_so(hub: LoopbackHub):
    with pytest.raises(AccessDenied, match="tester/nothing is private, gated or misspelt"):
        zoo.load("hf://tester/nothing")


# --- what goes wrong on the way ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/models/", "/resolve/", "/cdn/"])
def test_a_busy_hub_is_asked_again(entry: Card, hub: LoopbackHub, encoder: Encoder, path: str):
    hub.faults = [Fault("GET", path, 2, status=503)]
    assert same(zoo.load(NAME), encoder)
    assert hub.faults[0].times == 0


def test_a_hub_that_stays_busy_is_told_as_such(entry: Card, hub: LoopbackHub):
    hub.faults = [Fault("GET", "/api/models/", 99, status=503)]
    with pytest.raises(Unreachable, match="503"):
        zoo.load(NAME)
    assert not in_cache(entry).exists()


def test_a_truncated_download_is_completed(entry: Card, hub: LoopbackHub, encoder: Encoder):
    hub.faults = [Fault("GET", f"/cdn/{sha256_of(hub, WEIGHTS)}", 1, payload="truncate")]
    assert same(zoo.load(NAME), encoder)
    assert hub.faults[0].times == 0


@pytest.mark.parametrize("what", ["name", "address"])
@pytest.mark.parametrize("file", [WEIGHTS, "config.json", "recipe.json"])
def test_a_corrupt_file_is_fetched_once_more(entry: Card, hub: LoopbackHub, encoder: Encoder, file: str, what: str):
    where = f"/cdn/{sha256_of(hub, file)}" if file.endswith("safetensors") else f"/resolve/.*/{file}"
    hub.faults = [Fault("GET", where, 1, payload="corrupt")]
    found = zoo.load(NAME if what == "name" else ADDRESS)
    assert same(found, encoder)
    assert found.card == entry
    assert len(hub.requests(f"GET .*{where}")) == 2


EXTRAS = ("model.onnx", "head.safetensors", GOLDEN)


@pytest.mark.parametrize("what", ["name", "address"])
def test_a_load_fetches_weights_and_card_and_the_extras_only_when_asked_for(
    run: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, what: str
):
    (run / "model.onnx").write_bytes(b"onnx")
    monkeypatch.setattr("zoo.release.publish.verify", lambda _: {})  # it would open the ONNX file
    card, _ = publish(run, repo=REPO)
    monkeypatch.setattr("zoo.hub.resolve.catalog", lambda: {NAME: card})
    model = NAME if what == "name" else ADDRESS
    hub.log.clear()
    assert zoo.load(model).card == card
    assert hub.requests(f"GET /cdn/{sha256_of(hub, WEIGHTS)}")
    assert sorted(path.name for path in locate(model).iterdir()) == [CARD, WEIGHTS]
    for file in ("model.onnx", GOLDEN):
        assert not hub.requests(f"{sha256_of(hub, file)}|{file}")
    folder = locate(model, extras=EXTRAS)
    assert sorted(path.name for path in folder.iterdir()) == [CARD, GOLDEN, "model.onnx", WEIGHTS]
    assert (folder / "model.onnx").read_bytes() == b"onnx"
    hub.log.clear()
    assert locate(f"{ADDRESS}@{card.published.revision}", extras=EXTRAS) == folder
    assert hub.log == []


def test_an_extra_that_is_corrupt_twice_is_refused_and_the_model_stays(entry: Card, hub: LoopbackHub, encoder: Encoder):
    zoo.load(NAME)
    hub.faults = [Fault("GET", f"/cdn/{sha256_of(hub, GOLDEN)}", 2, payload="corrupt")]
    with pytest.raises(CorruptFile, match=rf"golden\.safetensors of {REPO} came twice with other content"):
        locate(NAME, extras=(GOLDEN,))
    assert same(zoo.load(NAME), encoder)
    assert (locate(NAME, extras=(GOLDEN,)) / GOLDEN).is_file()


def test_the_head_is_fetched_when_it_is_asked_for(run: Path, hub: LoopbackHub, card: Card):
    head = {"projector.0.weight": torch.rand(4, 64), "projector.0.bias": torch.rand(4)}
    write_head(head, run, read_card(run))
    publish(run, repo=REPO)
    assert not hasattr(zoo.load(ADDRESS), "projector")
    found = zoo.load(ADDRESS, head=True).projector.state_dict()
    assert torch.equal(found["0.weight"], head["projector.0.weight"])


def test_downloads_are_in_the_hub_clients_own_cache(entry: Card, hub: LoopbackHub, tmp_path: Path):
    """`HF_HOME` means what it means to every other tool: what is there is not downloaded again."""
    done = elsewhere(FETCH, hub, tmp_path)
    assert done.stdout.strip() == entry.weights.sha256, done.stderr
    cache = tmp_path / "hf-home" / "hub" / f"models--{REPO.replace('/', '--')}"
    assert {path.name for path in (cache / "snapshots" / entry.published.revision).iterdir()} >= {
        WEIGHTS,
        "config.json",
    }
    assert (cache / "refs" / "v1").read_text() == entry.published.revision
    hub.log.clear()
    done = elsewhere(FETCH, hub, tmp_path, ZOO_HOME=str(tmp_path / "another-home"))
    assert done.stdout.strip() == entry.weights.sha256, done.stderr
    assert not hub.requests("GET /cdn/")


def test_a_file_that_is_corrupt_twice_is_refused_and_not_kept(entry: Card, hub: LoopbackHub, encoder: Encoder):
    hub.faults = [Fault("GET", f"/cdn/{sha256_of(hub, WEIGHTS)}", 2, payload="corrupt")]
    with pytest.raises(
        CorruptFile, match=rf"model\.safetensors of {REPO} came twice with other content: \w+\.\.\. instead"
    ):
        zoo.load(NAME)
    assert not in_cache(entry).exists()
    assert not list(in_cache(entry).parent.rglob(WEIGHTS))
    assert same(zoo.load(NAME), encoder)  # the Hub is well again


def test_files_that_the_hub_serves_under_a_pinned_commit_must_be_those_of_the_catalogue(entry: Card, hub: LoopbackHub):
    """A Hub that answers with other, consistent files: its own hashes fit, the catalogue's do not."""
    files = hub.repos[REPO].commits[entry.published.revision]
    files[WEIGHTS] = files[WEIGHTS][:-1] + bytes([files[WEIGHTS][-1] ^ 1])
    with pytest.raises(CorruptFile, match="came twice with other content"):
        zoo.load(NAME)


def test_a_file_damaged_after_it_was_fetched_is_found(entry: Card):
    zoo.load(NAME)
    path = in_cache(entry) / WEIGHTS
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptFile, match="does not match its card"):
        zoo.load(NAME)


FETCH = f"""if True:
    from zoo.hub.resolve import locate
    from zoo.hub.store import read_card
    print(read_card(locate('{ADDRESS}@v1')).weights.sha256)
"""


def test_two_processes_at_once_fetch_every_file_once(entry: Card, hub: LoopbackHub, tmp_path: Path):
    hub.faults = [Fault("GET", "/cdn/", 1, payload="slow", wait=0.02)]
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda: answers.append(elsewhere(FETCH, hub, tmp_path).stdout.strip()))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [entry.weights.sha256] * 2
    assert len(hub.requests("GET /cdn/" + sha256_of(hub, WEIGHTS))) == 1


def test_a_kill_during_the_download_leaves_nothing_half_and_the_next_call_goes_on(
    entry: Card, hub: LoopbackHub, tmp_path: Path
):
    where = f"/cdn/{sha256_of(hub, WEIGHTS)}"
    hub.faults = [Fault("GET", where, 1, payload="slow", wait=0.5)]
    process = subprocess.Popen([sys.executable, "-c", FETCH], cwd=tmp_path, env=surroundings(hub, tmp_path))
    deadline = time.monotonic() + 60
    while not hub.requests(where) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert hub.requests(where)
    assert not in_cache(entry).exists()
    before = len(hub.requests("config.json"))
    assert zoo.load(f"{ADDRESS}@v1").card.weights.sha256 == entry.weights.sha256
    assert before >= 1
    assert not list(in_cache(entry).parent.glob(".download*"))


WITHOUT_XET = """if True:
    import importlib.metadata as metadata
    known = metadata.version
    def version(name):
        if name.replace("_", "-") == "hf-xet":
            raise metadata.PackageNotFoundError(name)
        return known(name)
    metadata.version = version
    from huggingface_hub.utils._runtime import is_xet_available
    assert not is_xet_available()
"""
BOTH_WAYS = """
from pathlib import Path
from zoo.release.publish import publish
from zoo.hub.resolve import locate
card, _ = publish(Path("runs/simco-r20-digits"), repo="tester/again")
print(locate(f"hf://tester/again@{card.published.revision}").name == card.published.revision)
"""


def test_where_xet_is_not_installed_uploads_and_downloads_go_by_lfs(run: Path, hub: LoopbackHub, tmp_path: Path):
    """As they do in all other tests here, which disable it."""
    done = elsewhere(WITHOUT_XET + BOTH_WAYS, hub, tmp_path, HF_HUB_DISABLE_XET="0")
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr
    assert hub.requests(r"POST .*/info/lfs/objects/batch")
    assert hub.requests("GET /cdn/")
    assert not hub.requests("xet")


def test_a_download_works_where_xet_is_installed_and_the_hub_has_none(entry: Card, hub: LoopbackHub, tmp_path: Path):
    done = elsewhere(FETCH, hub, tmp_path, HF_HUB_DISABLE_XET="0")
    assert done.stdout.strip() == entry.weights.sha256, done.stderr


@contextmanager
def nobody() -> Iterator[None]:
    """A user who may write nowhere; root may write anywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_read_only_home_serves_what_it_holds_and_says_that_it_can_hold_no_more(
    entry: Card, hub: LoopbackHub, home: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
):
    zoo.load(ADDRESS)  # with everything that is imported on the way
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(home, Path(folder, "home"))
        subprocess.run(["chmod", "-R", "a=rX", folder], check=True)
        monkeypatch.setenv("ZOO_HOME", f"{folder}/home")
        with nobody():
            assert same(zoo.load(NAME), encoder)
            assert same(zoo.load(f"{ADDRESS}@v1"), encoder)  # that v1 was seen cannot be noted
            hub.repos[REPO].commit(dict(hub.repos[REPO].commits[entry.published.revision]))
            with pytest.raises(ZooError, match=r"cannot keep tester.*Permission denied.*HF_HOME"):
                zoo.load(ADDRESS)
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)


def test_a_busy_hub_is_asked_again_while_publishing(run: Path, hub: LoopbackHub):
    hub.faults = [Fault("POST", path, 2, status=503) for path in ("/repos/create", "/preupload/", "/commit/", "/tag/")]
    _, commit = publish(run, repo=REPO)
    assert [fault.times for fault in hub.faults] == [0, 0, 0, 0]
    assert hub.repos[REPO].tags == {"v1": commit.revision}
    assert len(hub.repos[REPO].commits) == 2  # the empty repository's, and one of ours


def test_a_fetched_name_is_found_without_the_hubs_client(entry: Card, monkeypatch: pytest.MonkeyPatch):
    zoo.load(NAME)
    monkeypatch.setitem(sys.modules, "zoo.hub.client", None)  # an import would raise
    assert locate(NAME) == in_cache(entry)
    with pytest.raises(ImportError):
        locate(f"{ADDRESS}@v1")
