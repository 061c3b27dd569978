"""A run goes on as if nothing had happened, whatever happened: kill -9, SIGTERM, a full disk, a broken file."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from training_process import finish, free_port, recipe_of, start, text_of

import zoo
from train.checkpoint import last_checkpoint, read_progress
from train.pretrain import pretrain
from train.run_log import read_log
from train.stopping import exit_on_user_error
from zoo.errors import CorruptFile, NoWeights, ZooError
from zoo.hub.store import sha256

STEPS = 4 * 4  # 128 images in batches of 32, 4 epochs
LONG = {"changes": {"epochs": 12}}  # for what has to happen after the first epoch and before the last


def state(run: Path) -> dict[str, torch.Tensor]:
    """All that the last checkpoint holds: parameters, buffers (a queue, too) and momenta."""
    return load_file(last_checkpoint(run / "checkpoints"))


def assert_same_state(run: Path, whole: Path) -> None:
    mine, theirs = state(run), state(whole)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[key]) for key, value in mine.items())
    assert sha256(run / "model.safetensors") == sha256(whole / "model.safetensors")
    assert [(line["step"], line["loss"]) for line in read_log(run)] == [
        (line["step"], line["loss"]) for line in read_log(whole)
    ]


def assert_loads_or_says_what_to_do(run: Path) -> None:
    try:
        assert zoo.load(run).card.training["steps"] <= STEPS
    except NoWeights as error:  # killed before the first epoch's end
        assert "training" in str(error)  # noqa: PT017
    except CorruptFile as error:  # killed between the weights and the card
        assert "the training command again" in str(error)  # noqa: PT017


def kill_at_random(kind: str, tmp_path: Path, *, times: int) -> tuple[Path, Path]:
    """A whole run, and one killed `times` times at moments spread over its whole length, then left to end."""
    whole, run, dice = tmp_path / "whole", tmp_path / "killed", random.Random(kind)
    began = time.monotonic()
    assert finish(start(kind, whole)) == 0, text_of(whole)
    length = time.monotonic() - began
    killed = 0
    while killed < times:
        process = start(kind, run)
        process.join(timeout=dice.uniform(0, length / 2))
        process.kill()
        if finish(process) == 0:  # it had ended; the next life of this folder begins anew
            assert_same_state(run, whole)
            run = tmp_path / f"killed-{killed}"
            continue
        assert process.exitcode == -signal.SIGKILL
        killed += 1
        assert_loads_or_says_what_to_do(run) if run.exists() else None
    assert finish(start(kind, run)) == 0, text_of(run)
    return run, whole


@pytest.mark.parametrize("kind", ["simco", "queued"])
def test_a_run_killed_at_random_moments_ends_in_the_same_state_bit_for_bit(kind, tmp_path):
    run, whole = kill_at_random(kind, tmp_path, times=3)
    assert_same_state(run, whole)
    assert zoo.load(run).card.training["steps"] == STEPS


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["simco", "queued"])
def test_a_run_killed_at_fifty_random_moments_ends_in_the_same_state_bit_for_bit(kind, tmp_path):
    run, whole = kill_at_random(kind, tmp_path, times=50)
    assert_same_state(run, whole)


def wait_for_a_checkpoint(run: Path) -> None:
    deadline = time.monotonic() + 120
    while not ((run / "checkpoints").is_dir() and last_checkpoint(run / "checkpoints")):
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that nobody disturbed."""
    run = tmp_path_factory.mktemp("long") / "run"
    return pretrain(recipe_of("simco", **LONG["changes"]), out=run, limit=128, knn_every=0)


def test_sigterm_saves_the_step_under_way_and_exits_143_and_a_second_start_goes_on(long_run, tmp_path):
    run = tmp_path / "run"
    process = start("simco", run, **LONG)
    wait_for_a_checkpoint(run)
    process.terminate()
    assert finish(process) == 143
    assert "stopped by SIGTERM" in text_of(run)
    step = read_progress(last_checkpoint(run / "checkpoints")).step
    assert 4 <= step < 48
    assert zoo.load(run).card.training["steps"] == step
    assert finish(start("simco", run, **LONG)) == 0
    assert_same_state(run, long_run)


