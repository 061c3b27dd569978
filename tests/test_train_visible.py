"""What a training shows: alarms that name the culprit, and one page at the end."""

import json
import math
import os
import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import CHROMIUM, opened
from safetensors.torch import load_file
from tqdm import tqdm

from train.key_queue import key_age
from train.method import Batch, Step, loss_of
from train.monitor import StepMetrics, collapse_warning, first_bad_tensor, gradient_norms, leak_warning, spectrum
from train.options import Options
from train.pretrain import pretrain
from train.recipe import find_recipe
from train.run_log import read_log
from train.watch import Watch, printable, skipped_line
from zoo.errors import ZooError
from zoo.hub.store import read_card
from zoo.images.opening import open_images
from zoo.model.encoder import new_encoder

SMALL = {"batch_size": 32, "epochs": 2, "warmup_epochs": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("visible") / "run"
    return pretrain(replace(find_recipe("simco-r20-digits"), **SMALL), out=folder, limit=128, knn_every=1)


class _Page(HTMLParser):
    """Everything that a browser would have to fetch, and the balance of the tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href", "xlink:href") and value]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "br", "img"):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_is_one_file_with_curves_views_recipe_and_versions(run):
    text = (run / "report.html").read_text()
    page = _Page(text)
    assert not page.open
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.fetched)
    assert text.count("<svg") == 9  # loss, k-NN, online, pretext, learning rate, gradients, spread, rank, spectrum
    assert len([link for link in page.fetched if link.startswith("data:")]) == 1
    recipe = find_recipe("simco-r20-digits")
    for entry in ("intra_temperature", "crop_area", "torch", "seconds", "hardware", recipe.paper.split()[0]):
        assert entry in text


@pytest.fixture(scope="module")
def momentum_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = replace(
        find_recipe("mocov3-r18-cifar100"), name="mocov3-r20-digits", **SMALL | {"hidden": 16, "projection": 8}
    )
    return pretrain(recipe, out=tmp_path_factory.mktemp("momentum") / "run", limit=128, knn_every=1)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # httpx-ws leaves its socket to the garbage collector
def test_the_report_opens_in_a_browser_and_shows_all_of_the_run(momentum_run, tmp_path):
    card = read_card(momentum_run)
    with opened((momentum_run / "report.html").as_uri(), tmp_path / "profile") as page:
        page.wait_for("document.readyState === 'complete' && document.title === 'mocov3-r20-digits'")
        large = "(svg) => svg.getBoundingClientRect().width > 300"
        svgs = f"[...document.querySelectorAll('figure svg')].filter({large})"
        plots = page.run(f"{svgs}.map((svg) => svg.textContent)")
        (image,) = page.run("[...document.images].map((image) => [image.naturalWidth, image.naturalHeight])")
        cells = "(tr) => [...tr.cells].map((cell) => cell.textContent)"
        rows = dict(page.run(f"[...document.querySelectorAll('tr')].map({cells})"))
        fetched = page.run("performance.getEntriesByType('resource').map((entry) => entry.name)")
    titles = ["Loss in nats", "Learning rate", "Momentum of the key encoder", "k-NN accuracy", "Online linear probe"]
    titles += ["Pretext accuracy", "Gradient norm", "Spread of unit", "Effective rank", "Spectrum at the end"]
    for title in titles:
        assert sum(title in plot for plot in plots) == 1, title
    assert len(plots) == len(titles)
    assert "floor" in next(plot for plot in plots if "Loss in nats" in plot)
    assert image == [16 * 8, 2 * 8]  # two views of 16 images
    assert float(rows["seconds"]) == card.training["seconds"] > 0
    assert json.loads(rows["view1"]) == card.recipe["view1"]
    assert float(rows["temperature"]) == card.recipe["temperature"]
    assert rows["torch"] == card.training["versions"]["torch"] == version("torch")
    assert all(name.startswith("data:") for name in fetched)


def test_every_look_logs_the_momentum_of_the_key_encoder(momentum_run):
    """MoCo v3, section 4: from 0.99 to 1 by half a cosine; here after 1, 4 and 8 updates of 8."""
    found = [line["key_momentum"] for line in read_log(momentum_run)]
    assert found == pytest.approx([1 - 0.01 * (1 + math.cos(math.pi * done / 8)) / 2 for done in (1, 4, 8)])


def test_every_epoch_logs_the_features_and_every_look_the_gradients_of_all_steps_since_the_last(run):
    lines = read_log(run)
    assert [line["step"] for line in lines] == [1, 4, 8]
    assert lines[0]["gradient_first"] == lines[0]["gradient_first_max"]
    assert all(line["gradient_first"] < line["gradient_first_max"] for line in lines[1:])  # of three and four steps
    assert all(0 <= line["pretext_accuracy"] <= 1 for line in lines)
    assert all(line["gradient_first"] > 0 and line["gradient_last"] > 0 for line in lines)
    assert [line["step"] for line in lines if 1 < line.get("rank", 0) <= 64 and 0 < line["std"] <= 1] == [4, 8]
    assert [line["step"] for line in lines if "knn_held_out" in line] == [4, 8]


def test_the_spectrum_of_isotropic_features_is_flat_and_of_equal_ones_a_point():
    rng = np.random.default_rng(0)
    wide = spectrum(rng.standard_normal((4000, 8)).astype(np.float32))
    assert wide.std == pytest.approx(1, abs=0.01)
    assert wide.rank == pytest.approx(8, abs=0.02)
    plane = spectrum((rng.standard_normal((500, 2)) @ rng.standard_normal((2, 8))).astype(np.float32))
    assert 1 < plane.rank < 2.01
    assert not collapse_warning(wide)
    equal = spectrum(np.ones((50, 8), np.float32) + 1e-4 * rng.standard_normal((50, 8)).astype(np.float32))
    assert equal.std < 1e-3
    assert "the encoder has collapsed" in collapse_warning(equal)
    assert "Lower --learning-rate" in collapse_warning(equal)
    assert spectrum(np.zeros((4, 3), np.float32)).std == 0


def test_an_untrained_encoder_has_not_collapsed():
    from train.monitor import online_spectrum

    for seed in range(3):
        torch.manual_seed(seed)
        seen = online_spectrum(new_encoder("simco-r20-digits"), open_images("digits", "train"))
        assert not collapse_warning(seen), seen[:2]


def test_gradient_norms_are_of_the_first_and_the_last_matrix():
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    network(torch.rand(5, 3)).sum().backward()
    norms = gradient_norms(network)
    assert torch.equal(norms["gradient_first"], network[0].weight.grad.norm())
    assert torch.equal(norms["gradient_last"], network[2].weight.grad.norm())


def test_the_first_layer_of_mocov3s_transformer_is_the_first_one_that_learns():
    """Not the class token, a parameter of two and more dimensions that stands before it."""
    recipe = replace(find_recipe("mocov3-vitt4-cifar10"), hidden=16)
    method = recipe.method(new_encoder("mocov3-vitt4-digits"))
    views = tuple(torch.rand(2, 4, 3, 8, 8))
    loss_of(method, method.project(views), Batch(views, torch.arange(4), 0.5)).loss.backward()
    norms = gradient_norms(method)
    assert torch.equal(norms["gradient_first"], method.encoder.backbone.blocks[0].attn.qkv.weight.grad.norm())
    assert torch.equal(norms["gradient_last"], method.predictor[-2].weight.grad.norm())


def test_every_step_counts_between_two_looks():
    every = StepMetrics()
    for value in (1.0, 2.0, 6.0):
        every.add({"gradient_first": torch.tensor(value), "pretext_accuracy": torch.tensor(value / 10)})
    seen = every.take()
    assert seen == pytest.approx({"gradient_first": 3, "gradient_first_max": 6, "pretext_accuracy": 0.3})
    every.add({"gradient_first": torch.tensor(5.0)})
    assert every.take() == {"gradient_first": 5, "gradient_first_max": 5}


def test_a_solved_pretext_task_with_falling_knn_is_told_with_the_remedy():
    line = leak_warning(0.99, 0.20, 0.50, held_out=2000)
    assert "solved (99.0 %) while k-NN has fallen from 50.0 to 20.0 %" in line
    assert "--batchnorm auto" in line
    assert not leak_warning(0.90, 0.20, 0.50, held_out=2000)  # not solved
    assert not leak_warning(0.99, 0.47, 0.50, held_out=2000)  # 1.9 standard deviations
    assert not leak_warning(0.99, 0.30, 0.50, held_out=20)  # chance, among so few


def test_a_run_that_leaks_is_warned_once_and_goes_on_knowing_its_best(run, tmp_path, capsys):
    """The alarm reads the log, so a run that goes on after a stop remembers what it has lost."""
    folder = tmp_path / "run"
    recipe = find_recipe("mocov2-r18-cifar100")
    method = replace(recipe, queue_size=64, hidden=16).method(new_encoder("simco-r20-digits"))
    torch.nn.init.zeros_(method.encoder.backbone.conv1.weight)  # sees nothing
    split = open_images("digits", "train").sample(600)
    folder.mkdir()
    (folder / "log.jsonl").write_text('{"step": 1, "knn_held_out": 1.0}\n')
    with Watch(
        folder, replace(recipe, batch_size=32), method, split, split, step=1, total=3, options=Options(knn_every=1)
    ) as watch:
        for step in (2, 3):
            watch.step(Step(torch.zeros(()), (), {"pretext_accuracy": torch.ones(())}))
            watch.log(step, float(step), loss=torch.zeros(()), learning_rate=0.1)
    assert capsys.readouterr().out.count("batch statistics may tell which key belongs to which query") == 1
    assert [line.get("pretext_accuracy") for line in read_log(folder)] == [None, 1, 1]


def test_without_a_bar_the_numbers_are_logged_all_the_same(tmp_path, monkeypatch):
    """As TQDM_DISABLE=1 has it; tqdm reads that once, when it is imported."""
    monkeypatch.setattr("train.watch.tqdm", partial(tqdm, disable=True))
    recipe = replace(find_recipe("simco-r18-cifar100"), batch_size=32)
    method, split = recipe.method(new_encoder("simco-r20-digits")), open_images("digits", "train").sample(100)
    with Watch(tmp_path, recipe, method, split, split, step=0, total=3, options=Options(knn_every=0)) as watch:
        watch.step(Step(torch.zeros(()), (), {}))
        watch.log(1, 0.5, loss=torch.tensor(2.5), learning_rate=0.1)
    assert [line["loss"] for line in read_log(tmp_path)] == [2.5]


def test_a_queue_beyond_half_the_data_set_and_the_age_of_its_keys_are_told_before_the_first_step(tmp_path, capsys):
    recipe = replace(
        find_recipe("mocov2-r18-cifar100"), name="mocov2-r20-digits", **SMALL | {"queue_size": 96, "hidden": 16}
    )
    method = recipe.method(new_encoder(recipe.name))
    split = open_images("digits", "train").sample(128)
    for images, said in ((split, 1), (split.sample(96), 1), (open_images("digits", "train"), 0)):
        with Watch(tmp_path, recipe, method, images, images, step=0, total=8, options=Options(knn_every=0)):
            pass
        told = capsys.readouterr().out
        assert told.count("warning: a queue of 96 keys") == said, len(images)
        assert "keys are 100 steps old (newest) to 102 (oldest): up to 3 in the queue, and 99 that" in told
    assert method.remarks(128, 32)[1].endswith("Choose --queue-size 64 or less (4096 is usual)")


def test_the_age_of_keys_is_j_plus_m_over_1_minus_m():
    assert "1,000 steps old (newest) to 1,255 (oldest): up to 256 in the queue, and 999" in key_age(
        65536, 256, key_momentum=0.999
    )
    assert "never moves" in key_age(8, 8, key_momentum=1.0)


def test_the_first_bad_tensor_is_named():
    torch.manual_seed(0)
    recipe = find_recipe("simco-r20-digits")
    views = tuple(torch.rand(2, 4, 3, 8, 8))

    def bad(change):
        method = recipe.method(new_encoder(recipe.name))
        change(method)
        return first_bad_tensor(method, views)

    nan = torch.nan
    assert bad(lambda m: None) == "the loss itself"
    assert bad(lambda m: m.encoder.backbone.layer2[0].conv1.weight.data.fill_(nan)) == (
        "encoder.backbone.layer2.0.conv1.weight"
    )
    assert bad(lambda m: m.encoder.backbone.bn1.running_var.fill_(nan)) == "encoder.backbone.bn1.running_var"
    huge = bad(lambda m: m.encoder.backbone.conv1.weight.data.fill_(3e38))
    assert huge == "the output of encoder.backbone.conv1"
    method = recipe.method(new_encoder(recipe.name))
    assert first_bad_tensor(method, (views[0], views[1] * nan)) == "view2"


def test_a_broken_loss_names_the_tensor_and_saves_the_batch(tmp_path):
    recipe = replace(find_recipe("simco-r20-digits"), **SMALL | {"learning_rate": 1e20, "warmup_epochs": 0})
    told = "the first tensor that is not finite: .* No checkpoint had been saved yet. Start again with a lower --learn"
    with pytest.raises(ZooError, match=told) as caught:
        pretrain(recipe, out=tmp_path / "run", limit=128, knn_every=0)
    saved = Path(re.search(r"The batch is in (\S+)\. ", str(caught.value)).group(1))
    views = load_file(saved)
    assert views["view1"].shape == views["view2"].shape == (32, 3, 8, 8)
    step = int(re.search(r"after (\d+) steps", str(caught.value)).group(1))
    assert saved.name == f"bad-batch-{step:08d}.safetensors"
    from train.batches import batches
    from train.views import Views

    again = Views(recipe.view1, recipe.view2, size=8, seed=recipe.seed)
    images = open_images("digits", "train").sample(128)
    ((_, pixels),) = batches(images, again, first=step - 1, last=step, batch_size=32)
    assert torch.equal(again(pixels, step - 1)[0], views["view1"])  # the batch can be made again from its step


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ({"": 4}, "no online_test at the end: the test split of digits has no labels"),
        ({"a": 3, "": 5}, "on 3 test images"),
        ({}, "no test split for the online probe, so no online_test at the end: "),
    ],
)
def test_a_test_split_without_labels_does_not_cost_a_run_its_end(test, told, tmp_path, capsys):
    """The probe's last number is of it; images of the test split without a label do not count."""
    from PIL import Image

    counts = {"train/a": 80, "train/b": 80} | {f"test/{name}": n for name, n in test.items()}
    for name, n in counts.items():
        (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            Image.new("RGB", (8, 8), (i, 3 * i, 255 - i)).save(tmp_path / "data" / name / f"{i}.png")
    recipe = replace(find_recipe("simco-r20-digits"), **SMALL | {"epochs": 1, "batch_size": 80})
    folder = pretrain(recipe, out=tmp_path / "run", data=tmp_path / "data", knn_every=1)
    assert read_card(folder).training["steps"] == 2
    assert told in capsys.readouterr().out
    lines = read_log(folder)
    assert ("online_test" in lines[-1]) == ("a" in test)
    assert "knn_held_out" in lines[-1]


def test_skipped_images_are_counted_five_of_them_named_and_all_kept_in_a_file(tmp_path, capsys):
    """What a run finds later counts on, and one that goes on after a stop adds to the file."""
    recipe = replace(find_recipe("simco-r20-digits"), **SMALL)
    method, size = recipe.method(new_encoder(recipe.name)), {"step": 0, "total": 8, "options": Options(knn_every=0)}
    lines = [f"{i}.png: broken" for i in range(9)]
    split = open_images("digits", "test")
    for lot in (lines[:7], lines[:3] + lines[7:]):
        found = replace(split, skipped=dict(line.split(": ") for line in lot))
        with Watch(tmp_path, recipe, method, found, split, **size):
            pass
    told = capsys.readouterr().out
    assert "7 of 359 images cannot be decoded and are left out: 0.png: broken; 1.png: broken; 2.png" in told
    assert f"4.png: broken ... and 2 more. All are in {tmp_path / 'skipped.txt'}" in told
    assert (tmp_path / "skipped.txt").read_text().splitlines() == lines
    later = skipped_line(lines, 7, of=359)
    assert later == "2 more of 359 images cannot be decoded and are left out (9 in all): 7.png: broken; 8.png: broken"


def test_a_files_name_of_any_bytes_is_told_in_one_line_of_utf8():
    assert printable(os.fsdecode(b"caf\xe9\n.png") + ": broken") == r"caf\udce9 .png: broken"


def test_bf16_keeps_the_loss_in_float32_and_learns_the_same(tmp_path, monkeypatch):
    """`--mixed_precision bf16` of accelerate, which stands in this variable: on CPUs, too."""
    from accelerate.state import AcceleratorState

    recipe = replace(find_recipe("simco-r20-digits"), **SMALL)
    plain = pretrain(recipe, out=tmp_path / "plain", limit=128, knn_every=0)
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    kinds = []
    from train.methods.dual_temperature import SimCo

    project, loss = SimCo.project, SimCo.loss

    def project_watched(self, views):
        pairs = project(self, views)
        kinds.append(pairs[0].query.dtype)
        return pairs

    def loss_watched(self, pairs, batch):
        step = loss(self, pairs, batch)
        kinds.append(step.loss.dtype)
        return step

    try:
        monkeypatch.setattr(SimCo, "project", project_watched)
        monkeypatch.setattr(SimCo, "loss", loss_watched)
        half = pretrain(recipe, out=tmp_path / "half", limit=128, knn_every=0)
        assert kinds == [torch.bfloat16, torch.float32] * 8
        with pytest.raises(ZooError, match="precision: no -> bf16"):
            pretrain(recipe, out=tmp_path / "plain", limit=128, knn_every=0)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    losses = [[line["loss"] for line in read_log(folder)] for folder in (plain, half)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], abs=0.05)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # C++ compilers take their time on a busy machine
def test_a_compiled_run_has_the_loss_curve_of_an_uncompiled_one_and_its_encoder_loads(run, tmp_path):
    import zoo

    recipe = replace(find_recipe("simco-r20-digits"), **SMALL)
    compiled = pretrain(recipe, out=tmp_path / "run", limit=128, knn_every=1, compile=True)
    losses = [[line["loss"] for line in read_log(folder)] for folder in (run, compiled)]
    assert losses[0][0] == pytest.approx(losses[1][0], abs=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)  # at a high rate float32 curves part at ReLU kinks
    assert zoo.load(compiled).card.training["steps"] == 8
