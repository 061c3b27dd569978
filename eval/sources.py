"""Both splits of a data set, checked before anything is measured, and the features of both."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from eval.cache import cached_features
from eval.contestants import Contestant
from eval.decoding import DecodedOnce, readable
from eval.features import Features, PixelEncoder, extract, has_label
from eval.published_data import difference_from_published
from eval.result import MeasuredData
from zoo.errors import BadData
from zoo.images.dataset import Metric, dataset_row
from zoo.images.image_set import ImageSet
from zoo.images.opening import open_images
from zoo.model.encoder import Encoder
from zoo.processes import check_launch, processes_asked_for, starting


@dataclass(frozen=True)
class Source:
    """One data set to measure on."""

    name: str
    train: ImageSet
    test: ImageSet
    classes: int
    measured: MeasuredData  # n_train and n_test: images with a label
    decoded: DecodedOnce = field(default_factory=DecodedOnce)

    @property
    def sha256(self) -> tuple[str, str]:
        return self.train.digest, self.test.digest

    def seen_by(self, encoder: PixelEncoder) -> "Source":
        """With large images decoded straight to the size and crop of an encoder, once for all that have the same."""
        crop = crop_of(encoder)
        train, test = (self.decoded.sized(part, encoder.image_size, crop=crop) for part in (self.train, self.test))
        return replace(self, train=train, test=test)

    @property
    def metric(self) -> Metric:
        """What the data set's papers report."""
        return dataset_row(self.name).metric


@dataclass(frozen=True)
class Processes:
    """This process among those that extract features together."""

    rank: int = 0
    processes: int = 1
    wait: Callable[[], object] = lambda: None
    device: str | torch.device = "cpu"

    @classmethod
    def started(cls) -> "Processes":
        """As `accelerate launch` started us; alone, on the GPU if there is one, otherwise. Raises ZooError."""
        if processes_asked_for() == "1":
            return cls(device="cuda" if torch.cuda.is_available() else "cpu")
        from accelerate import PartialState

        with starting():
            state = PartialState(
                cpu=not torch.accelerator.is_available()
            )  # it would take each process for a single one
        check_launch(state.num_processes)
        return cls(state.process_index, state.num_processes, state.wait_for_everyone, state.device)


def crop_of(encoder: PixelEncoder) -> float:
    """Share of the shorter side that an encoder looks at, (0, 1]."""
    return encoder.crop if isinstance(encoder, Encoder) else 1.0


def open_source(name: str, where: Path | None, *, max_train: int | None = None, max_test: int | None = None) -> Source:
    """Both splits of the data set `name`.

    Raises BadData if the splits name different classes, or more than half of the test images are train images.
    """
    train, test = (open_images(name, split, where) for split in ("train", "test"))
    if train.classes != test.classes:
        only = sorted(set(train.classes) ^ set(test.classes)) or "the order"
        raise BadData(f"{name}: train and test do not have the same classes; different: {only}")
    different, decoded = difference_from_published(name, train, test), DecodedOnce()
    train, test = (readable(part, decoded) for part in (train.sample(max_train), test.sample(max_test)))
    train, test = in_one_order(train), in_one_order(test)
    known = [has_label(part.labels) for part in (train, test)]
    data = MeasuredData(
        name=name,
        sha256=(train.digest, test.digest),
        n_train=int(known[0].sum()),
        n_test=int(known[1].sum()),
        skipped=len(train.skipped) + len(test.skipped),
        unlabelled=sum(int((~part).sum()) for part in known),
        difficult=sum(int((part.labels[has_label(part.labels)] < 0).sum()) for part in (train, test)),
        unseen=unseen(train.labels, test.labels),
        duplicates=duplicates(train, test),
        different=different,
    )
    if data.unseen and data.unseen == data.n_test and len(np.unique(train.labels)) > 1:  # one class has its own refusal
        raise BadData(
            f"{name}: no test image is of a class that train has, so nothing could be right. Are the class folders of "
            f"train and test named alike? {_some_classes(train)} in train, {_some_classes(test)} in test"
        )
    if 2 * data.duplicates > len(test):
        raise BadData(
            f"{name}: {data.duplicates} of {len(test)} test images are train images, too; a score on them would be "
            "worthless. Is test a copy of train?"
        )
    classes = train.labels.shape[1] if train.labels.ndim > 1 else dataset_row(name).classes
    return Source(name, train, test, classes, data, decoded)


def _some_classes(split: ImageSet) -> str:
    """Names of the first classes that have images."""
    used = np.flatnonzero((split.labels == 1).any(0)) if split.labels.ndim > 1 else np.unique(split.labels)
    names = dict(enumerate(split.classes))
    shown = [names.get(label, str(label)) for label in used.tolist() if label >= 0]
    return ", ".join(shown[:4]) + (", ..." if len(shown) > 4 else "")


def unseen(train: np.ndarray, test: np.ndarray) -> int:
    """How many test images are of a class that no train image is of."""
    if test.ndim == 1:
        return int((~np.isin(test[test >= 0], train)).sum())
    return int((test[:, ~(train == 1).any(0)] == 1).any(1).sum())


def in_one_order(images: ImageSet) -> ImageSet:
    """The images by their hashes, so that nothing drawn from them depends on the order they came in.

    Those decoded on demand stay in the order of their files: neighbours there are cheap to read together.
    """
    if not images.in_memory:
        return images
    first, second = np.frombuffer(b"".join(images.hashes()), ">u8").reshape(-1, 2).T
    order = np.lexsort((*np.atleast_2d(images.labels.T), second, first))
    return images.part(order, digest=hashlib.sha256(f"{images.digest} in the order of hashes".encode()).hexdigest())


def duplicates(train: ImageSet, test: ImageSet) -> int:
    """How many test images are in train, pixel for pixel; of those decoded on demand, byte for byte."""
    known = set(train.hashes())
    return sum(digest in known for digest in test.hashes())


def features_of(
    contestant: Contestant, source: Source, group: Processes, *, batch_size: int | None = None
) -> tuple[Features, Features]:
    """Features of train and test, kept on disk where the contestant says so."""
    if not contestant.cached:
        bank, queries = (
            extract(contestant.encoder, part, batch_size=batch_size) for part in (source.train, source.test)
        )
        return bank, queries
    bank, queries = (
        cached_features(
            contestant.encoder,
            split,
            encoder_sha256=contestant.sha256,
            layer=contestant.feature,
            batch_size=batch_size,
            rank=group.rank,
            processes=group.processes,
            wait=group.wait,
            progress=f"{contestant.label}: {source.name} {split.split}",
        )
        for split in (source.train, source.test)
    )
    return bank, queries
