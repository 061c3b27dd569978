"""CPU threads: a process takes its share of the cores, unless the user or the launcher's flags say otherwise."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.processes import LOCAL_SIZES, cpu_threads, usable_cores

ROOT = Path(__file__).parents[1]
CORES = usable_cores()

LAUNCHER = """
import os, subprocess, sys
child = "import json; from zoo.processes import cpu_threads; print(json.dumps(cpu_threads(processes=1)))"
as_launched = {"OMP_NUM_THREADS": "1", "ACCELERATE_MIXED_PRECISION": "no"}
environment = os.environ | as_launched
sys.exit(subprocess.run([sys.executable, "-c", child], env=environment).returncode)
"""


def launched(*flags: str, **variables: str) -> tuple[int, str]:
    """What a process takes whose launcher, started with these flags and variables, set OMP_NUM_THREADS to 1."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | variables
    words = [sys.executable, "-c", LAUNCHER, *flags]
    done = subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=60)
    return tuple(json.loads(done.stdout))


@pytest.fixture
def plain(monkeypatch):
    """An environment in which nothing has been said."""
    for name in ("OMP_NUM_THREADS", *LOCAL_SIZES):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("processes", [1, 2, 64])
def test_the_cores_are_divided_by_the_processes_and_none_goes_without_a_thread(processes, plain):
    assert cpu_threads(processes=processes).number == max(1, CORES // processes)


@pytest.mark.parametrize("variable", LOCAL_SIZES)
def test_processes_of_other_machines_take_none_of_the_cores(variable, plain):
    plain.setenv(variable, "1")
    assert cpu_threads(processes=8).number == CORES


def test_a_flag_goes_before_a_variable_and_a_variable_before_the_cores(plain):
    plain.setenv("OMP_NUM_THREADS", "3")
    assert cpu_threads(processes=1) == (3, "OMP_NUM_THREADS")
    assert cpu_threads(5, processes=1) == (5, "--threads")


@pytest.mark.parametrize("value", ["", "0", "4,2", "-1"])
def test_a_variable_that_is_no_number_of_threads_says_nothing(value, plain):
    plain.setenv("OMP_NUM_THREADS", value)
    assert cpu_threads(processes=1).number == CORES


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the launcher's own environment is in /proc")
@pytest.mark.parametrize(
    ("flags", "variables", "threads"),
    [
        ((), {}, CORES),  # the launcher's default
        ((), {"OMP_NUM_THREADS": "1"}, 1),  # the user's variable
        (("--num_cpu_threads_per_process", "1"), {}, 1),
        (("--num-cpu-threads-per-process=1",), {}, 1),
    ],
)
def test_one_thread_is_kept_where_the_user_asked_for_it_and_not_where_the_launcher_defaults_to_it(
    flags, variables, threads
):
    assert launched(*flags, **variables)[0] == threads
