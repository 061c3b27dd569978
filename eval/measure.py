"""All protocols of one encoder on one data set."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from eval.class_tables import keep_class_tables
from eval.contestants import Contestant
from eval.features import Features
from eval.geometry import channel_std
from eval.notes import COLLAPSED_NOTE
from eval.protocols import PROTOCOLS, Protocol
from eval.report import draw
from eval.result import MeasuredEncoder, Provenance, Result
from eval.results import Results
from eval.sources import Processes, Source, features_of
from eval.task import Outcome, Task
from zoo.errors import BadData, ZooError
from zoo.model.encoder import Encoder, accelerator_name
from zoo.provenance import command, hardware, today, versions

COLLAPSED = 1e-3  # channel_std below it: the features are one point
FAILURES = (ZooError, ArithmeticError, ValueError, RuntimeError, MemoryError)  # of a protocol, whatever the input
ADVICE = "Change what it names, or leave this protocol out"


def measure(
    contestant: Contestant,
    source: Source,
    protocols: Sequence[str],
    results: Results,
    *,
    finetune_steps: int,
    pictures: bool,
    device: str | torch.device,
    group: Processes,
    remark: str = "",
) -> list[Result]:
    """The results, those that `results` has already from there; none but for the first process.

    remark: a sentence about the images that becomes a note of each result.

    A protocol that fails is a result without a value, and the others go on.
    Raises BadData if the encoder changes on the way.
    """
    source = source.seen_by(contestant.encoder)
    bank, queries = features_of(contestant, source, group)
    if contestant.sha256 and not contestant.cached:  # the features themselves are all that identifies it surely
        contestant = replace(contestant, sha256=_digest(bank, queries))
    task = Task(
        contestant.encoder, source.train, source.test, bank, queries, source.classes, device, finetune_steps,
        source.metric,
    )  # fmt: skip
    found: list[Result] = []
    for name in protocols if group.rank == 0 else ():
        protocol = PROTOCOLS[name]
        if protocol.trains_on_images and not isinstance(contestant.encoder, Encoder):
            continue
        steps = finetune_steps if protocol.takes_steps else None
        key = [name, protocol.version, contestant.label, contestant.sha256, *_shape(task), *source.sha256, steps]
        try:
            found += results.once(key, partial(_measured, name, contestant, source, task, results))
        except _Failed as failed:
            found.append(_result(failed.outcome, protocol, contestant, source, task, failure=failed.reason))
    found = [replace(one, notes=(*filter(None, [remark]), *one.notes)) for one in found]
    if contestant.identity() != contestant.sha256:
        raise BadData(f"{contestant.label} changed while it was measured; is a layer in training mode?")
    if pictures:
        draw(found, task, results)
    group.wait()
    return found


def _digest(*features: Features) -> str:
    """sha256 of features."""
    digest = hashlib.sha256()
    for part in features:
        digest.update(np.ascontiguousarray(part.rows).tobytes())
    return digest.hexdigest()


class _Failed(Exception):
    """A protocol could not measure."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


def _shape(task: Task) -> tuple[int, int]:
    return task.encoder.image_size, task.bank.rows.shape[1]


def _measured(name: str, contestant: Contestant, source: Source, task: Task, results: Results) -> list[Result]:
    """One protocol's results; what they predicted is kept beside them. Raises _Failed."""
    protocol, started = PROTOCOLS[name], time.process_time()
    try:
        outcomes = protocol.measure(task)
    except FAILURES as error:
        kind = "" if isinstance(error, ZooError) else f"{type(error).__name__}: "
        reason = " ".join(f"{kind}{error}".split())
        raise _Failed(Outcome(name, name, task.metric, float("nan")), f"{reason}. {ADVICE}") from error
    seconds = round(time.process_time() - started, 2)
    found = []
    for outcome in outcomes:
        found.append(_result(outcome, protocol, contestant, source, task, cpu_seconds=seconds))
        if outcome.predicted is not None:
            results.keep_predictions(found[-1], outcome.predicted, task.queries.labels)
            keep_class_tables(results, found[-1], outcome.predicted, task)
    return found


def _result(
    outcome: Outcome,
    protocol: Protocol,
    contestant: Contestant,
    source: Source,
    task: Task,
    *,
    failure: str = "",
    cpu_seconds: float | None = None,
) -> Result:
    """An outcome with the encoder, the images and the circumstances it was measured with."""
    collapsed = channel_std(task.queries.rows) < COLLAPSED
    encoder = MeasuredEncoder(
        name=contestant.label,
        sha256=contestant.sha256,
        weights_sha256=contestant.weights_sha256,
        feature=contestant.feature,
        image_size=task.encoder.image_size,
        dim=task.bank.rows.shape[1],
    )
    provenance = Provenance(
        hardware=hardware(accelerator_name(task.device)),
        date=today(),
        versions=versions(),
        command=command(),
        cpu_seconds=cpu_seconds,
    )
    return Result(
        key=f"{outcome.name}/{source.name}/{contestant.label}/{len(task.bank)}/{len(task.queries)}",
        protocol=outcome.protocol,
        version=protocol.version,
        metric=outcome.metric,
        unit=outcome.unit,
        value=None if failure else outcome.value,
        interval=outcome.interval,
        encoder=encoder,
        data=source.measured,
        collapsed=bool(collapsed),
        columns=outcome.columns,
        notes=(COLLAPSED_NOTE,) * bool(collapsed) + outcome.notes,
        details=outcome.details,
        failure=failure,
        provenance=provenance,
        extras=outcome.extras,
    )
