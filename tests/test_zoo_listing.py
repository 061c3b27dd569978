"""`zoo.list`, and `zoo list` as a table."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

import zoo
from zoo.cli.main import main
from zoo.hub.store import keep
from zoo.hub.table import published_result
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
    assert re.split(" {2,}", line) == [*("simco-r20-digits", "8", "64", "0.27 M", "here, 1.1 MB", "97.22 %")]
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
    columns = ("weights", "licence", "k-NN", "linear", "published")
    starts = [head.index(word) for word in columns]

    def cells(name: str) -> tuple[str, ...]:
        (line,) = (line for line in lines if line.split()[0] == name)
        return tuple(line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True))

    assert cells("mocov2-r50-in1k") == ("to fetch, 94.2 MB", "CC-BY-NC-4.0", "", "", "67.7 % ImageNet")
    assert cells("mocov3-vitb16-in1k-mm")[:2] == ("to fetch, 343.2 MB", "Apache-2.0")
    assert cells("simco-r20-cifar100")[:2] == ("bundled, 0.6 MB", "Apache-2.0")
    assert cells("mocov2-r20-cifar100")[2:] == ("28.95 %", "31.58 %", "")
    assert cells("simco-r18-cifar10")[:4] == ("recipe only", "", "", "")
    assert cells("simclr-r50-in1k")[0] == "2 variants"
    assert max(map(len, [head, *lines])) <= 140


def test_the_table_is_a_row_of_numbers_for_each_name():
    rows = zoo.table(method="mocov2", dataset="in1k")
    assert [row["name"] for row in rows] == zoo.list(method="mocov2", dataset="in1k")
    row = rows[0]
    assert (row["image_size"], row["dim"], row["weights"], row["bytes"]) == (224, 2048, "to fetch", 94_245_032)
    assert (row["published"], row["published_data"], row["knn"]) == (0.677, "ImageNet", None)
    (own,) = zoo.table("mocov2-r20-cifar100")
    assert (own["weights"], own["licence"], own["published"]) == ("bundled", "Apache-2.0", None)
    assert (round(own["knn"], 4), round(own["linear"], 4)) == (0.2895, 0.3158)
    assert pandas.DataFrame(rows).set_index("name").published["mocov2-r50-in1k"] == 0.677


def test_the_table_is_made_without_torch_and_pandas():
    code = "import sys, zoo; zoo.table(); sys.exit(bool({'torch', 'pandas', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("expects", "result"),
    [
        ("53.28 % top-1 on the CIFAR-100 test set by the online linear probe (table 5)", (0.5328, "CIFAR-100")),
        ("78.20 % online, 79.28 % offline top-1 on ImageNet-100 by linear probes", (0.7928, "ImageNet-100")),
        ("82.6 % top-1 on the CIFAR-10 test set by k-NN (k 200, T 0.1)", (0.826, "CIFAR-10 k-NN")),
        ("about 91 % top-1 on the CIFAR-10 test set by linear evaluation", (0.91, "CIFAR-10")),
        ("none published; with the paper's recipe, 58.35 % top-1 by the online linear probe", (None, "")),
        ("a cell of table 8, not available as text", (None, "")),
    ],
)
def test_the_published_number_is_the_one_a_card_begins_with(expects: str, result: tuple[float | None, str]):
    assert published_result(expects) == result
