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
    assert re.split(" {2,}", line) == [
        *("simco-r20-digits", "8", "64", "0.27 M", "here, 1.1 MB", "97.22 % k-NN, digits", "none published")
    ]
    monkeypatch.setattr("sys.argv", ["zoo", "list", "--method", "simclr"])
    main()
    assert "recipe only" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["zoo", "list", "--method", "nobody"])
    with pytest.raises(SystemExit, match="no model matches"):
        main()


def test_the_list_tells_where_weights_are_their_licence_and_published_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr("sys.argv", ["zoo", "list"])
    main()
    head, *lines = capsys.readouterr().out.splitlines()
    columns = ("weights", "licence", "own top-1 accuracy", "published")
    starts = [head.index(word) for word in columns]

    def cells(name: str) -> tuple[str, ...]:
        (line,) = (line for line in lines if line.split()[0] == name)
        return tuple(line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True))

    weights, licence, own, published = cells("mocov2-r50-in1k")
    assert (weights, licence, own) == ("to fetch, 94.2 MB kept", "CC-BY-NC-4.0", "")
    assert published.startswith("67.7 % top-1 on ImageNet by linear evaluation, as stated by the publisher")
    assert cells("mocov3-vitb16-in1k-mm")[:2] == ("to fetch, 343.2 MB kept", "Apache-2.0")
    assert cells("simco-r20-cifar100")[:2] == ("bundled, 0.6 MB", "Apache-2.0")
    assert re.match(r"\d\d\.\d\d % k-NN", cells("simco-r20-cifar100")[2])
    assert cells("simco-r18-cifar10")[:3] == ("recipe only", "", "")
    assert cells("simclr-r50-in1k")[0] == "2 variants"
