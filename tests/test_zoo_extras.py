"""On a base installation each command that needs an extra says which, in one line."""

import subprocess
import sys

import pytest

from zoo.errors import how_to_install

HIDE = """
import sys
from importlib.machinery import PathFinder

class Finder:  # as if these were not installed
    find_distributions = PathFinder.find_distributions

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.split(".")[0] in {names!r} else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""
RUN = "sys.argv = ['zoo', *{words!r}]\nfrom zoo.cli.main import main\nmain()"
CORE = ("torch", "timm", "safetensors", "huggingface_hub", "yaml", "pyarrow")
REST = ("onnx", "onnxruntime", "bentoml", "faiss", "accelerate", "sklearn", "scipy", "ray", "matplotlib", "tensorboard")


def on_a_base_installation(*words: str) -> subprocess.CompletedProcess:
    program = HIDE.format(names=CORE + REST) + RUN.format(words=words)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("publish simco-r20-cifar100 --repo a/b", "export"),
        ("publish simco-r20-cifar100 --repo a/b --dry-run", "export"),
        ("verify simco-r20-cifar100", "core"),
        ("convert some.pth --as mocov2-r50-in1k", "core"),
        ("convert simco-r20-cifar100 --to torchvision -o out.safetensors", "core"),
        ("keep runs/some --inside", "core"),
        ("embed simco-r20-cifar100 .", "core"),
        ("train simco-r20-digits", "train"),
        ("score simco-r20-cifar100", "eval"),
        ("detect a", "eval"),
        ("export simco-r20-cifar100", "export"),
        ("serve simco-r20-cifar100", "serve"),
        ("index simco-r20-cifar100 .", "index"),
        ("bulk simco-r20-cifar100 . -o out", "bulk"),
    ],
)
def test_a_command_says_in_one_line_which_extra_it_needs(words: str, extra: str):
    done = on_a_base_installation(*words.split())
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith(f" is not installed. {how_to_install(extra)}\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", ["list", "list --method simco", "info simco-r20-cifar100", "--version", "doctor"])
def test_what_needs_no_extra_works(words: str):
    done = on_a_base_installation(*words.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout
