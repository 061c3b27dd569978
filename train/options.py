"""How a recipe is trained on this machine: the flags of `train/pretrain.py` that are no part of the recipe."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from train.run_log import PROJECT
from zoo.errors import BadNumber

LEAST = {
    "limit": 1, "knn_every": 0, "keep_every": 0, "chunk": 0, "workers": 1, "threads": 1, "freeze_epochs": 0,
    "backbone_rate": 0,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where the data is, where the run goes, and how it is computed.

    Raises:
        BadNumber: For a number below its least value.
    """

    data: Path | None = None
    """Parquet shards, class folders, or an archive of them; folder:PATH takes any images without labels. By default the
    Hub's copy."""
    out: Path | None = None
    """The run folder, by default runs/NAME."""
    limit: int | None = None
    """Train on that many images, drawn at random; the online probe's test split is cut to as many."""
    knn_every: int = 10
    """Epochs between measurements of k-NN accuracy on held-out train images; 0 for none."""
    keep_every: int = 0
    """Epochs between models that are kept in `epochs/` of the run folder, each of which zoo.load opens; 0 for none."""
    start: str | None = None
    """Weights to start from: a name of the zoo, a run folder, or an address on the Hub. By default random ones."""
    freeze_epochs: int = 0
    """Epochs for which the encoder's weights stay as they are, while the projector learns."""
    backbone_rate: float = 1.0
    """Learning rate of the encoder, as a share of the recipe's."""
    chunk: int = 0
    """Images of a process that go through the encoder at a time, for a batch that does not fit into memory. The
    gradient is the whole batch's, but batch normalization sees a chunk; 0 for all at once."""
    stream: bool = False
    """Read and decode images while training rather than once before; always so above 96 px."""
    workers: int = 2
    """Threads of each process that decode."""
    threads: int | None = None
    """CPU threads of each process that compute. By default OMP_NUM_THREADS, or the machine's cores divided by the
    processes on it."""
    compile: bool = False
    """Compile the networks with torch.compile."""
    remarks: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()
    """Lines to print when training begins."""
    wandb_project: str = PROJECT
    """Project of the run on Weights & Biases, where the package wandb is installed."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise BadNumber(f"{name} = {value}; at least {least} is needed")
