import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import ModelCard
from loopback_hub import REPO
from PIL import Image
from safetensors.numpy import load_file, save_file
from serve_model import noise

import zoo
from eval.protocols import PROTOCOLS
from eval.score import score
from train.heads import mlp
from train.pretrain import pretrain
from train.recipe import find_recipe
from zoo.cli.main import main
from zoo.errors import AccessDenied, CorruptFile, UnknownName, ZooError
from zoo.files import sha256
from zoo.hub.published import read_release
from zoo.hub.resolve import locate
from zoo.hub.store import CARD, GOLDEN, HEAD, WEIGHTS, read_card
from zoo.model.card import Card, parse_card
from zoo.model.encoder import Encoder, new_encoder, save_encoder, save_head
from zoo.release.publish import build_release, publish
from zoo.release.verify import golden_pictures, verify

pytest_plugins = ["hub_fixtures"]

RESULT = {
    "key": "knn/digits/simco-r20-digits", "protocol": "k-NN, cosine, k = 20", "encoder": "simco-r20-digits",
    "dataset": "digits", "metric": "top-1 accuracy", "value": 0.9722, "ci95": [0.95, 0.985], "n_test": 360,
    "date": "2026-01-31", "hardware": "2 cores", "command": "python -m eval.score runs/simco-r20-digits",
}  # fmt: skip
LINEAR = RESULT | {"key": "linear/digits/x", "protocol": "linear probe, offline", "value": 0.95}
RANK = RESULT | {  # as eval.geometry has it: no share, no interval
    "key": "rankme/digits/x", "protocol": "geometry of the test features", "metric": "RankMe", "unit": "",
    "value": 34.5, "ci95": None,
}  # fmt: skip
FEW = RESULT | {"key": "fewshot-5/digits/x", "protocol": "5 images a class", "value": 0.8, "ci95": None, "std": 0.012}
UNTRAINED = RESULT | {"key": "knn/digits/random:r20", "encoder": "random:r20", "value": 0.31}
TRAINING = {"steps": 880, "images": 1437, "seconds": 61.5, "hardware": "2 cores", "command": "python train/pretrain.py"}


@pytest.fixture
def run(tmp_path: Path, encoder: Encoder, card: Card) -> Path:
    """A trained and measured run with its head."""
    method = torch.nn.Module()
    method.projector = mlp(64, 32, 16)
    card = replace(
        card,
        results=(RESULT, LINEAR, RANK, FEW, UNTRAINED),
        training=TRAINING,
        recipe={"epochs": 80, "view1": {"flip": 0.0}},
    )
    folder = tmp_path / "simco-r20-digits"
    save_head(method, folder, save_encoder(encoder, folder, card))
    return folder


