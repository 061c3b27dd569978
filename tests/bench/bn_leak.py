"""What batch normalisation gives away, shown where nothing else can.

python tests/bench/bn_leak.py [--steps 400] [--repeats 3] [--out runs/bench]

MoCo, but each query's positive is the key of another image of its batch, and all images are noise, new at every step:
no image says anything about its positive. What is learnt beyond chance, 1 / (K + 1), comes from statistics that a query
shares with the keys of its batch alone (He et al. 2020, section 3.3). Noise of very unequal strength makes them tell
much: the strongest image of a batch scales all others.
"""

import argparse
import json
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor, nn

from train.batchnorm import GROUPS, BatchNormName, with_batchnorm
from train.heads import linear
from train.method import Batch, loss_of
from train.methods.moco import MoCo
from zoo.files import write_bytes
from zoo.model.encoder import Encoder
from zoo.provenance import command, hardware, today

BATCH, KEYS, WIDTH = 32, 256, 64
CHANCE = 1 / (KEYS + 1)
KINDS: dict[str, tuple[BatchNormName, bool]] = {  # statistics, shuffled keys
    "plain": ("plain", False),
    "split": ("split", False),
    "split, keys shuffled": ("split", True),
}


class Layers(nn.Module):
    """Two linear layers, each with batch normalisation and ReLU."""

    num_features = WIDTH

    def __init__(self) -> None:
        super().__init__()
        widths = ((3 * 4 * 4, WIDTH), (WIDTH, WIDTH))
        blocks = [nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in widths]
        self.layers = nn.Sequential(nn.Flatten(), *blocks)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, 4, 4) -> (B, WIDTH)
        return self.layers(x)


def noise(generator: torch.Generator) -> Tensor:
    """(BATCH, 3, 4, 4): each image with a strength of its own, log-normal."""
    strength = torch.randn(BATCH, 1, 1, 1, generator=generator).mul(3).exp()
    return 0.5 + 0.02 * strength * torch.randn(BATCH, 3, 4, 4, generator=generator)


def leak(kind: str, *, steps: int, seed: int = 0) -> list[float]:
    """Pretext accuracy of every step, [0, 1]. The positive lies GROUPS rows on: in the query's own group, if split."""
    torch.manual_seed(seed)
    (statistics, shuffle), generator = KINDS[kind], torch.Generator().manual_seed(seed)
    encoder = Encoder(Layers(), mean=(0.5,) * 3, std=(0.3,) * 3, image_size=4)
    method = MoCo(
        encoder, linear(WIDTH, 16), symmetric=False, shuffle=shuffle, queue_size=KEYS, projection=16,
        temperature=0.1, key_momentum=(0.95, 0.95),
    )  # fmt: skip
    method = with_batchnorm(method, statistics)
    optimizer = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], lr=1e-3)
    found = []
    for _ in range(steps):
        images = noise(generator)
        batch = Batch((images, images.roll(GROUPS, dims=0)), torch.arange(BATCH), 0.0)
        step = loss_of(method, method(batch.views), batch)
        optimizer.zero_grad()
        step.loss.backward()
        optimizer.step()
        method.after_step(step, 0.0)
        found.append(step.metrics["pretext_accuracy"].item())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    flags = parser.parse_args()
    last = flags.steps // 4
    print(f"pretext accuracy over the last {last} of {flags.steps} steps; chance is {100 * CHANCE:.2f} %\n")
    found = {}
    for kind in KINDS:
        runs = [leak(kind, steps=flags.steps, seed=seed) for seed in range(flags.repeats)]
        found[kind] = [mean(run[-last:]) for run in runs]
        least, most = 100 * min(found[kind]), 100 * max(found[kind])
        print(f"{kind}: {100 * mean(found[kind]):.2f} % ({least:.2f} .. {most:.2f}, n = {len(runs)})", flush=True)
    facts = {"date": today(), "hardware": hardware(), "command": command(), "steps": flags.steps, "chance": CHANCE}
    flags.out.mkdir(parents=True, exist_ok=True)
    write_bytes(flags.out / "bn_leak.json", json.dumps(facts | {"pretext_accuracy": found}, indent=1).encode())


if __name__ == "__main__":
    main()
