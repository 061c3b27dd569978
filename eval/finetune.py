"""Fine-tuning: a copy of the whole network and a new linear head, trained on the data set."""

import copy
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval.average_precision import mean_average_precision
from eval.features import batch_of, labelled
from eval.linear import held_out, refuse_one_class, strata
from eval.linear_sgd import cosine, image_batches
from eval.metrics import accuracy
from eval.notes import selection_notes
from eval.task import Outcome, Task
from zoo.images.image_set import ImageSet
from zoo.model.encoder import Encoder

RATES = tuple(10.0**exponent for exponent in (-4, -3, -2, -1))
DECAYS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3)  # divided by the rate
BATCH = 64  # images


@dataclass(frozen=True)
class Schedule:
    """One training."""

    rate: float
    decay: float
    steps: int


def finetune(task: Task) -> list[Outcome]:
    """Ericsson et al. 2021, appendix: 4 rates x 5 decays chosen on a held-out tenth of train, then all of train.

    SGD with Nesterov momentum 0.9, batch 64, 5,000 steps on half a cosine, crops and flips; batch normalisation trains.
    Where an image may be of several classes, each is a yes or no of its own, and the mean average precision chooses.
    """
    several = task.bank.labels.ndim > 1
    refuse_one_class(task.bank.labels)
    if several:
        refuse_one_class(task.queries.labels, split="test")
    measure, kind = (mean_average_precision, ", one-vs-rest") if several else (accuracy, "")
    steps = task.finetune_steps
    index = labelled(task.train)
    chosen_on = held_out(strata(task.bank.labels) if several else task.bank.labels)
    scores = {}
    for rate, decay in product(RATES, DECAYS):
        network = train(task, index[~chosen_on], Schedule(rate, decay / rate, steps))
        predicted = answers(network, task.train, index[chosen_on], task)
        scores[rate, decay] = measure(predicted, task.bank.labels[chosen_on])
    rate, decay = max(scores, key=scores.__getitem__)
    network = train(task, index, Schedule(rate, decay / rate, steps))
    predicted = answers(network, task.test, labelled(task.test), task)
    value, interval = task.grade(predicted)
    edge, held = rate in (RATES[0], RATES[-1]), {f"{r:g}, {d:g}": score for (r, d), score in scores.items()}
    extras = {"rate": rate, "decay": decay, "grid_edge": edge, "held_out": held}
    notes = selection_notes(grid_edge=edge, held_out=held)
    protocol = f"fine-tuning{kind}, {steps} steps of {BATCH} images, rate and decay chosen on 10 % of train"
    name = f"finetune-{steps}"
    return [Outcome(name, protocol, task.metric, value, interval, predicted, notes=notes, extras=extras)]


def train(task: Task, index: np.ndarray, schedule: Schedule, *, seed: int = 0) -> nn.Sequential:
    """A copy of the encoder with a head of its own, trained on the train images `index`. The encoder stays as it is."""
    if not isinstance(task.encoder, Encoder):
        raise TypeError(f"fine-tuning needs a network, not {type(task.encoder).__name__}")
    torch.manual_seed(seed)
    head = nn.Linear(task.encoder.dim, task.classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    network = nn.Sequential(copy.deepcopy(task.encoder), head).to(task.device).train().requires_grad_()
    optimiser = torch.optim.SGD(
        network.parameters(), schedule.rate, momentum=0.9, nesterov=True, weight_decay=schedule.decay
    )
    size, like = task.encoder.image_size, task.encoder.mean
    batches = image_batches(task.train, index, schedule.steps, batch=BATCH, size=size, like=like, seed=seed)
    for step, (images, classes) in enumerate(batches):
        if len(images) < 2:
            continue  # batch normalisation of a single image is undefined
        for group in optimiser.param_groups:
            group["lr"] = schedule.rate * cosine(step / schedule.steps)
        optimiser.zero_grad()
        loss(network(images), classes).backward()
        optimiser.step()
    return network.eval()


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy, (), of logits (B, C) and classes (B,).

    Of labels (B, C) the binary one: 1 yes, 0 no, and what is -1 is not learnt from.
    """
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels)
    known = labels >= 0
    losses = F.binary_cross_entropy_with_logits(logits, labels.clamp(0).to(logits.dtype), reduction="none")
    return (losses * known).sum() / known.sum()


@torch.inference_mode()
def answers(network: nn.Sequential, split: ImageSet, index: np.ndarray, task: Task) -> np.ndarray:
    """Predicted classes (n,) of the images `index`, -1 where the network has diverged.

    Scores (n, C) where an image may be of several, all of them equally low where it has diverged.
    """
    parts = []
    batch = batch_of(task.encoder.image_size)
    for start in range(0, len(index), batch):
        pixels = split.pixels(task.encoder.image_size)[index[start : start + batch]]
        logits = network(torch.from_numpy(pixels).to(task.device).permute(0, 3, 1, 2) / 255)
        finite = logits.isfinite().all(1)
        if split.labels.ndim > 1:
            parts.append(torch.where(finite[:, None], logits, torch.finfo(logits.dtype).min))
        else:
            parts.append(torch.where(finite, logits.argmax(1), -1))
    return torch.cat(parts).cpu().numpy()
