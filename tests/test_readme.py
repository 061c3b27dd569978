"""Every code block of the README runs, in order, in a copy of the repository, as a reader would type it.

Stand-ins, so that it takes a minute: `make demo` becomes `zoo demo` with fewer epochs (the installation is the
environment that runs the tests), `make test` is this very run, and the CIFAR-100 commands use few images. They need
../shared/data; without it that one block is left out.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkout import repository_files
from PIL import Image
from serve_http import free_port, wait_until_ready

ROOT = Path(__file__).parents[1]
CIFAR100 = ROOT.parent / "shared" / "data" / "cifar100"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in repository_files():
        target = tmp_path / "repository" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return tmp_path / "repository"


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """Three classes of 40 pictures of noise."""
    for number in range(120):
        path = tmp_path / "birds" / ("crow", "robin", "wren")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8)).save(path)
    return tmp_path / "birds"


def test_every_code_block_runs(copy: Path, home: Path, birds: Path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    port, servers = str(free_port()), []
    stand_ins = {
        "make demo": "zoo demo --epochs 3",
        "make test": "true",
        "path/to/cifar100": str(CIFAR100),
        "path/to/birds": str(birds),
        "--epochs 2": "--epochs 2 --limit 128 --batch-size 64 --knn-every 0",
        "--protocol knn": "--protocol knn --max-train 300 --max-test 100",
        "3000": port,
        'pip install --quiet --editable ".[core]"': "python -c 'import timm, torch'",
    }
    try:
        for language, block in BLOCKS:
            if language == "yaml":
                continue  # below
            if "path/to/cifar100" in block and not CIFAR100.is_dir():
                continue
            text = block
            for written, run in stand_ins.items():
                text = text.replace(written, run)
            words = ["python", "-W", "error::DeprecationWarning:__main__", "-c", text]
            if language == "bash":
                words = ["bash", "-euo", "pipefail", "-c", text]
            if "bentoml serve" in text:
                servers.append(subprocess.Popen(words, cwd=copy, env=environment, start_new_session=True))
                wait_until_ready(f"http://127.0.0.1:{port}", servers[-1])
                continue
            done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    finally:
        for server in servers:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
                server.wait(timeout=30)
    assert (copy / "runs/demo/demo.png").stat().st_size > 10_000
    assert (copy / "runs/demo/embeddings.parquet").is_file()


def test_the_configurations_are_what_accelerate_reads(tmp_path: Path):
    from accelerate.commands.config.config_args import load_config_from_file

    found = []
    for block in (block for language, block in BLOCKS if language == "yaml" and "distributed_type" in block):
        (tmp_path / "config.yaml").write_text(block)
        found.append(load_config_from_file(str(tmp_path / "config.yaml")))  # an unknown entry is an error
    assert [(c.distributed_type.value, c.num_machines, c.num_processes, c.use_cpu) for c in found] == [
        ("MULTI_GPU", 1, 4, False),
        ("MULTI_GPU", 2, 8, False),
        ("MULTI_GPU", 1, 2, False),
    ]


def test_the_makefile_has_the_two_commands():
    makefile = (ROOT / "Makefile").read_text()
    for language, block in BLOCKS:
        for target in re.findall(r"^make (\w+)$", block, re.MULTILINE):
            assert language == "bash"
            assert f"\n{target}: " in makefile
