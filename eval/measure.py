"""All protocols of one encoder on one data set, as rows that hold everything that belongs beside a number."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import torch

from eval.contestants import Contestant, fingerprint
from eval.geometry import channel_std
from eval.protocols import PROTOCOLS, Protocol
from eval.report import draw
from eval.results import Results
from eval.sources import Processes, Source, features_of
from eval.tables import Row
from eval.task import Task
from zoo.errors import BadData
from zoo.model.encoder import Encoder, accelerator_name
from zoo.provenance import command, hardware, today, versions

COLLAPSED = 1e-3  # channel_std below it: the features are one point


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
) -> list[Row]:
    """The rows, those that `results` has already from there; none but for the first process.

    Raises BadData if the encoder changes on the way.
    """
    source = source.seen_by(contestant.encoder)
    bank, queries = features_of(contestant, source, group)
    task = Task(
        contestant.encoder, source.train, source.test, bank, queries, source.classes, device, finetune_steps,
        source.metric,
    )  # fmt: skip
    rows: list[Row] = []
    for name in protocols if group.rank == 0 else ():
        protocol = PROTOCOLS[name]
        if protocol.trains_on_images and not isinstance(contestant.encoder, Encoder):
            continue
        steps = finetune_steps if name == "finetune" else None
        key = [name, protocol.version, contestant.label, contestant.sha256, *_shape(task), *source.sha256, steps]
        rows += results.once(key, partial(_rows, contestant, source, task, protocol, results))
    if isinstance(contestant.encoder, Encoder) and fingerprint(contestant.encoder) != contestant.sha256:
        raise BadData(f"{contestant.label} changed while it was measured; is a layer in training mode?")
    if pictures:
        draw(rows, task, results)
    group.wait()
    return rows


def _shape(task: Task) -> tuple[int, int]:
    return task.encoder.image_size, task.bank.rows.shape[1]


def _rows(contestant: Contestant, source: Source, task: Task, protocol: Protocol, results: Results) -> list[Row]:
    """One protocol's outcomes; what they predicted is kept beside them."""
    started = time.process_time()
    outcomes = protocol.measure(task)
    seconds = round(time.process_time() - started, 2)
    spread = channel_std(task.queries.rows)
    rows = []
    for outcome in outcomes:
        row = {
            "key": f"{outcome.name}/{source.name}/{contestant.label}/{len(task.bank)}/{len(task.queries)}",
            "protocol": outcome.protocol,
            "protocol_version": protocol.version,
            "encoder": contestant.label,
            "encoder_sha256": contestant.sha256,
            "weights_sha256": contestant.weights_sha256,
            "feature": contestant.feature,
            "image_size": task.encoder.image_size,
            "dim": task.bank.rows.shape[1],
            "collapsed": bool(spread < COLLAPSED),
            "dataset": source.name,
            "metric": outcome.metric,
            "unit": "share",
            "value": outcome.value,
            "ci95": list(outcome.ci95) if outcome.ci95 else None,
            "n_train": len(task.bank),
            "n_test": len(task.queries),
            **asdict(source.counts),
            "data_sha256": list(source.sha256),
            "cpu_seconds": seconds,
            "hardware": hardware(accelerator_name(task.device)),
            "date": today(),
            "versions": versions(),
            "command": command(),
        }
        rows.append(row | outcome.facts)
        if outcome.predicted is not None:
            results.keep_predictions(row, outcome.predicted, task.queries.labels)
    return rows
