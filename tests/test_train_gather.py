"""Two processes compute what one computes."""

import subprocess
import sys
from pathlib import Path

import torch

from train.gather import gather_rows

SCRIPT = Path(__file__).with_name("two_processes.py")


def test_two_gloo_processes_give_the_single_process_loss_and_gradient_for_every_method(tmp_path):
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
        assert {name for name, *_ in lines} == {"SimCoRecipe", "SimCLRRecipe"}
        for _, loss_gap, gradient_gap in lines:
            assert float(loss_gap) < 1e-12
            assert float(gradient_gap) < 1e-12


def test_one_process_gathers_its_own_rows():
    rows = torch.rand(3, 2)
    assert gather_rows(rows) is rows
