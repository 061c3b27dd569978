"""The study of MoCo's two dictionaries."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from train.key_queue import KeyQueue
from train.methods.dictionaries import chosen
from train.recipe import find_recipe, recipes
from train.run_log import read_log
from train.study import draw, settings, study
from zoo.errors import BadNumber, UnknownName
from zoo.model.encoder import new_encoder


def test_recent_and_earliest_keys_are_counted_from_the_queues_end_and_random_ones_change_with_the_draw():
    queue = KeyQueue(5, 7)
    queue.enqueue(torch.eye(7))  # of seven keys the queue holds 2 .. 6
    draw = torch.tensor(0)

    def keys(n: int, sampling: str, draw: torch.Tensor = draw) -> list[int]:
        return chosen(queue, n, sampling, draw).argmax(1).tolist()

    assert keys(2, "earliest") == [2, 3]
    assert keys(2, "recent") == [6, 5]
    assert sorted(keys(0, "recent")) == sorted(keys(5, "random")) == [2, 3, 4, 5, 6]
    draws = [tuple(keys(2, "random", torch.tensor(step))) for step in range(200)]
    assert all(len(set(pair)) == 2 for pair in draws)
    assert len(set(draws)) == 20  # every ordered pair comes


def test_a_dictionary_larger_than_the_queue_is_refused():
    recipe = replace(find_recipe("mocov2-r20-cifar100-study"), queue_size=16, vector_keys=17)
    with pytest.raises(BadNumber, match=r"vector_keys = 17; allowed: 1 \.\. queue_size = 16, or 0 for all"):
        recipe.method(new_encoder(recipe.name))


def test_the_figures_compare_each_dictionary_alone_from_64_keys_to_all():
    table = settings(65536)
    assert [row.get("vector_keys", 65536) for row in table["vector"]] == [64, 256, 1024, 4096, 16384, 65536]
    assert [row.get("scalar_keys", 65536) for row in table["scalar"]] == [64, 256, 1024, 4096, 16384, 65536]
    assert all(row["vector_keys"] == 256 and "scalar_keys" not in row for row in table["sampling"])
    with pytest.raises(UnknownName, match="sampling"):
        study(find_recipe("mocov2-r20-cifar100-study"), parts=["sample"])


def test_the_picture_shows_accuracy_over_sizes_entropy_over_steps_and_accuracy_by_sampling():
    entropy = {"anchor_entropy": [[1, 2.0], [5, 1.0]]}
    found = {
        "vector": [{"changes": {"vector_keys": 64}, "online_test": 0.4} | entropy, {"changes": {}} | entropy],
        "scalar": [{"changes": {}, "knn_held_out": 0.5} | entropy],
        "sampling": [{"changes": {"sampling": "random"}, "online_test": 0.3, "knn_held_out": 0.9} | entropy],
    }
    sizes, curves, bars = draw(found, 4096).axes
    assert [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in sizes.lines] == [
        ([64], [0.4]),
        ([4096], [0.5]),
    ]
    assert curves.lines[0].get_ydata().tolist() == [2.0, 1.0]
    assert curves.lines[0].get_label() == "whole queue"
    assert [bar.get_height() for bar in bars.patches] == [0.3]  # the paper's number is the online one


@pytest.mark.slow
def test_a_study_leaves_the_entropy_of_every_run_and_one_picture_and_goes_on(tmp_path: Path, monkeypatch):
    recipe = replace(
        find_recipe("mocov2-r20-cifar100-study"), name="mocov2-r20-digits", batch_size=32, epochs=1, queue_size=48,
        hidden=16,
    )  # fmt: skip
    catalogue = recipes() | {recipe.name: recipe}
    monkeypatch.setattr("train.recipe.recipes", lambda: catalogue)
    folder = study(recipe, out=tmp_path, limit=160, knn_every=1, parts=["sampling"])
    rows = json.loads((folder / "study.json").read_text())["parts"]["sampling"]
    assert [row["changes"]["sampling"] for row in rows] == ["earliest", "random", "recent"]
    for row in rows:
        assert 0 <= row["online_test"] <= 1
        assert [step for step, _ in row["anchor_entropy"]] == [1, 5]
        assert all(0 < entropy <= math.log(32) + 1e-5 for _, entropy in row["anchor_entropy"])
    assert (folder / "study.svg").read_text().count("<svg") == 1
    runs = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert runs == [f"vector_keys-48-sampling-{which}" for which in ("earliest", "random", "recent")]
    before = {name: read_log(folder / name) for name in runs}
    study(recipe, out=tmp_path, limit=160, knn_every=1, parts=["sampling"])
    assert {name: read_log(folder / name) for name in runs} == before  # nothing has been trained again
