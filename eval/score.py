"""Measure encoders and write the results into their cards.

    python -m eval.score runs/simco-r18-cifar100 --data cifar100=DIR --protocol knn,linear --out results/cifar100

A model that came with the package or from the Hub keeps its card as it is: its rows go to the tables and `--out` alone.
Every model of the zoo brings two baselines under the same protocol: the raw pixels, and the same network at random
initialisation. The test split is read once and decides nothing. `accelerate launch -m eval.score ...` extracts the
features with all processes; the first one does the rest.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from zoo.errors import BadData, ZooError, needs, unknown

with needs("eval", command=__name__ == "__main__"):
    import accelerate  # noqa: F401  (eval.sources')
    import sklearn  # noqa: F401  (eval.linear's)
    import torch
    import tyro

from eval.contestants import Contestant, baselines, fingerprint, open_contestant
from eval.fewshot import fewshot, labels
from eval.finetune import finetune
from eval.geometry import channel_std, geometry
from eval.knn import knn
from eval.linear import linear, ridge
from eval.linear_sgd import linear_augmented, linear_moco, linear_sgd
from eval.own_card import add_rows, is_ours
from eval.report import draw, html
from eval.results import Results
from eval.retrieval import retrieval
from eval.sources import Processes, Source, features_of, open_source
from eval.tables import Row, markdown
from eval.task import Outcome, Task
from zoo.dataset import dataset_row
from zoo.encoder import Encoder, accelerator_name
from zoo.files import write_bytes
from zoo.provenance import command, hardware, today, versions
from zoo.store import locate, read_card

COLLAPSED = 1e-3  # channel_std below it: the features are one point


@dataclass(frozen=True)
class Protocol:
    """One way to measure."""

    measure: Callable[[Task], list[Outcome]]
    version: int  # raised when the same words come to mean another computation
    trains_on_images: bool = False  # and so needs a network: raw pixels are left out


PROTOCOLS: dict[str, Protocol] = {
    "knn": Protocol(knn, 1),
    "linear": Protocol(linear, 3),
    "linear-sgd": Protocol(linear_sgd, 3),
    "linear-augmented": Protocol(linear_augmented, 2, trains_on_images=True),
    "linear-moco": Protocol(linear_moco, 2, trains_on_images=True),
    "ridge": Protocol(ridge, 2),
    "fewshot": Protocol(fewshot, 2),
    "labels": Protocol(labels, 3),
    "finetune": Protocol(finetune, 2, trains_on_images=True),
    "retrieval": Protocol(retrieval, 1),
    "geometry": Protocol(geometry, 2),
}
SUITES = {"transfer": ("linear", "fewshot", "labels", "finetune")}


def score(
    models: str | Path | Sequence[str | Path],
    *,
    data: dict[str, Path | None] | None = None,
    protocols: Sequence[str] = ("knn",),
    max_train: int | None = None,
    max_test: int | None = None,
    finetune_steps: int = 5000,
    out: Path | None = None,
    pictures: bool = False,
    device: str | torch.device = "cpu",
    processes: Processes | None = None,
) -> list[Row]:
    """Measure models and their baselines; the rows are returned, and written into the cards that `is_ours` allows.

    models: whatever `eval.contestants.open_contestant` takes. data: where each data set to measure on lies (as for
    `open_split`); by default the model's own. max_train, max_test: use random subsets of these sizes; the rows say so.
    out: a folder that keeps every row and its predictions; what it has already is not measured again.
    pictures: draw into `out/plots`, too.
    Raises BadData, UnknownName, NoWeights, CorruptFile.
    """
    for flag, most in {"max_train": max_train, "max_test": max_test}.items():
        if most is not None and most < 1:
            raise BadData(f"{flag} = {most}; at least 1 image is needed")
    group, results = processes or Processes(), Results(out)
    names = [models] if isinstance(models, str | Path) else list(models)
    rows: list[Row] = []
    for dataset, where in (data or own_data(names)).items():
        source = open_source(dataset, where, max_train=max_train, max_test=max_test)
        mine = [name for name in names if data or dataset in own_data([name])]
        for contestant, owners in contestants(mine, dataset, device).items():
            found = _measure(contestant, source, expand(protocols), finetune_steps, results, pictures, device, group)
            if group.rank == 0:
                for folder in owners:
                    add_rows(folder, found)
            rows += found
    return rows


def own_data(models: Sequence[str | Path]) -> dict[str, Path | None]:
    """The data sets that the models were trained on."""
    foreign = [str(model) for model in models if ":" in str(model) or str(model).startswith("timm/")]
    if foreign:
        raise BadData(f"{', '.join(foreign)}: no data set of its own; say which with --data NAME=PATH")
    return {read_card(locate(model)).dataset: None for model in models}


def contestants(models: Sequence[str | Path], dataset: str, device: str | torch.device) -> dict[Contestant, list[Path]]:
    """Models and their baselines, each once, with the folders whose cards its rows belong into."""
    found: dict[tuple[str, str, int], tuple[Contestant, list[Path]]] = {}
    for model in models:
        opened = open_contestant(str(model), dataset, device=device)
        for one in [opened, *baselines(opened, device=device)]:
            key = (one.label, one.sha256, one.encoder.image_size)
            owners = found.setdefault(key, (one, []))[1]
            if opened.folder and is_ours(model, opened.folder):
                owners.append(opened.folder)
    return dict(found.values())


def expand(protocols: Sequence[str]) -> list[str]:
    """Names of PROTOCOLS, each once; a suite stands for several. Raises UnknownName."""
    names = [name for text in protocols for name in SUITES.get(text, (text,))]
    for name in names:
        if name not in PROTOCOLS:
            raise unknown("protocol", name, [*PROTOCOLS, *SUITES])
    return list(dict.fromkeys(names))


def _measure(
    contestant: Contestant,
    source: Source,
    protocols: Sequence[str],
    finetune_steps: int,
    results: Results,
    pictures: bool,
    device: str | torch.device,
    group: Processes,
) -> list[Row]:
    """All protocols of one encoder on one data set. Raises BadData if the encoder changes on the way."""
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
    """One protocol's outcomes, with everything that belongs beside a number."""
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


