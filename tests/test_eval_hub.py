"""What is measured may lie on the Hub: any address that `zoo.load` takes."""

import sys

import pytest
import timm
import torch
from loopback_hub import REPO, LoopbackHub, Repo

from eval.score import main, score
from zoo.errors import BadData, NoWeights
from zoo.hub.resolve import locate
from zoo.hub.store import CARD
from zoo.release.publish import publish

pytest_plugins = ["hub_fixtures"]

FEW = {"max_train": 60, "max_test": 30}


def test_an_address_on_the_hub_is_measured_as_the_run_that_was_published_and_keeps_its_card(tiny_run, hub: LoopbackHub):
    publish(tiny_run, repo=REPO)
    there = score(f"hf://{REPO}", **FEW)  # on digits, its own data, with its baselines
    before = (locate(f"hf://{REPO}") / CARD).read_bytes()
    here = score(tiny_run, **FEW)
    assert [(row.encoder, row.value) for row in there] == [(row.encoder, row.value) for row in here]
    assert [row.encoder.name for row in there] == ["simco-r20-digits", "random r20", "pixels"]
    assert (locate(f"hf://{REPO}") / CARD).read_bytes() == before


def test_the_command_line_says_that_a_published_card_stays_as_it_is(tiny_run, hub: LoopbackHub, monkeypatch, capsys):
    publish(tiny_run, repo=REPO)
    monkeypatch.setattr(sys, "argv", ["eval.score", f"hf://{REPO}@main", "--max-train", "60", "--max-test", "30"])
    main()
    said = capsys.readouterr()
    assert "| simco-r20-digits | 64 |" in said.out
    assert f"hf://{REPO}@main is not yours to change: its card stays as it is" in said.err


def test_a_repository_of_timms_is_measured_without_baselines_and_has_no_data_of_its_own(hub: LoopbackHub, tmp_path):
    torch.manual_seed(0)
    network = timm.create_model("test_resnet.r160_in1k", pretrained=False)
    network.pretrained_cfg |= {"interpolation": "bicubic"}  # all that zoo.load does
    timm.models.save_for_hf(network, tmp_path / "pushed", safe_serialization=True)
    hub.repos["someone/net"] = Repo()
    hub.repos["someone/net"].commit({path.name: path.read_bytes() for path in (tmp_path / "pushed").iterdir()})
    (row,) = score("hf://someone/net", data={"digits": None}, **FEW)
    assert (row.encoder.name, row.encoder.image_size) == ("someone/net", 160)
    assert row.value > 0.2
    for model in ("hf://someone/net", "timm/whatever"):
        with pytest.raises(BadData, match=f"{model}: no data set of its own; say which with --data"):
            score(model, **FEW)


def test_an_address_that_is_not_there_is_one_line(hub: LoopbackHub):
    with pytest.raises((NoWeights, OSError), match="no-one/nothing"):
        score("hf://no-one/nothing", data={"digits": None}, **FEW)
