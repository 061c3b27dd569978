"""Two processes compute what one computes."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import torch

from train.gather import gather_rows

METHODS = ("simclr", "mocov1", "mocov2", "mocov2plus", "mocov3", "simmoco", "simmocoplus", "simco", "membank")
SCRIPT = Path(__file__).with_name("two_processes.py")


def test_two_gloo_processes_give_the_single_process_losses_and_gradients_for_every_method(tmp_path):
    """Two steps each, so that queues and momentum encoders move; directly and in chunks; and SyncBN against plain."""
    command = [sys.executable, SCRIPT]
    processes = [
        subprocess.Popen(
            [*command, str(rank), tmp_path / "meet"], stdout=subprocess.PIPE, text=True, cwd=SCRIPT.parents[1]
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    for out in outputs:
        lines = [line.split() for line in out.splitlines()]
        assert {(name, chunk) for name, chunk, *_ in lines} == {*product(METHODS, "02"), ("syncbn", "0")}
        for name, chunk, loss_gap, gradient_gap in lines:
            assert float(loss_gap) < 1e-12, (name, chunk)
            assert float(gradient_gap) < 1e-12, (name, chunk)


def test_one_process_gathers_its_own_rows():
    rows = torch.rand(3, 2)
    assert gather_rows(rows) is rows
