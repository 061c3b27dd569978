"""The loop: learns, resumes bit for bit after a kill, refuses what would spoil a run."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from training_process import finish, start

import zoo
from train.checkpoint import Progress, last_checkpoint, read_checkpoint, read_progress, restore, save_checkpoint
from train.method import Batch, Method, Step, loss_of
from train.optim import make_optimizer
from train.pretrain import main, pretrain
from train.recipe import differences, find_recipe
from train.run_folder import RunFolder
from train.run_log import RunLog, read_log
from train.stopping import exit_on_user_error
from zoo.errors import BadData, BadNumber, CorruptFile, UnknownName, ZooError, how_to_install
from zoo.hub.store import read_card, sha256
from zoo.model.encoder import new_encoder
from zoo.processes import MPI_SIZES, check_launch, processes_asked_for, starting

ROOT = Path(__file__).parents[1]
SMALL = {"batch_size": 64, "epochs": 4, "warmup_epochs": 1}


@pytest.fixture
def recipe():
    return replace(find_recipe("simco-r20-digits"), **SMALL)


def launch(out: Path, *flags: str, name: str = "simco-r20-digits") -> subprocess.Popen[str]:
    """The command a user types, in its own process; one thread, so that two runs share a machine."""
    words = [sys.executable, "train/pretrain.py", name, "--out", str(out), *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_a_short_training_lowers_the_loss_and_beats_random_initialisation(recipe, tmp_path):
    folder = pretrain(recipe, out=tmp_path / "run", knn_every=4)
    lines = read_log(folder)
    losses = [line["loss"] for line in lines if "loss" in line]
    start, floor = recipe.method(zoo.load(folder)).loss_range(64)
    assert abs(losses[0] - start) < 0.5
    assert floor < losses[-1] < losses[0] - 0.7
    from eval.score import score

    trained, random, _ = score(folder)
    assert trained.value > random.value + 0.03
    (knn,) = (line["knn_held_out"] for line in lines if "knn_held_out" in line)
    assert knn > 0.8


def test_the_card_records_the_run_and_expects_nothing_of_a_changed_recipe(recipe, tmp_path):
    card = read_card(pretrain(recipe, out=tmp_path / "run", limit=128, knn_every=0))
    assert card.training["steps"] == 4 * 2
    assert card.training["images"] == 128
    assert card.recipe["epochs"] == 4
    assert card.expects.startswith("none published with epochs: ")
    assert card.weights.sha256 == sha256(tmp_path / "run" / "model.safetensors")


def test_the_same_command_twice_gives_the_same_weights_and_another_seed_others(recipe, tmp_path):
    digests = [
        sha256(pretrain(replace(recipe, seed=seed), out=tmp_path / out, limit=128, knn_every=0) / "model.safetensors")
        for out, seed in {"a": 1, "b": 1, "c": 2}.items()
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.slow
def test_the_command_goes_on_after_a_kill_to_the_same_weights_bit_for_bit(tmp_path):
    """As in test_train_exact, through the command line."""
    flags = ("--epochs", "6", "--batch-size", "64", "--limit", "512", "--knn-every", "0")
    whole = launch(tmp_path / "whole", *flags)
    killed = launch(tmp_path / "killed", *flags)
    checkpoints = tmp_path / "killed" / "checkpoints"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (checkpoints.is_dir() and last_checkpoint(checkpoints)):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    found = read_progress(last_checkpoint(checkpoints))
    assert 8 <= found.step < 48
    again = launch(tmp_path / "killed", *flags)
    outputs = [process.communicate(timeout=200)[0] for process in (whole, again)]
    assert (whole.returncode, again.returncode) == (0, 0), outputs
    assert sha256(tmp_path / "killed/model.safetensors") == sha256(tmp_path / "whole/model.safetensors")
    steps = [line["step"] for line in read_log(tmp_path / "killed")]
    assert steps == sorted(set(steps))
    losses = [[line["loss"] for line in read_log(tmp_path / run)] for run in ("whole", "killed")]
    assert losses[0] == losses[1]


def test_a_finished_run_does_nothing_when_started_again(recipe, tmp_path):
    folder = pretrain(recipe, out=tmp_path / "run", limit=64, knn_every=0)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    pretrain(recipe, out=folder, limit=64, knn_every=0)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_other_numbers_or_other_data_in_the_same_folder_are_refused_with_the_difference(recipe, tmp_path):
    folder = pretrain(recipe, out=tmp_path / "run", limit=64, knn_every=0)
    with pytest.raises(ZooError, match=r"intra_temperature: 0\.1 -> 0\.3"):
        pretrain(replace(recipe, intra_temperature=0.3), out=folder, limit=64)
    with pytest.raises(ZooError, match="images: 64 -> 65"):
        pretrain(recipe, out=folder, limit=65)
    assert "view1.crop_area: [0.1, 1.0] -> [0.3, 1.0]" in differences(
        {"view1": {"crop_area": [0.1, 1.0]}}, {"view1": {"crop_area": [0.3, 1.0]}}
    )


def test_two_trainings_in_one_folder_are_refused(recipe, tmp_path):
    run = tmp_path / "run"
    first = start("simco", run, changes={"epochs": 1000})
    while first.is_alive() and not (run / "log.jsonl").exists():
        time.sleep(0.02)
    with pytest.raises(ZooError, match=f"another process trains in {run}; wait for it, or give another --out"):
        pretrain(recipe, out=run, limit=64)
    first.kill()
    assert finish(first) == -signal.SIGKILL


def test_a_run_that_diverges_before_its_loss_does_stops_and_keeps_the_last_good_state(recipe, tmp_path):
    """One step an epoch, the first at rate 0, the second far too large."""
    run = tmp_path / "run"
    told = r"features are no longer finite. The last good state is in .*step-00000001.* lower --learning-rate, .* --out"
    with pytest.raises(ZooError, match=told):
        pretrain(replace(recipe, learning_rate=1e20, warmup_epochs=2), out=run, limit=64, knn_every=0)
    (kept,) = (run / "checkpoints").iterdir()
    assert read_progress(kept).step == zoo.load(run).card.training["steps"] == 1
    assert all(value.isfinite().all() for value in load_file(kept).values())


def test_a_state_that_is_not_finite_is_never_saved(recipe, tmp_path):
    method = recipe.method(new_encoder(recipe.name))
    optimizer = make_optimizer("sgd", method, lr=0.1, momentum=0.9, weight_decay=0)
    progress = Progress(0, 0.0, {"images": 64, "data": ""})
    kept = RunFolder(tmp_path, recipe, method, optimizer, Accelerator(cpu=True), progress=progress, total=4)
    method.projector[0].weight.data[0, 0] = math.inf
    with pytest.raises(ZooError, match=r"after 3 steps projector\.0\.weight is not finite"):
        kept.save(3)
    assert not list(tmp_path.iterdir())


def test_batches_that_do_not_fit_are_refused(recipe, tmp_path):
    with pytest.raises(BadData, match="63 images are fewer than one batch of 64"):
        pretrain(recipe, out=tmp_path / "run", limit=63)
    with pytest.raises(ValueError, match="batch_size = 1; at least 2"):
        replace(recipe, batch_size=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", math.nan),
        ("weight_decay", math.inf),
        ("momentum", 1.0),
        ("seed", -1),
        ("projection", 0),
        ("intra_temperature", 0.0),
        ("inter_temperature", math.nan),
        ("inter_temperature", -math.inf),
    ],
)
def test_numbers_without_a_meaning_are_refused_before_anything_is_written(name, value):
    with pytest.raises(BadNumber, match=f"^{name} = "):
        replace(find_recipe("simco-r20-digits"), **{name: value})


@pytest.mark.parametrize(
    ("flag", "value", "least"),
    [("limit", -5, 1), ("limit", 0, 1), ("knn_every", -1, 0), ("chunk", -1, 0), ("workers", 0, 1)],
)
def test_flags_without_a_meaning_are_refused_before_anything_is_written(flag, value, least, recipe, tmp_path):
    with pytest.raises(BadNumber, match=f"^{flag} = {value}; at least {least} is needed$"):
        pretrain(recipe, out=tmp_path / "run", **{flag: value})
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_cannot_be_one_is_named_and_stays_as_it_was(recipe, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for out in (file, file / "run"):
        with pytest.raises(ZooError, match=rf"^cannot keep a run in {out}: .*\. Give another --out$"):
            pretrain(recipe, out=out, limit=64)
    assert file.read_text() == "mine"


def test_half_precision_where_it_would_not_be_computed_is_refused(recipe, tmp_path, monkeypatch):
    """accelerate would take fp16 on a CPU and compute in float32; the card would say fp16."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        for asked in ("fp16", "fp17"):
            monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", asked)
            with pytest.raises(ZooError, match=f"{asked} is not computed on cpu: choose --mixed_precision bf16 or no"):
                pretrain(recipe, out=tmp_path / "run", limit=64)
            AcceleratorState._reset_state(reset_partial_state=True)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert not (tmp_path / "run").exists()