def main() -> None:
    """Command line: models, then where the data lies."""

    def command_line(
        models: Annotated[tuple[str, ...], tyro.conf.Positional],
        data: tuple[str, ...] = (),
        protocol: str = "knn",
        out: Path | None = None,
        max_train: int | None = None,
        max_test: int | None = None,
        finetune_steps: int = 5000,
    ) -> None:
        """Measure models and write the results into their cards.

        Args:
            models: Names of the zoo, run folders, timm:NETWORK, timm:NETWORK=FILE.safetensors, random:BACKBONE, pixels:
            data: NAME=PATH of every data set to measure on; NAME alone takes the Hub's copy. Default: the model's own.
            protocol: What to measure, with commas between: knn, linear, linear-sgd, linear-augmented, linear-moco,
                ridge, fewshot, labels, finetune, retrieval, geometry; transfer is linear, fewshot, labels, finetune.
            out: Folder for tables, plots, report.html and predictions. A second call goes on where the first stopped.
            max_train: Use a random subset of this many train images.
            max_test: Use a random subset of this many test images.
            finetune_steps: Length of each fine-tuning.
        """
        if not models:
            raise BadData("no model to measure; give a name of the zoo or a run folder, see --help")
        where = dict(_data_argument(text) for text in data)
        group = Processes.started()
        device = group.device
        rows = score(
            models,
            data=where,
            protocols=[name.strip() for name in protocol.split(",")],
            max_train=max_train,
            max_test=max_test,
            finetune_steps=finetune_steps,
            out=out,
            pictures=out is not None,
            device=device,
            processes=group,
        )
        if group.rank == 0:
            results = Results(out)
            results.write_tables(rows)
            if out is not None and rows:
                write_bytes(out / "report.html", html(rows, results.pictures()).encode())
            print(markdown(rows))
            for model in models:
                _tell_unwritten(model)

    try:
        tyro.cli(command_line, prog="python -m eval.score")
    except (ZooError, OSError) as error:
        sys.exit(f"error: {error}")


def _tell_unwritten(model: str) -> None:
    """Say so where the card stayed as it was."""
    folder = None if ":" in model else locate(model)
    if folder and not is_ours(model, folder):
        print(
            f"{model} is not yours to change: its card stays as it is. --out FOLDER keeps these rows", file=sys.stderr
        )


def _data_argument(text: str) -> tuple[str, Path | None]:
    name, _, path = text.partition("=")
    dataset_row(name)
    return name, Path(path) if path else None


if __name__ == "__main__":
    main()