def test_a_release_holds_all_of_the_run_and_comes_back_bit_for_bit(run: Path):
    folder = build_release(run, REPO)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "config.json", "golden.safetensors", "head.safetensors", "model.safetensors", "recipe.json",
        "results.json",
    ]  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    card, tensors = read_release(folder)
    assert card == read_card(run)
    native = load_file(run / WEIGHTS)
    assert {key: value.tobytes() for key, value in tensors.items()} == {k: v.tobytes() for k, v in native.items()}
    assert json.loads((folder / "recipe.json").read_text())["recipe"] == {"epochs": 80, "view1": {"flip": 0.0}}
    assert json.loads((folder / "results.json").read_text()) == {"results": [RESULT, LINEAR, RANK, FEW, UNTRAINED]}
    assert (folder / HEAD).read_bytes() == (run / HEAD).read_bytes()
    assert not [path for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pkl")]


def test_the_golden_file_holds_8_pictures_and_their_embeddings(run: Path, encoder: Encoder):
    golden = load_file(build_release(run, REPO) / GOLDEN)
    assert golden["pixels"].shape == (8, 8, 8, 3)
    assert np.array_equal(golden["embeddings"], encoder.embed(list(golden["pixels"])))


def test_two_releases_of_one_run_are_the_same_bytes(run: Path):
    first = {path.name: sha256(path) for path in build_release(run, REPO).iterdir()}
    assert {path.name: sha256(path) for path in build_release(run, REPO).iterdir()} == first


def test_the_card_has_a_model_index_with_every_result_of_this_encoder_under_its_protocol(run: Path):
    text = (build_release(run, REPO) / "README.md").read_text()
    data = ModelCard(text).data
    found = {(result.metric_name, result.metric_value, result.dataset_type) for result in data.eval_results}
    assert found == {
        ("top-1 accuracy, k-NN, cosine, k = 20", 97.22, "digits"),
        ("top-1 accuracy, linear probe, offline", 95.0, "digits"),
        ("top-1 accuracy, 5 images a class", 80.0, "digits"),
        ("RankMe, geometry of the test features", 34.5, "digits"),
    }
    assert (data.model_name, data.license, data.library_name) == ("simco-r20-digits", "apache-2.0", "timm")
    assert data.pipeline_tag == "image-feature-extraction"


GIVEN = (RESULT, LINEAR, RANK, FEW)
CHEAP = ["knn", "ridge", "fewshot", "retrieval", "geometry"]


@pytest.mark.parametrize("protocols", [CHEAP, pytest.param([*PROTOCOLS], marks=pytest.mark.slow)], ids=["cheap", "all"])
def test_every_protocols_rows_come_into_the_card_with_their_own_metric_and_unit(run: Path, protocols: list[str]):
    rows = score(run, max_train=120, max_test=60, finetune_steps=2, protocols=protocols)
    text = (build_release(run, REPO) / "README.md").read_text()
    found = {(r.metric_type, r.metric_name): r.metric_value for r in ModelCard(text).data.eval_results}
    mine = {f"{row.metric}, {row.protocol}": row for row in rows if row.encoder.name == "simco-r20-digits"}
    assert {name for _, name in found} - {f"{r['metric']}, {r['protocol']}" for r in GIVEN} == set(mine)
    for (kind, name), value in found.items():
        if name in mine:
            scale = 100 if mine[name].unit == "share" else 1
            assert value == pytest.approx(scale * mine[name].value, abs=1e-4)
            assert (kind == "accuracy") == name.startswith("top-1 accuracy")
    uniformity = next(row for row in mine.values() if row.metric.startswith("uniformity"))
    assert f" | {uniformity.metric} | {uniformity.value:.2f} |  | 60 |" in text  # below 0, and no percentage
    shots = next(row for row in mine.values() if row.key.startswith("fewshot-5"))
    assert f" | {100 * shots.value:.2f} ± {100 * shots.extras['std']:.2f} % |  | 60 |" in text


def test_the_card_tells_the_recipe_the_training_and_the_limits_and_has_no_placeholder(run: Path):
    text = (build_release(run, REPO) / "README.md").read_text()
    for line in (
        "| epochs | 80 |", "| view1.flip | 0.0 |", "| seconds | 61.5 |", "| parameters | 269,072 |",
        "| simco-r20-digits | digits | k-NN, cosine, k = 20 | top-1 accuracy | 97.22 % | 95.00 to 98.50 | 360 |",
        "| simco-r20-digits | digits | geometry of the test features | RankMe | 34.50 |  | 360 |",
        "| simco-r20-digits | digits | 5 images a class | top-1 accuracy | 80.00 ± 1.20 % |  | 360 |",
        "| random:r20 | digits | k-NN, cosine, k = 20 | top-1 accuracy | 31.00 % | 95.00 to 98.50 | 360 |",
        "Licence of the images: BSD-3-Clause.", "Bias: ", "Zhang et al. 2022", "[3, 32, 32], nearest",
    ):  # fmt: skip
        assert line in text, line
    prose = re.sub(r"^```python\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.search(
        r"TODO|TBD|More Information|\b(None|null|nan|unknown)\b|[{}]|<[a-z]|\| \|$", prose, re.MULTILINE
    )


def test_a_value_that_is_not_known_leaves_no_line(tmp_path: Path, encoder: Encoder, card: Card):
    save_encoder(encoder, tmp_path / "run", replace(card, results=(), training={"energy_kwh": None}, recipe={}))
    text = (build_release(tmp_path / "run", REPO) / "README.md").read_text()
    assert "energy" not in text
    assert not re.search("## (Results|Recipe|Training)\n", text)
    assert "model-index" not in text


@pytest.fixture
def large_run(tmp_path: Path) -> Path:
    """A ResNet-18 with the ImageNet stem, whose central crop keeps 0.875 of the shorter side."""
    torch.manual_seed(0)
    encoder = new_encoder("simclr-r18-in100")
    encoder.crop = 0.875
    entries = {"image_size": 224, "crop": 0.875, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    card = replace(find_recipe("simclr-r18-cifar100").card(), name="simclr-r18-in100", **entries)
    save_encoder(encoder.eval(), tmp_path / "large", card)
    return tmp_path / "large"


def test_a_model_with_a_crop_is_published_with_a_transform_that_equals_timms_own(large_run: Path):
    folder = build_release(large_run, "tester/simclr-r18-in100")
    encoder, model = zoo.load(large_run), timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    mean, std = encoder.mean, encoder.std
    for height, width, most in ((256, 256, 1e-6), (300, 400, 0.15)):  # no resampling; timm resizes, then crops
        picture = Image.fromarray(golden_pictures(400)[0]).resize((width, height))
        ours = (torch.from_numpy(encoder.pixels(picture).copy()).permute(2, 0, 1) / 255 - mean) / std
        assert (transform(picture) - ours).abs().max() < most
    assert verify(large_run)["torch"] == 0.0


def test_publishing_gives_an_entry_for_the_catalogue_that_pins_every_file(run: Path, hub):
    card, commit = publish(run, repo=REPO)
    repo = hub.repos[REPO]
    assert (commit.tag, repo.tags) == ("v1", {"v1": commit.revision})
    assert parse_card(card.to_json(), where="entry") == card
    assert (card.published.repo, card.published.revision) == (REPO, commit.revision)
    files = repo.commits[commit.revision]
    for file in card.published.files:
        assert len(files[file.file]) == file.bytes
        assert sha256(run / "hub" / file.file) == file.sha256
    assert {file.file for file in card.published.files} == set(files) - {"README.md", ".gitattributes"}


def test_the_same_run_once_more_makes_no_commit_and_no_tag(run: Path, hub):
    _, first = publish(run, repo=REPO)
    _, second = publish(run, repo=REPO)
    assert second == first
    assert len(hub.repos[REPO].commits) == 2  # the empty repository's, and ours


def test_another_run_gets_the_next_tag_and_no_tag_moves(run: Path, hub):
    _, first = publish(run, repo=REPO)
    (run / HEAD).unlink()
    (run / CARD).write_text(replace(read_card(run), expects="something").to_json())
    _, second = publish(run, repo=REPO)
    assert hub.repos[REPO].tags == {"v1": first.revision, "v2": second.revision}
    files = hub.repos[REPO].commits[second.revision]
    assert HEAD not in files  # what the new release lacks goes
    assert ".gitattributes" in files


def test_private_makes_a_private_repository(run: Path, hub):
    publish(run, repo=REPO, private=True)
    assert hub.repos[REPO].private


def test_a_revoked_token_uploads_nothing_and_is_told_so(run: Path, hub):
    hub.tokens.clear()
    with pytest.raises(AccessDenied, match=r"401.*HF_TOKEN"):
        publish(run, repo=REPO)
    assert hub.repos == {}


def test_building_a_release_asks_nobody(run: Path, hub):
    build_release(run, REPO)
    assert hub.log == []


@pytest.mark.slow
def test_a_dry_run_makes_the_onnx_file_too_and_asks_nobody(
    run: Path, hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr("sys.argv", ["zoo", "publish", str(run), "--repo", REPO, "--dry-run"])
    main()
    said = capsys.readouterr().out
    assert {line.split()[-1] for line in said.splitlines()[:-1]} == {path.name for path in (run / "hub").iterdir()}
    assert {"config.json", "model.onnx", "README.md"} <= {path.name for path in (run / "hub").iterdir()}
    assert "checked, not uploaded" in said
    assert hub.log == []


@pytest.mark.parametrize("repo", ["simco", "a/b/c", "../x", "a/..", ""])
def test_a_repository_that_is_none_is_told_the_form(run: Path, repo: str):
    with pytest.raises(UnknownName, match="ORG/NAME"):
        build_release(run, repo)


def test_a_head_of_other_weights_is_not_published(run: Path):
    save_file({"projector.0.weight": np.zeros(3)}, run / HEAD, metadata={"weights_sha256": "ab" * 32})
    with pytest.raises(CorruptFile, match="belongs to other weights"):
        build_release(run, REPO)
    assert not (run / "hub").exists()


def test_training_keeps_the_head_of_the_weights_it_saves(tmp_path: Path):
    recipe = replace(find_recipe("simco-r20-digits"), epochs=1, batch_size=32)
    folder = pretrain(recipe, out=tmp_path / "run", limit=64, knn_every=0)
    head = load_file(build_release(folder, REPO) / HEAD)
    assert {key: value.shape for key, value in head.items()} == {
        "projector.0.weight": (128, 64), "projector.0.bias": (128,), "projector.2.weight": (128, 128),
        "projector.2.bias": (128,),
    }  # fmt: skip


def test_somebody_elses_weights_are_not_published_under_our_licence(run: Path):
    (run / CARD).write_text(replace(read_card(run), training={"converted_from": "moco.pth.tar"}).to_json())
    with pytest.raises(ZooError, match="somebody else's checkpoint"):
        build_release(run, REPO)


def test_damaged_weights_are_not_published(run: Path):
    content = bytearray((run / WEIGHTS).read_bytes())
    content[-5] ^= 1
    (run / WEIGHTS).write_bytes(bytes(content))
    with pytest.raises(CorruptFile, match="does not match its card"):
        build_release(run, REPO)


def test_weights_that_plain_timm_reads_otherwise_are_not_published(run: Path, monkeypatch: pytest.MonkeyPatch):
    """As if a future timm had another stem: the folder it opens gives other embeddings."""
    known = timm.models._registry._model_entrypoints
    original = known["resnet18"]
    monkeypatch.setitem(known, "resnet18", lambda *rest, **options: _twice(original(*rest, **options)))
    with pytest.raises(ZooError, match="plain timm's embeddings differ"):
        build_release(run, REPO)
    assert not (run / "hub").exists()


def _twice(network: torch.nn.Module) -> torch.nn.Module:
    network.register_forward_hook(lambda _m, _x, y: 2 * y)
    return network


def test_a_bundled_model_is_published_by_its_name_and_nothing_is_written_into_the_package(hub, home: Path):
    run = locate("simco-r20-cifar100")
    before = {path.name: sha256(path) for path in run.iterdir()}
    card, _ = publish(run, repo="tester/simco-r20-cifar100")
    assert {path.name: sha256(path) for path in run.iterdir()} == before
    assert (home / "hub-releases" / "simco-r20-cifar100" / "README.md").is_file()
    assert card.published.repo == "tester/simco-r20-cifar100"
    published = load_file(home / "hub-releases" / "simco-r20-cifar100" / WEIGHTS)
    assert {value.dtype.name for value in published.values()} == {"float32", "int64"}
    pictures = [noise(40, 50, 3, seed=seed) for seed in range(3)]
    found = zoo.load("hf://tester/simco-r20-cifar100").embed(pictures)
    assert np.array_equal(found, zoo.load("simco-r20-cifar100").embed(pictures))