def test_a_command_tells_what_ran_out_and_a_stop_in_one_line_and_hides_no_other_error(capsys):
    told = r"^error: out of memory \(.*allocate.*\)\. Lower --batch-size, .* --chunk"
    with pytest.raises(SystemExit, match=told), exit_on_user_error():
        torch.empty(2**55)
    with pytest.raises(SystemExit) as stopped, exit_on_user_error():
        raise KeyboardInterrupt
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "stopped; the same command goes on from the last checkpoint, if there is one\n"
    with pytest.raises(SystemExit, match=r"^error: another process of this training has ended"), exit_on_user_error():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711")
    with pytest.raises(RuntimeError, match="must match the size"), exit_on_user_error():
        torch.zeros(2) + torch.zeros(3)


def test_an_unknown_recipe_names_the_nearest_ones(monkeypatch):
    with pytest.raises(UnknownName, match="nearest: simco-r18-cifar100, simco-r18-cifar10"):
        find_recipe("simco-r18-cifar1000")
    monkeypatch.setattr(sys, "argv", ["train/pretrain.py", "simko-r18-cifar100"])
    with pytest.raises(SystemExit, match=r"^error: unknown recipe 'simko-r18-cifar100'; nearest: simco-r18-cifar100"):
        main()


@pytest.mark.parametrize(
    ("file", "package", "extra"),
    [
        ("train/pretrain.py", "accelerate", "train"),
        ("eval/score.py", "torch", "eval"),
        ("eval/compare.py", "scipy", "eval"),
        ("eval/detect.py", "accelerate", "eval"),
        ("serve/export.py", "onnx", "export"),
    ],
)
def test_a_command_without_its_extra_says_in_one_line_what_to_install(file, package, extra):
    hide = f"import runpy, sys; sys.modules[{package!r}] = None; runpy.run_path({file!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", hide, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"error: {package} is not installed. {how_to_install(extra)}\n"


