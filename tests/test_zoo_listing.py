"""`zoo.list`, and `zoo list` as a table."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import zoo
from zoo.cli.main import main
from zoo.hub.store import keep
from zoo.model.card import Card
from zoo.model.encoder import Encoder, save_encoder


def test_the_list_is_filtered_by_every_part_of_the_name():
    assert zoo.list(method="simclr", dataset="cifar10") == ["simclr-r18-cifar10", "simclr-r18-cifar10-solo"]
    assert zoo.list("simco*", backbone="r20") == ["simco-r20-cifar100", "simco-r20-digits"]
    assert zoo.list(method="nobody") == []
    assert set(zoo.list(backbone="r18")) == {name for name in zoo.list() if "-r18-" in name}


def test_zoo_list_is_a_table_with_accuracy_parameters_and_size(
    tmp_path: Path, encoder: Encoder, card: Card, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    row = {"key": "k", "encoder": card.name, "protocol": "k-NN, cosine", "dataset": "digits", "value": 0.9722}
    row |= {"metric": "top-1 accuracy"}
    recall, baseline = row | {"metric": "recall@1", "value": 0.5}, row | {"encoder": "pixels:8", "value": 0.4}
    save_encoder(encoder, tmp_path / "run", replace(card, results=(row, recall, baseline)))
    keep(tmp_path / "run")
    monkeypatch.setattr("sys.argv", ["zoo", "list", "*digits"])
    main()
    head, line = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "name"
    assert re.split(" {2,}", line) == ["simco-r20-digits", "8", "64", "0.27 M", "1.1", "97.22 % k-NN, digits"]
    monkeypatch.setattr("sys.argv", ["zoo", "list", "--method", "simclr"])
    main()
    assert "no weights yet; expects" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["zoo", "list", "--method", "nobody"])
    with pytest.raises(SystemExit, match="no model matches"):
        main()
