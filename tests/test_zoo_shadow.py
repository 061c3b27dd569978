"""A user's own train.py, eval.py, serve.py and zoo.py in the working directory change nothing and are never run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from serve_http import free_port, wait_until_ready
from serve_model import noise

from zoo.cli.doctor import hidden
from zoo.errors import PACKAGES

pytest_plugins = ["serve_fixtures"]

ROOT = Path(__file__).parents[1]
ZOO = str(Path(sys.executable).with_name("zoo"))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A working directory with files of those names, which leave a trace if they are run."""
    folder = tmp_path / "own"
    folder.mkdir()
    for package in PACKAGES:
        (folder / f"{package}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write('{package} ')\n")
    (folder / "pictures").mkdir()
    Image.fromarray(noise(9, 9, 3)).save(folder / "pictures" / "a.png")
    return folder


def call(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    given = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | environment
    return subprocess.run(list(words), cwd=cwd, env=given, capture_output=True, text=True, timeout=300)


QUICK = ["--version", "list *digits", "info simco-r18-cifar100-cpu", "serve --help", "index --help"]
SLOW = [
    "embed simco-r20-cifar100 pictures",
    "train simco-r20-digits --epochs 1 --limit 32 --batch-size 32 --knn-every 0",
    "score --help",
    "export simco-r20-cifar100",
]


@pytest.mark.parametrize("words", [*QUICK, *(pytest.param(words, marks=pytest.mark.slow) for words in SLOW)])
def test_the_zoo_command_runs_none_of_them(words: str, own: Path):
    done = call(ZOO, *words.split(), cwd=own)
    assert done.returncode == 0, done.stderr
    assert not (own / "ran").exists()


@pytest.mark.slow
def test_the_server_and_its_workers_run_none_of_them(exported: Path, own: Path):
    port = free_port()
    link = own / "model"
    link.symlink_to(exported)
    words = [ZOO, "serve", "./model", "--port", str(port), "--workers", "2"]
    with (own / "log").open("wb") as log:
        server = subprocess.Popen(words, cwd=own, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", server)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    assert not (own / "ran").exists()


@pytest.mark.parametrize("package", ["eval", "train", "serve"])
def test_python_m_says_which_file_hides_which_package(package: str, own: Path):
    program = "import sys; sys.path.insert(0, ''); from zoo.command_line import run_command; (own := 0)\n"
    module = {"eval": "eval.score", "train": "train.pretrain", "serve": "serve.export"}[package]
    (own / "zoo.py").unlink()
    done = call(sys.executable, "-c", f"{program}run_command({module!r}, extra='core')", cwd=own)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {own / package}.py hides the package `{package}` of contrastive-zoo")
    assert "start the command as `zoo ...`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_python_m_zoo_cli_does_not_look_into_the_working_directory(own: Path):
    (own / "zoo.py").unlink()  # before any of our code could say so
    done = call(sys.executable, "-m", "zoo.cli", "serve", "--help", cwd=own)
    assert done.returncode == 0, done.stderr
    assert not (own / "ran").exists()


def test_the_doctor_names_each_file_and_what_it_hides(own: Path, tmp_path: Path):
    done = call(ZOO, "doctor", cwd=own)
    assert done.returncode == 1
    for package in PACKAGES:
        assert f"{own / package}.py hides the package `{package}`" in done.stdout
    (tmp_path / "clean").mkdir()
    done = call(ZOO, "doctor", cwd=tmp_path / "clean")
    assert done.returncode == 0, done.stdout
    assert "[train]: installed" in done.stdout


def test_a_folder_of_the_users_with_an_init_hides_a_package_too(tmp_path: Path):
    (tmp_path / "train").mkdir()
    assert list(hidden(tmp_path)) == []  # without __init__.py it hides nothing
    (tmp_path / "train" / "__init__.py").write_text("")
    (line,) = hidden(tmp_path)
    assert line.startswith(f"{tmp_path / 'train' / '__init__.py'} hides the package `train`")


def test_our_own_checkout_hides_nothing():
    assert list(hidden(ROOT)) == []