def test_two_processes_train_one_model(tmp_path):
    words = ["accelerate", "launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
             "--dynamo_backend=no", "train/pretrain.py", "simco-r20-digits", "--out", str(tmp_path / "run"),
             "--epochs", "2", "--limit", "256", "--batch-size", "64", "--knn-every", "0"]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in read_log(tmp_path / "run")] == [1, 4, 8]
    assert zoo.load(tmp_path / "run").card.training["epochs"] == 2
    assert read_progress(last_checkpoint(tmp_path / "run" / "checkpoints")).settings["processes"] == 2


def test_a_launcher_that_starts_one_process_where_several_were_asked_for_is_found_out(recipe, tmp_path, monkeypatch):
    """As accelerate's with `--cpu --num_processes 2`, or a file that says MULTI_CPU: this is all that it leaves."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    check_launch(1)  # somebody's own: the launcher sets both
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(ZooError, match=r"several .* would work as one of 1: .* only with --multi_gpu"):
        pretrain(recipe, out=tmp_path / "run", limit=64)
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ZooError, match=r"2 processes were asked for, and this one would work as one of 1: "):
        check_launch(1)


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({}, "1"),
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, "1"),  # exported by a cluster's scheduler
        ({"WORLD_SIZE": "", "ACCELERATE_USE_CPU": "True"}, "1"),
        ({"WORLD_SIZE": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1", "ACCELERATE_USE_CPU": "True"}, "1"),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "1", "ACCELERATE_USE_CPU": "True", "PMI_SIZE": "1"}, "several"),
        ({"WORLD_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "2"}, "4"),  # torchrun on each of two machines
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "2"),
        ({"PMI_SIZE": "3"}, "3"),
    ],
)
def test_how_many_processes_were_asked_for_is_what_the_launcher_left(variables, asked, monkeypatch):
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_USE_CPU", *MPI_SIZES):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert processes_asked_for() == asked


def test_what_keeps_accelerate_from_starting_is_told_with_what_to_do():
    with pytest.raises(ZooError, match=r"\(fp16 mixed precision .*\): choose another --mixed_precision$"), starting():
        raise ValueError("fp16 mixed precision requires a GPU")
    with (
        pytest.raises(ZooError, match=r"\(no RANK\): start with .* or unset RANK, LOCAL_RANK and WORLD_SIZE$"),
        starting(),
    ):
        raise ValueError("no RANK")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["train/pretrain.py simco-r20-digits --limit 64", "-m eval.score pixels:8 --data digits"]
)
def test_variables_of_a_launcher_without_their_rest_are_refused_in_one_line_that_says_which(command, tmp_path):
    environment = os.environ | {"WORLD_SIZE": "2", "RANK": "0", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *command.split(), "--out", str(tmp_path / "run")]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr.startswith("error: accelerate cannot start (")
    assert done.stderr.endswith("or unset RANK, LOCAL_RANK and WORLD_SIZE\n")
    assert done.stderr.count("\n") == 1


class _Counter(Method):
    """A method whose state is a buffer, to see what a checkpoint keeps."""

    def __init__(self, encoder) -> None:
        super().__init__(encoder)
        self.register_buffer("queue", torch.zeros(4))

    def project(self, views):
        return tuple(map(self.encoder, views))

    def loss(self, projections, batch):
        z1, z2 = projections
        return Step((z1 - z2).square().mean())

    def loss_range(self, batch_size):
        raise AssertionError("not asked for here")


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_a_checkpoint_brings_back_parameters_buffers_and_momentum(optimizer, encoder, tmp_path):
    method = _Counter(encoder.train())
    first = make_optimizer(optimizer, method, lr=0.1, momentum=0.9, weight_decay=1e-4)
    views = tuple(torch.rand(2, 4, 3, 8, 8))
    loss_of(method, method.project(views), Batch(views, torch.arange(4), 0.5)).loss.backward()
    first.step()
    method.queue += 7
    path = save_checkpoint(tmp_path, method, first, Progress(5, 1.5, {"epochs": 2}))
    wanted = {key: value.clone() for key, value in method.state_dict().items()}
    momenta = [first.state[p]["momentum_buffer"].clone() for p in method.parameters()]
    for value in method.state_dict().values():
        value.zero_()
    second = make_optimizer(optimizer, method, lr=0.1, momentum=0.9, weight_decay=1e-4)
    restore(read_checkpoint(path), method, second)
    assert all(torch.equal(value, wanted[key]) for key, value in method.state_dict().items())
    restored = [second.state[p]["momentum_buffer"] for p in method.parameters()]
    assert len(restored) == len(momenta) > 0
    assert all(torch.equal(a, b) for a, b in zip(restored, momenta, strict=True))
    assert read_progress(path) == Progress(5, 1.5, {"epochs": 2})


def test_the_last_two_checkpoints_are_kept_and_a_half_written_one_is_never_read(encoder, tmp_path):
    method = _Counter(encoder)
    optimizer = make_optimizer("sgd", method, lr=0.1, momentum=0.9, weight_decay=0)
    for step in (1, 2, 30):
        save_checkpoint(tmp_path, method, optimizer, Progress(step, 0, {}))
    (tmp_path / ".step-00000040.safetensors.abc").write_bytes(b"half")
    names = sorted(path.name for path in tmp_path.glob("step-*"))
    assert names == ["step-00000002.safetensors", "step-00000030.safetensors"]
    assert read_progress(last_checkpoint(tmp_path)).step == 30
    (tmp_path / "step-00000030.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(CorruptFile, match=r"step-00000030.safetensors is not a checkpoint"):
        read_progress(last_checkpoint(tmp_path))


def test_a_copy_of_a_checkpoint_under_another_name_is_neither_read_nor_deleted_nor_in_the_way(encoder, tmp_path):
    method = _Counter(encoder)
    optimizer = make_optimizer("sgd", method, lr=0.1, momentum=0.9, weight_decay=0)
    first = save_checkpoint(tmp_path, method, optimizer, Progress(1, 0, {}))
    for name in ("step-best", "step-last"):
        (tmp_path / f"{name}.safetensors").write_bytes(first.read_bytes())
    for step in (99_999_999, 100_000_000, 100_000_001):
        assert save_checkpoint(tmp_path, method, optimizer, Progress(step, 0, {})).exists()
        assert read_progress(last_checkpoint(tmp_path)).step == step
    assert sorted(path.stem for path in tmp_path.iterdir()) == [
        "step-100000000", "step-100000001", "step-best", "step-last",
    ]  # fmt: skip


def test_the_log_drops_what_will_come_again_and_a_line_cut_short(tmp_path):
    with closing(RunLog(tmp_path, step=0, config={})) as log:
        for step in (10, 20, 30):
            log.write(step, loss=1.0 / step)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 40, "lo')
    assert [line["step"] for line in read_log(tmp_path)] == [10, 20, 30]
    with closing(RunLog(tmp_path, step=20, config={})) as log:
        log.write(30, loss=0.5)
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [
        {"step": 10, "loss": 0.1},
        {"step": 20, "loss": 0.05},
        {"step": 30, "loss": 0.5},
    ]


@pytest.mark.parametrize("broken", [b"5\n", b'{"loss": 1}\n', b"\xff\x00\n", b"null\n"])
def test_a_log_that_a_power_cut_has_spoilt_keeps_the_lines_before(broken, tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b'{"step": 1, "loss": 2.0}\n' + broken)
    assert read_log(tmp_path) == [{"step": 1, "loss": 2.0}]
    with closing(RunLog(tmp_path, step=1, config={})) as log:
        log.write(2, loss=0.5)
    assert read_log(tmp_path) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 0.5}]


def test_every_epoch_sees_every_image_once_in_an_order_of_its_own():
    from train.batches import batches
    from train.views import Views
    from zoo.images.image_set import from_pixels

    pixels = np.arange(64, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 1, 3), np.uint8)
    images = from_pixels("digits", "train", pixels, np.zeros(64, np.int64), (), "")
    recipe = find_recipe("simco-r20-digits")
    views = Views(recipe.view1, recipe.view2, size=8, seed=recipe.seed)

    def numbers(first, last, **share):
        found = batches(images, views, first=first, last=last, batch_size=16, **share)
        return [batch.pixels[:, 0, 0, 0].tolist() for batch in found]

    epochs = [numbers(0, 4), numbers(4, 8)]
    flat = [[i for batch in epoch for i in batch] for epoch in epochs]
    assert sorted(flat[0]) == sorted(flat[1]) == list(range(64))
    assert flat[0] != flat[1]
    halves = [numbers(5, 6, rank=rank, world=2)[0] for rank in (0, 1)]
    assert halves[0] + halves[1] == epochs[1][1]
