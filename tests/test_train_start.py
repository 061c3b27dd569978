"""Runs that start from existing weights, keep models on the way, repeat from a file, and report to Python."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from training_process import recipe_of

import zoo
from train.checkpoint import last_checkpoint, read_checkpoint
from train.config import arguments
from train.optim import make_optimizer
from train.options import Options
from train.pretrain import main, pretrain
from train.recipe import find_recipe
from train.run import Run
from zoo.errors import BadData, NoWeights, UnknownName, ZooError
from zoo.hub.store import read_card

FLAGS = {"limit": 64, "knn_every": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain(recipe_of("simco", epochs=2), out=tmp_path_factory.mktemp("first") / "run", keep_every=1, **FLAGS)


def momentum_recipe(**changes):
    small = {"batch_size": 32, "epochs": 1, "warmup_epochs": 0, "name": "simmoco-r20-digits"}
    return replace(find_recipe("simmoco-r18-cifar100"), **small | changes)


# --- start ------------------------------------------------------------------------------------------------------------


def test_a_run_starts_from_the_weights_and_head_of_another_and_its_card_says_so(trained, tmp_path, capsys):
    run = Run(recipe_of("simco", epochs=1), Options(out=tmp_path / "run", start=str(trained), **FLAGS))
    first, head = zoo.load(trained).state_dict(), load_file(trained / "head.safetensors")
    assert all(torch.equal(value, first[key]) for key, value in run.method.encoder.state_dict().items())
    own = run.method.projector.state_dict()
    assert all(torch.equal(value, head[f"projector.{key}"]) for key, value in own.items())
    assert "tensors from the encoder of simco-r20-digits" in capsys.readouterr().err
    folder = pretrain(recipe_of("simco", epochs=1), out=tmp_path / "run", start=str(trained), **FLAGS)
    started = read_card(folder).training["start"]
    assert started == {"name": "simco-r20-digits", "sha256": read_card(trained).weights.sha256}


def test_momentum_encoders_start_as_copies_and_the_head_of_another_method_stays_behind(trained, tmp_path, capsys):
    run = Run(momentum_recipe(), Options(out=tmp_path / "run", start=str(trained), **FLAGS))
    method, first = run.method, zoo.load(trained).state_dict()
    online = torch.nn.Sequential(method.encoder, method.projector).state_dict()
    assert all(torch.equal(value, online[key]) for key, value in method.key_encoder.network.state_dict().items())
    assert torch.equal(method.key_encoder.network[0].backbone.conv1.weight, first["backbone.conv1.weight"])
    assert "start at random: those of simco-r20-digits are of another method" in capsys.readouterr().err


def test_mean_and_std_come_with_the_weights_and_the_model_loads(tmp_path):
    source = pretrain(recipe_of("simco", epochs=1), out=tmp_path / "first", **FLAGS)
    other = replace(recipe_of("simco", epochs=1), name="simco-r20-cifar100")
    for label in ("a", "b"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for nth in range(32):
            save_picture(tmp_path / "data" / label / f"{nth}.png", nth)
    data = Path(f"folder:{tmp_path / 'data'}")
    folder = pretrain(other, out=tmp_path / "second", data=data, start=str(source), **FLAGS)
    assert read_card(folder).mean == read_card(source).mean != read_card(folder).std
    assert torch.equal(zoo.load(folder).mean, zoo.load(source).mean)


def save_picture(path: Path, seed: int) -> None:
    from PIL import Image

    pixels = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    Image.fromarray(pixels.numpy()).save(path)


@pytest.mark.parametrize(
    ("start", "kind", "told"),
    [
        ("nowhere/run", NoWeights, "nowhere/run"),
        ("simko-r20-cifar100", UnknownName, "simco-r20-cifar100"),
        ("simco-r18-cifar100-cpu", BadData, "is another network than r20: .*of another shape"),
    ],
)
def test_a_start_that_cannot_be_is_refused_before_anything_is_written(start, kind, told, tmp_path):
    with pytest.raises(kind, match=told):
        pretrain(recipe_of("simco"), out=tmp_path / "run", start=start, **FLAGS)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_only_with_the_start_that_it_had(trained, tmp_path):
    recipe = recipe_of("simco", epochs=1)
    pretrain(recipe, out=tmp_path / "run", start=str(trained), **FLAGS)
    with pytest.raises(ZooError, match=r"start: .* -> None"):
        pretrain(recipe, out=tmp_path / "run", **FLAGS)


def test_a_finished_run_says_how_it_goes_on(trained, capsys):
    pretrain(recipe_of("simco", epochs=2), out=trained, **FLAGS)
    assert f"to train further, start a new run from it: --start {trained} --out" in capsys.readouterr().err


def test_a_frozen_encoder_stays_for_its_epochs_and_learns_afterwards(trained, tmp_path):
    flags = FLAGS | {"start": str(trained), "freeze_epochs": 1, "keep_every": 1}
    folder = pretrain(recipe_of("simco", epochs=2, learning_rate=0.5), out=tmp_path / "run", **flags)
    first = dict(zoo.load(trained).named_parameters())
    frozen = dict(zoo.load(folder / "epochs" / "0001").named_parameters())
    learnt = dict(zoo.load(folder / "epochs" / "0002").named_parameters())
    assert all(torch.equal(value, first[key]) for key, value in frozen.items())
    assert not torch.equal(learnt["backbone.conv1.weight"], first["backbone.conv1.weight"])
    heads = [load_file(run / "head.safetensors")["projector.0.weight"] for run in (trained, folder / "epochs" / "0001")]
    assert not torch.equal(*heads)


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars"])
def test_the_encoder_learns_at_its_own_share_of_the_rate(name, tmp_path):
    recipe = replace(recipe_of("simco", epochs=1), optimizer=name, warmup_epochs=0)
    run = Run(recipe, Options(out=tmp_path / "run", backbone_rate=0.1, **FLAGS))
    with run.open():
        next(run.batches())
        rates = {id(p): group["lr"] for group in run.optimizer.param_groups for p in group["params"]}
    peak = recipe.peak_learning_rate
    assert [rates[id(p)] / peak for p in run.method.encoder.parameters()] == pytest.approx([0.1] * 57)
    assert [rates[id(p)] / peak for p in run.method.projector.parameters()] == pytest.approx([1.0] * 4)
    assert len(rates) == len(list(run.method.parameters()))


def test_a_share_of_one_leaves_the_optimizers_groups_as_they_were(encoder):
    method = recipe_of("simco").method(encoder)
    plain = make_optimizer("sgd", method, lr=0.1, momentum=0.9, weight_decay=0)
    split = make_optimizer("sgd", method, lr=0.1, momentum=0.9, weight_decay=0, backbone_rate=0.5)
    assert len(plain.param_groups) == 1
    order = [id(p) for group in split.param_groups for p in group["params"]]
    assert order == [id(p) for p in plain.param_groups[0]["params"]]


# --- models kept on the way -------------------------------------------------------------------------------------------


def test_every_model_kept_on_the_way_loads_and_says_its_epoch(trained):
    kept = sorted((trained / "epochs").iterdir())
    assert [folder.name for folder in kept] == ["0001", "0002"]
    assert [zoo.load(folder).card.training["epochs"] for folder in kept] == [1, 2]
    last, final = zoo.load(kept[1]).state_dict(), zoo.load(trained).state_dict()
    assert all(torch.equal(value, final[key]) for key, value in last.items())
    assert not torch.equal(zoo.load(kept[0]).backbone.conv1.weight, final["backbone.conv1.weight"])


# --- a file instead of flags ------------------------------------------------------------------------------------------


def test_the_file_in_a_run_folder_repeats_the_run_and_flags_win(trained, tmp_path, monkeypatch):
    config = yaml.safe_load((trained / "run.yaml").read_text())
    assert config["recipe"] == "simco-r20-digits"
    assert config["epochs"] == 2
    assert config["view1"]["flip"] == find_recipe("simco-r20-digits").view1.flip
    words = ["zoo train", "--config", str(trained / "run.yaml"), "--out", str(tmp_path / "again")]
    monkeypatch.setattr(sys, "argv", words)
    main()
    assert read_card(tmp_path / "again").weights.sha256 == read_card(trained).weights.sha256
    monkeypatch.setattr(sys, "argv", [*words[:-1], str(tmp_path / "other"), "--epochs", "1", "--view1.flip=0.25"])
    main()
    other = read_card(tmp_path / "other").recipe
    assert (other["epochs"], other["view1"]["flip"], other["view2"]["flip"]) == (1, 0.25, 0.0)


def test_entries_become_flags_of_every_kind(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "recipe: mocov2-r18-cifar100\nsymmetric: false\nstream: true\nsizes: [16, 24]\nlimit: null\n"
        "view1: {crop_area: [0.2, 1.0]}\nqueue_size: 64\n"
    )
    text = "--no-symmetric --stream --sizes 16 24 --view1.crop-area 0.2 1.0 --queue-size 64"
    words = ["mocov2-r18-cifar100", *text.split()]
    assert arguments(["--config", str(path)]) == words
    assert arguments([f"--config={path}", "--queue_size", "32"]) == [*words[:-2], "--queue_size", "32"]
    assert arguments([words[0], "--no-stream", "--config", str(path)]) == [
        *(word for word in words if word != "--stream"), "--no-stream",
    ]  # fmt: skip
    assert arguments(["simco-r18-cifar100", "--epochs", "3"]) == ["simco-r18-cifar100", "--epochs", "3"]


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "cannot be read"), ("a: [", "cannot be read"), ("- 3", "holds no entries"), ("epochs: 3", "no recipe")],
)
def test_a_file_that_cannot_be_read_says_what_it_should_be(text, told, tmp_path):
    path = tmp_path / "run.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadData, match=told):
        arguments(["--config", str(path)])


def test_an_unknown_entry_of_a_file_is_named(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("recipe: simco-r20-digits\nepoks: 3\n")
    monkeypatch.setattr(sys, "argv", ["zoo train", "--config", str(path)])
    with pytest.raises(SystemExit):
        main()
    assert "--epoks" in capsys.readouterr().err


# --- from Python ------------------------------------------------------------------------------------------------------


def test_a_callback_gets_every_line_of_the_log(tmp_path):
    lines = []
    folder = pretrain(recipe_of("simco", epochs=2), out=tmp_path / "run", limit=64, knn_every=1, on_log=lines.append)
    from train.run_log import read_log

    assert lines == read_log(folder)
    assert [line["step"] for line in lines] == [1, 2, 4]
    assert read_checkpoint(last_checkpoint(folder / "checkpoints")).progress.step == 4
