"""The protocols by the names that stand on the command line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eval.fewshot import fewshot, labels
from eval.finetune import finetune
from eval.geometry import geometry
from eval.knn import knn, knn_euclidean
from eval.linear import linear, ridge
from eval.linear_sgd import linear_augmented, linear_moco, linear_sgd
from eval.retrieval import retrieval
from eval.task import Outcome, Task
from zoo.errors import BadData, unknown


@dataclass(frozen=True)
class Protocol:
    """One way to measure."""

    measure: Callable[[Task], list[Outcome]]
    version: int  # raised when the same words come to mean another computation
    trains_on_images: bool = False  # and so needs a network: raw pixels are left out
    several_labels: bool = False  # takes images that are of several classes
    takes_steps: bool = False  # its numbers depend on `Task.finetune_steps`


PROTOCOLS: dict[str, Protocol] = {
    "knn": Protocol(knn, 1),
    "knn-euclidean": Protocol(knn_euclidean, 1),
    "linear": Protocol(linear, 3, several_labels=True),
    "linear-sgd": Protocol(linear_sgd, 4),
    "linear-augmented": Protocol(linear_augmented, 2, trains_on_images=True),
    "linear-moco": Protocol(linear_moco, 2, trains_on_images=True),
    "ridge": Protocol(ridge, 2),
    "fewshot": Protocol(fewshot, 2),
    "labels": Protocol(labels, 3),
    "finetune": Protocol(finetune, 2, trains_on_images=True, several_labels=True, takes_steps=True),
    "retrieval": Protocol(retrieval, 1),
    "geometry": Protocol(geometry, 2, several_labels=True),
}
SUITES = {"transfer": ("linear", "fewshot", "labels", "finetune")}


def expand(protocols: str | Sequence[str], *, several_labels: bool = False) -> list[str]:
    """Names of PROTOCOLS, each once; a suite stands for those of its own that can measure the data.

    protocols: names, or one string with commas between them. several_labels: the images may be of several classes.
    Raises UnknownName, BadData.
    """
    able = [name for name, protocol in PROTOCOLS.items() if protocol.several_labels or not several_labels]
    names = []
    for text in [name.strip() for name in protocols.split(",")] if isinstance(protocols, str) else protocols:
        names += [name for name in SUITES[text] if name in able] if text in SUITES else [text]
    for name in names:
        if name not in PROTOCOLS:
            raise unknown("protocol", name, [*PROTOCOLS, *SUITES])
        if name not in able:
            raise BadData(f"{name} wants one class an image; for images of several there are {', '.join(able)}")
    return list(dict.fromkeys(names))
