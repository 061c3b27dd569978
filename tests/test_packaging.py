"""What is installed and what a source distribution holds."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import metadata, version
from pathlib import Path

import pytest
from checkout import ROOT, repository_files

import zoo
from zoo.cli.doctor import missing_packages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOT_SHIPPED = {"setup.cfg", "PKG-INFO", "MANIFEST.in"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A source distribution, a wheel made from it, and what setuptools said."""
    folder = tmp_path_factory.mktemp("dist")
    program = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    source = tmp_path_factory.mktemp("source")
    for path in repository_files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).symlink_to(ROOT / path)
    said = ""
    for what in ("build_sdist", "build_wheel"):
        words = [sys.executable, "-W", "always", "-c", program, what, str(folder)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(words, cwd=source, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said += done.stdout + done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl")), said


def test_the_version_is_said_once_and_the_same_everywhere():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert zoo.__version__ == version("contrastive-zoo")
    done = subprocess.run([sys.executable, "-m", "zoo.cli", "--version"], capture_output=True, text=True)
    assert done.stdout == f"contrastive-zoo {zoo.__version__}\n"


def test_the_packages_are_typed_and_the_classifiers_say_so():
    assert "Typing :: Typed" in metadata("contrastive-zoo").get_all("Classifier")
    assert all((ROOT / package / "py.typed").is_file() for package in ("zoo", "eval", "train", "serve"))


def test_a_source_distribution_holds_every_file_of_the_repository(built: tuple[Path, Path, str]):
    with tarfile.open(built[0]) as archive:
        held = {Path(*Path(name).parts[1:]) for name in archive.getnames()}
    assert set(repository_files()) <= held
    surplus = {path for path in held - set(repository_files()) if path.suffix and ".egg-info" not in str(path)}
    assert {str(path) for path in surplus} <= NOT_SHIPPED


def test_a_wheel_holds_the_packages_whole_and_nothing_else(built: tuple[Path, Path, str]):
    with zipfile.ZipFile(built[1]) as archive:
        held = {Path(name) for name in archive.namelist() if ".dist-info/" not in name}
    packages = {path for path in repository_files() if path.parts[0] in ("zoo", "eval", "train", "serve")}
    assert held == packages


def test_setuptools_has_nothing_to_complain_about(built: tuple[Path, Path, str]):
    said = [line for line in built[2].splitlines() if "warn" in line.lower() or "deprecat" in line.lower()]
    assert said == []


def test_every_extra_is_known_to_the_doctor():
    assert set(missing_packages()) == set(PROJECT["project"]["optional-dependencies"])
