"""Several processes stream one data set: what reaches the network, through stops and kills, and what they say of it."""

import io
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from seen_pretrain import ROOT, WHOLE, digest, pids_of, seen_by, trained_on
from training_process import finish, free_port, recipe_of, start, text_of

from train.batches import share_of
from train.checkpoint import last_checkpoint, read_progress
from train.views import ViewPolicy
from zoo.hub.store import read_card
from zoo.images.opening import open_images

SIDE = 8  # pixels of a view


def picture(number: int) -> Image.Image:
    coarse = Image.fromarray(np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return coarse.resize((32, 32), Image.Resampling.BICUBIC)


def whole_view(image: Image.Image) -> str:
    """The digest of the view that is the whole picture."""
    return digest(np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)))


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """3 shards of 40 images in row groups of 16."""
    folder = tmp_path / "parquet"
    folder.mkdir()
    for shard in range(3):
        cells = []
        for i in range(40 * shard, 40 * shard + 40):
            out = io.BytesIO()
            picture(i).save(out, "PNG")
            cells.append({"bytes": out.getvalue(), "path": None})
        pq.write_table(pa.table({"img": cells}), folder / f"train-{shard}.parquet", row_group_size=16)
    return folder


def train_in_pair(out: Path, **flags: Any) -> tuple[int, int]:
    """A training of two processes with two decoding threads each; how they ended."""
    port = free_port()
    numbers = {"stream": True, "workers": 2, "limit": None, "knn_every": 0} | flags
    both = [start("simco", out, rank=rank, world=2, port=port, **numbers) for rank in (0, 1)]
    return finish(both[0]), finish(both[1])


def test_two_processes_train_on_every_image_once_an_epoch_through_a_stop(parquet, tmp_path):
    """5 steps an epoch. SIGTERM comes in the middle of the second one."""
    run, lives = tmp_path / "run", [tmp_path / f"life-{nth}" for nth in range(2)]
    policy = ViewPolicy(**WHOLE)
    flags = {"data": parquet, "changes": {"batch_size": 24, "epochs": 3, "view1": policy, "view2": policy}}
    assert train_in_pair(run, seen=[lives[0], 7, signal.SIGTERM], **flags) == (143, 143), text_of(run)
    assert train_in_pair(run, seen=[lives[1]], **flags) == (0, 0), text_of(run)

    assert [min(seen_by(lives[1], rank)) for rank in (0, 1)] == [8, 8]
    steps, pictures = trained_on(lives), Counter(whole_view(picture(i)) for i in range(120))
    assert len(steps) == 15
    for epoch in range(3):
        assert Counter(chain(*steps[5 * epoch : 5 * epoch + 5])) == pictures
    assert steps[:5] != steps[5:10] != steps[10:]


def launch(run: Path, life: Path, data: Path) -> subprocess.Popen[str]:
    """`accelerate launch --num_processes 2 train/pretrain.py ... --stream --workers 2`, 100 steps an epoch."""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2",
                "--num_machines=1", f"--main_process_port={free_port()}", "--mixed_precision=no",
                "--dynamo_backend=no"]  # fmt: skip
    words = ["tests/seen_pretrain.py", life, "simco-r20-cifar100", "--data", data, "--out", run, "--epochs", 2,
             "--batch-size", 500, "--sizes", SIDE, "--knn-every", 0, "--stream", "--workers", 2]  # fmt: skip
    for view in ("view1", "view2"):
        for key, value in WHOLE.items():
            words += [f"--{view}.{key.replace('_', '-')}", *(value if isinstance(value, tuple) else [value])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*launcher, *map(str, words)], cwd=ROOT, env=environment, **pipes)


def wait_for_step(process: subprocess.Popen[str], life: Path, step: int) -> None:
    while process.poll() is None and max(seen_by(life, 0), default=-1) < step:
        time.sleep(0.5)
    assert process.poll() is None, process.communicate()[0]


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.timeout(3600)
def test_accelerate_launch_trains_two_processes_on_all_of_cifar100_once_an_epoch_through_a_kill_and_a_stop(
    realdata, tmp_path
):
    """Its own Parquet shards, 2 epochs of 100 steps. In the middle of the second one first both processes are killed,
    then SIGTERM reaches the launcher."""
    data, run, lives = realdata / "cifar100", tmp_path / "run", [tmp_path / f"life-{nth}" for nth in range(3)]
    killed = launch(run, lives[0], data)
    wait_for_step(killed, lives[0], 140)
    for pid in pids_of(lives[0]):
        os.kill(pid, signal.SIGKILL)
    killed.communicate(timeout=600)
    kept = [read_progress(last_checkpoint(run / "checkpoints")).step]
    stopped = launch(run, lives[1], data)
    wait_for_step(stopped, lives[1], 170)
    stopped.terminate()
    assert "stopped by SIGTERM, all is saved in" in stopped.communicate(timeout=600)[0]
    kept.append(read_progress(last_checkpoint(run / "checkpoints")).step)
    last = launch(run, lives[2], data)
    told = last.communicate(timeout=1800)[0]
    assert last.returncode == 0, told

    assert 100 <= kept[0] < 170 < kept[1] < 200
    assert [min(seen_by(life, rank)) for life in lives[1:] for rank in (0, 1)] == [kept[0]] * 2 + [kept[1]] * 2
    shards = open_images("cifar100", "train", data, stream=True)
    pictures = Counter(whole_view(shards.picture(i)) for i in range(50_000))
    steps = trained_on(lives)
    assert len(steps) == read_card(run).training["steps"] == 200
    for epoch in range(2):
        assert Counter(chain(*steps[100 * epoch : 100 * epoch + 100])) == pictures


def test_what_any_process_cannot_decode_shortens_the_batch_of_all_and_is_told_once_by_the_main_one(tmp_path):
    """Here what stands in the other one's half of the first batch, and SIGTERM comes before the main one reads it."""
    mine, run, life, policy = tmp_path / "mine", tmp_path / "run", tmp_path / "seen", ViewPolicy(**WHOLE)
    mine.mkdir()
    for i in range(48):
        picture(i).save(mine / f"{i:02d}.png")
    changes = {"batch_size": 16, "epochs": 1, "view1": policy, "view2": policy}
    flags = {"data": f"folder:{mine}", "changes": changes}
    images = open_images("digits", "train", flags["data"], stream=True)
    broken = share_of(images, 0, 16, recipe_of("simco").seed, rank=1, world=2)[:3]
    names = [f"{i:02d}.png" for i in broken]
    for name in names:
        (mine / name).write_bytes(b"not a picture")
    assert train_in_pair(run, seen=[life, 1, signal.SIGTERM], **flags) == (143, 143), text_of(run)
    steps, left = trained_on([life]), {whole_view(picture(i)) for i in range(48) if i not in broken}
    assert [len(step) for step in steps] == [10, 16]
    assert len(set(chain(*steps)) & left) == 26
    assert "cannot be decoded" not in text_of(run, 1)
    (told,) = (line for line in text_of(run).splitlines() if "cannot be decoded" in line)
    assert "3 of 48 images" in told
    assert [told.count(name) for name in names] == [1, 1, 1]
    assert {line.split(":")[0] for line in (run / "skipped.txt").read_text().splitlines()} == set(names)
