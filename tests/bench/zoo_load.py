"""How long importing, listing and loading take.

python tests/bench/zoo_load.py [RUNS]

Loads alternate, so that a busy machine slows both alike; the ratio is of the medians.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import timm
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch

import zoo
from zoo.images.dataset import dataset_row
from zoo.model.card import Card
from zoo.model.encoder import new_encoder, save_encoder
from zoo.model.timm_form import to_timm
from zoo.provenance import hardware, today

NAME = "simco-r18-cifar100"


def milliseconds(call) -> float:
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started)


def line(what: str, values: list[float]) -> None:
    print(
        f"{what}: median {statistics.median(values):.0f} ms, {min(values):.0f} to {max(values):.0f}, n = {len(values)}"
    )


def commands(runs: int) -> None:
    """A fresh interpreter each; the bare interpreter is part of every number, so it stands beside them."""
    listing = "import sys; sys.argv = ['zoo', 'list']; from zoo.cli.main import main; main()"
    for what, code in {"python": "pass", "python, import zoo": "import zoo", "zoo list": listing}.items():
        words = [sys.executable, "-c", code]
        line(what, [milliseconds(lambda: quiet(words)) for _ in range(runs)])  # noqa: B023  (called at once)


def quiet(words: list[str]) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def loads(runs: int) -> None:
    """zoo.load of a run of ResNet-18 against timm.create_model and load_state_dict of the same weights."""
    with tempfile.TemporaryDirectory() as folder:
        run, row = Path(folder, NAME), dataset_row("cifar100")
        encoder = new_encoder(NAME)
        card = Card(
            name=NAME,
            paper="none",
            image_size=32,
            mean=row.mean,
            std=row.std,
            dim=encoder.dim,
            expects="none published",
        )
        card = save_encoder(encoder, run, card)
        plain = Path(folder, "plain.safetensors")
        save_file(to_timm(card, load_file(run / "model.safetensors")), plain, metadata={"format": "pt"})

        def by_timm() -> None:
            model = timm.create_model("resnet18", num_classes=0, replace_stem_pool=True)
            model.load_state_dict(load_torch(plain))
            model.eval()

        ours, theirs = [], []
        for _ in range(runs + 1):  # the first pair warms the file cache and imports
            theirs.append(milliseconds(by_timm))
            ours.append(milliseconds(lambda: zoo.load(run)))
        line("timm.create_model + load_state_dict", theirs[1:])
        line("zoo.load, sha256 and card checked", ours[1:])
        print(f"ratio of medians: {statistics.median(ours[1:]) / statistics.median(theirs[1:]):.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    print(f"{hardware()}, {today()}")
    commands(runs)
    loads(runs)