def wait_for_a_child_that_has_loaded_torch(process: subprocess.Popen[str]) -> None:
    """Of a launcher: its training, which then has still to open its data."""
    deadline = time.monotonic() + 120
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while True:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        for child in children.read_text().split():
            with suppress(OSError):  # one that has ended, or the launcher's own fork, which looks like the launcher
                words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
                if words[1:2] == ["train/pretrain.py"] and "libtorch_cpu" in Path(f"/proc/{child}/maps").read_text():
                    return


@pytest.mark.parametrize(
    "wait", ["for a checkpoint", pytest.param("for torch", marks=pytest.mark.slow)], ids=lambda wait: wait
)
def test_sigterm_to_accelerates_launcher_stops_the_training_too_and_all_is_saved(wait, tmp_path):
    run = tmp_path / "run"
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu"]
    words = ["train/pretrain.py", "simco-r20-digits", "--limit", "128", "--epochs", "100000", "--out", str(run)]
    process = subprocess.Popen(
        [*launcher, *words, "--knn-every", "0"], cwd=Path(__file__).parents[1], text=True, stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    wait_for_a_checkpoint(run) if "checkpoint" in wait else wait_for_a_child_that_has_loaded_torch(process)
    process.terminate()
    told = process.communicate(timeout=120)[1]  # ends with the last process that holds the pipe: the training
    assert process.returncode == -signal.SIGTERM
    assert f"stopped by SIGTERM, all is saved in {run}" in told
    assert read_progress(last_checkpoint(run / "checkpoints")).step == zoo.load(run).card.training["steps"]


def test_sigterm_to_one_of_two_processes_stops_both_after_the_same_step(tmp_path):
    port, run = free_port(), tmp_path / "run"
    both = [start("without", run, rank=rank, world=2, port=port, changes={"epochs": 500}) for rank in range(2)]
    wait_for_a_checkpoint(run)
    both[1].terminate()
    assert [finish(process) for process in both] == [143, 143], text_of(run) + text_of(run, 1)
    step = read_progress(last_checkpoint(run / "checkpoints")).step
    assert 4 <= step < 500 * 4


def test_a_full_disk_is_an_error_that_loses_nothing(long_run, tmp_path):
    run = tmp_path / "run"
    process = start("simco", run, **LONG)
    wait_for_a_checkpoint(run)
    process.terminate()
    assert finish(process) == 143
    before = {path.name: sha256(path) for path in (run / "checkpoints").iterdir()}
    size = last_checkpoint(run / "checkpoints").stat().st_size
    weights = (run / "model.safetensors").stat().st_size
    assert weights < size // 2 + 2**16
    for most in (weights // 2, (weights + size) // 2):  # too little for the weights; enough for them alone
        assert finish(start("simco", run, largest_file=most, **LONG)) == 1
        assert text_of(run).splitlines()[-1].startswith("error: cannot write ")
        assert {path.name: sha256(path) for path in (run / "checkpoints").iterdir()} == before
    assert finish(start("simco", run, **LONG)) == 0
    assert_same_state(run, long_run)


def flip(path: Path, place: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def make_a_folder_of(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE = {
    "a bit of the last tensor": lambda path: flip(path, -100),
    "a bit in the middle": lambda path: flip(path, path.stat().st_size // 2),
    "a digit of the settings": lambda path: flip(path, path.read_bytes().index(b'weight_decay\\": ') + 18),
    "the first byte": lambda path: flip(path, 0),
    "the end is missing": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "nothing in it": lambda path: path.write_bytes(b""),
    "a folder of that name": make_a_folder_of,
}


@pytest.fixture(scope="module")
def three_epochs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain(recipe_of("simco", epochs=3), out=tmp_path_factory.mktemp("three") / "run", limit=64, knn_every=0)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_newest_checkpoint_is_reported_and_the_run_goes_on_from_the_one_before(
    damage, three_epochs, tmp_path, capsys
):
    run = Path(shutil.copytree(three_epochs, tmp_path / "run"))
    before, newest = sorted((run / "checkpoints").iterdir())
    damage(newest)
    pretrain(recipe_of("simco", epochs=3), out=run, limit=64, knn_every=0)
    told = capsys.readouterr().err
    assert f"warning: {newest} " in told
    assert f"goes on from the checkpoint before, {before.name}" in told
    assert_same_state(run, three_epochs)
    assert {path.name for path in (run / "checkpoints").iterdir()} >= {newest.name, f"damaged-1-{newest.name}"}


def test_a_run_without_any_sound_checkpoint_does_not_start_anew_by_itself(three_epochs, tmp_path):
    run = Path(shutil.copytree(three_epochs, tmp_path / "run"))
    for path in (run / "checkpoints").iterdir():
        flip(path, -1)
    before = {path.name: sha256(path) for path in run.rglob("*.safetensors")}
    with pytest.raises(CorruptFile, match=r"no checkpoint of the run can be read: .*step-00000006.*; .*step-0000000"):
        pretrain(recipe_of("simco", epochs=3), out=run, limit=64, knn_every=0)
    assert {path.name: sha256(path) for path in run.rglob("*.safetensors")} == before


def test_a_checkpoint_of_a_version_that_wrote_no_digest_is_read(three_epochs, tmp_path):
    path = last_checkpoint(three_epochs / "checkpoints")
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    old = tmp_path / path.name
    save_file(load_file(path), old, metadata={"progress": metadata["progress"]})
    assert metadata.keys() == {"progress", "sha256"}
    assert read_progress(old) == read_progress(path)


@pytest.mark.parametrize("name", ["card.json", "model.safetensors", "head.safetensors", "report.html"])
def test_a_folder_where_a_run_will_write_a_file_ends_it_before_the_first_step(name, tmp_path):
    (tmp_path / "run" / name).mkdir(parents=True)
    with pytest.raises(ZooError, match=f"{name} is a folder, where a file is to be written. Give another --out"):
        pretrain(recipe_of("simco"), out=tmp_path / "run", limit=64)
    assert not list(tmp_path.rglob("step-*"))
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_a_file_where_the_checkpoints_belong_ends_a_run_before_the_first_step(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("mine")
    with pytest.raises(ZooError, match=r"cannot keep a run in .*/run: .*checkpoints.*Give another --out"):
        pretrain(recipe_of("simco"), out=tmp_path / "run", limit=64)
    assert (tmp_path / "run" / "checkpoints").read_text() == "mine"
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_a_disk_that_is_too_full_for_a_checkpoint_ends_a_run_before_the_first_step_and_nothing_is_left(tmp_path):
    run = tmp_path / "run"
    assert finish(start("simco", run, largest_file=2**16)) == 1
    assert text_of(run).splitlines()[-1].startswith(f"error: cannot write {run}/checkpoints/")
    assert [path.name for path in run.iterdir() if path.name != ".lock"] == ["checkpoints"]
    assert not list((run / "checkpoints").iterdir())


def test_a_recipe_under_a_name_that_nobody_publishes_trains_and_its_card_claims_no_result(tmp_path):
    recipe = replace(recipe_of("simco", epochs=1), name="simco-r20-digits-mine", expects="99 % (table 1)")
    run = pretrain(recipe, out=tmp_path / "run", limit=64, knn_every=0)
    card = zoo.load(run).card
    assert card.name == "simco-r20-digits-mine"
    assert card.expects == "none published with a recipe of another name"


def test_a_finished_run_whose_weights_are_lost_writes_them_again(tmp_path):
    run = tmp_path / "run"
    pretrain(recipe_of("simco", epochs=1), out=run, limit=64, knn_every=0)
    digest = sha256(run / "model.safetensors")
    (run / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(CorruptFile, match="Run the training command again"):
        zoo.load(run)
    pretrain(recipe_of("simco", epochs=1), out=run, limit=64, knn_every=0)
    assert sha256(run / "model.safetensors") == digest
    assert zoo.load(run).card.training["steps"] == 2


def test_a_checkpoint_of_another_method_says_so(tmp_path, encoder):
    from train.checkpoint import Progress, read_checkpoint, restore, save_checkpoint
    from train.optim import make_optimizer

    made = [recipe_of(kind).method(encoder) for kind in ("queued", "simco")]
    optimizers = [make_optimizer("sgd", method, lr=0.1, momentum=0.9, weight_decay=0) for method in made]
    path = save_checkpoint(tmp_path, made[0], optimizers[0], Progress(1, 0, {}))
    with pytest.raises(CorruptFile, match=r"another method or version (?s:.*)delete the folder to start anew"):
        restore(read_checkpoint(path), made[1], optimizers[1])


@pytest.mark.parametrize(
    ("kind", "arithmetic", "rate", "within"),
    [
        pytest.param("without", "float64", 1.0, 1e-9, marks=pytest.mark.slow),
        ("sync", "float64", 0.12, 1e-9),
        ("without", "smooth", 0.12, 1e-5),
        pytest.param("sync", "smooth", 0.01, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_one_process_with_64_images_and_two_with_32_have_one_loss_curve(kind, arithmetic, rate, within, tmp_path):
    """10 updates, each logged. In float32 only without ReLU: where rounding puts an activation on the other side of
    its kink, the gradient jumps by 1e-3 of itself, and the curves part by 1e-5 after 5 to 40 steps."""
    one, two, port = tmp_path / "one", tmp_path / "two", free_port()
    changes = {"batch_size": 64, "epochs": 10, "learning_rate": rate, "arithmetic": arithmetic}
    together = [start(kind, two, rank=rank, world=2, port=port, limit=64, changes=dict(changes)) for rank in range(2)]
    assert [finish(process) for process in together] == [0, 0], text_of(two) + text_of(two, 1)
    assert finish(start(kind, one, limit=64, changes=changes)) == 0, text_of(one)
    curves = [torch.tensor([line["loss"] for line in read_log(run)], dtype=torch.float64) for run in (one, two)]
    assert len(curves[0]) == len(curves[1]) == 10
    assert curves[0].max() - curves[0].min() > 0.01  # the weights did move
    torch.testing.assert_close(curves[0], curves[1], rtol=0, atol=within)


def test_a_run_does_not_go_on_with_another_number_of_processes(tmp_path):
    """Statistics of batch normalisation are each process's own, so the curve would break unseen."""
    run, port = tmp_path / "run", free_port()
    pretrain(recipe_of("simco"), out=run, limit=128, knn_every=0)
    step = last_checkpoint(run / "checkpoints")
    together = [start("simco", run, rank=rank, world=2, port=port) for rank in range(2)]
    assert [finish(process) for process in together] == [1, 1]
    assert "processes: 1 -> 2" in text_of(run)
    assert last_checkpoint(run / "checkpoints") == step


def test_torchs_report_of_a_failed_process_repeats_our_last_words(tmp_path, monkeypatch):
    """Its launcher of several processes names that file to each, and writes what torch's own classes make here."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    with pytest.raises(SystemExit, match=r"^error: 63 images are too few$"), exit_on_user_error():
        raise ZooError("63 images are too few")
    failure = ProcessFailure(local_rank=0, pid=7, exitcode=1, error_file=str(tmp_path / "error.json"))
    assert abs(failure.timestamp - time.time()) < 60
    assert str(ChildFailedError("train/pretrain.py", {0: failure})).splitlines()[-2] == (
        "  traceback : error: 63 images are too few"
    )


def test_an_error_is_exit_on_user_error_where_not_even_the_launchers_file_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    with pytest.raises(SystemExit, match=r"^error: the disk is full$"), exit_on_user_error():
        raise OSError("the disk is full")


def test_gradient_accumulation_is_refused_because_it_does_not_enlarge_the_negatives(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    with pytest.raises(ZooError, match=r"over 4 batches does not enlarge the negatives.* --chunk"):
        pretrain(recipe_of("simco"), out=tmp_path / "run", limit=64)


@pytest.mark.parametrize(("worth", "kept"), [(1e9, [4, 16]), (0, [12, 16])])
def test_a_run_saves_at_an_epochs_end_where_it_is_worth_the_time_and_always_at_the_end(
    worth, kept, tmp_path, monkeypatch
):
    """Once at least, for only then does it know how long saving takes; what is logged does not depend on it."""
    monkeypatch.setattr("train.run_folder.WORTH_SAVING", worth)
    run = pretrain(recipe_of("simco"), out=tmp_path / "run", limit=128, knn_every=2)
    steps = [read_progress(path).step for path in sorted((run / "checkpoints").iterdir())]
    assert steps == kept
    assert zoo.load(run).card.training["steps"] == 16
    lines = read_log(run)
    assert [line["step"] for line in lines if "rank" in line] == [4, 8, 12, 16]
    assert [line["step"] for line in lines if "knn_held_out" in line] == [8, 16]
    assert (run / "report.html").is_file()


def test_a_run_saves_within_an_epoch_where_a_minute_has_passed(tmp_path, monkeypatch):
    monkeypatch.setattr("train.run_folder.SAVE_EVERY", 0)
    monkeypatch.setattr("train.run_folder.WORTH_SAVING", 0)
    run = pretrain(recipe_of("simco", epochs=1), out=tmp_path / "run", limit=128, knn_every=0)
    assert [read_progress(path).step for path in sorted((run / "checkpoints").iterdir())] == [3, 4]
