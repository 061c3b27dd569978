"""Measure encoders and write the results into their cards.

    python -m eval.score runs/simco-r18-cifar100 --data cifar100=DIR --protocol knn,linear --out results/cifar100

A model that came with the package or from the Hub keeps its card as it is: its results are in the tables and `--out`.
Every model of the zoo brings two baselines under the same protocol: the raw pixels, and the same network at random
initialisation. The test split is read once and decides nothing. `accelerate launch -m eval.score ...` extracts the
features with all processes; the first one does the rest.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from zoo.command_line import parse_and_call, run_command
from zoo.errors import BadData

if __name__ == "__main__":
    run_command("eval.score", extra="eval")

import accelerate  # noqa: F401  (eval.sources')
import sklearn  # noqa: F401  (eval.linear's)
import torch
import tyro

from eval.card_results import add_results, is_ours
from eval.command import at_least_one
from eval.contestants import Contestant, baselines, is_of_the_zoo, open_contestant
from eval.measure import measure
from eval.own_encoders import name_of
from eval.protocols import expand
from eval.quick import PROTOCOLS as QUICK
from eval.quick import QuickLook, quick_look
from eval.report import html
from eval.result import Result
from eval.results import Results
from eval.sources import Processes, open_source
from eval.tables import markdown
from zoo.files import write_bytes
from zoo.hub.resolve import locate
from zoo.hub.store import read_card
from zoo.images.opening import known_row, open_images

Model = str | Path | Callable[..., Any]


def score(
    models: Model | Sequence[Model],
    *,
    data: dict[str, Path | None] | None = None,
    protocols: str | Sequence[str] = (),
    quick: bool = False,
    max_train: int | None = None,
    max_test: int | None = None,
    finetune_steps: int = 5000,
    out: Path | None = None,
    pictures: bool = False,
    device: str | torch.device = "cpu",
    processes: Processes | None = None,
) -> list[Result]:
    """Measure models and their baselines; results are returned, and written into the cards that `is_ours` allows.

    models: whatever `eval.contestants.open_contestant` takes: names, and any module or function from images to features
    (see `eval.own_encoders`). data: where each data set to measure on lies (as for
    `open_images`); by default the model's own. protocols: by default knn; of a quick look knn and ridge.
    quick: take as many random images as can be embedded in a minute; each result says so, and how long all would take.
    max_train, max_test: use random subsets of these sizes; the results say so.
    out: a folder that keeps every result and its predictions, and tables and report.html of all that is finished; what
    it has already is not measured again.
    pictures: draw into `out/plots`, too.
    A protocol that fails is a result without a value that says why, and the others go on.
    Raises BadData (also if all of them failed), UnknownName, NoWeights, CorruptFile, ZooError.
    """
    at_least_one(max_train=max_train, max_test=max_test, finetune_steps=finetune_steps)
    if quick and (max_train or max_test):
        raise BadData("quick chooses the images itself; leave out max_train and max_test, or quick")
    group, results = processes or Processes(), Results(out)
    names: list[Model] = [models] if isinstance(models, str | Path) or callable(models) else list(models)
    places = data or own_data(names)
    protocols = protocols or (QUICK if quick else ("knn",))
    wanted = {
        dataset: expand(protocols, several_labels=known_row(dataset, where).several_labels)
        for dataset, where in places.items()
    }
    results.make_ready()
    splits = {}
    for dataset, where in places.items():  # before hours go by with the first one
        splits[dataset] = open_images(dataset, "train", where), open_images(dataset, "test", where)
    done: list[Result] = []
    for dataset, where in places.items():
        mine = [name for name in names if data or dataset in own_data([name])]
        those = contestants(mine, dataset, device)
        look = QuickLook(max_train, max_test, ("",) * len(those))
        if quick:
            look = quick_look(list(those), *splits[dataset])
        source = open_source(dataset, where, max_train=look.max_train, max_test=look.max_test)
        for (contestant, owners), remark in zip(those.items(), look.notes, strict=True):
            found = measure(
                contestant, source, wanted[dataset], results,
                finetune_steps=finetune_steps, pictures=pictures, device=device, group=group, remark=remark,
            )  # fmt: skip
            if group.rank == 0:
                for folder in owners:
                    add_results(folder, found)
                done += found
                _write(results, done)
    if done and all(one.failure for one in done):
        raise BadData(done[0].failure)
    return done


def _write(results: Results, done: list[Result]) -> None:
    """Tables and report of everything that the folder has by now."""
    everything = results.with_earlier(done)
    if results.folder is not None and everything:
        results.write_tables(everything)
        write_bytes(results.folder / "report.html", html(everything, results.pictures(), results.answers).encode())


def own_data(models: Sequence[Model]) -> dict[str, Path | None]:
    """The data sets that the models were trained on. Raises BadData for an encoder without one."""
    found: dict[str, Path | None] = {}
    for model in models:
        name = name_of(model) if callable(model) else str(model)
        known = not callable(model) and is_of_the_zoo(name) and not name.startswith("timm/")
        card = read_card(locate(name)) if known else None
        if card is None or card.is_plain_timm:
            raise BadData(f"{name}: no data set of its own; say which with --data NAME=PATH")
        found[card.dataset] = None
    return found


def contestants(models: Sequence[Model], dataset: str, device: str | torch.device) -> dict[Contestant, list[Path]]:
    """Models and their baselines, each once, with the folders whose cards its results belong into."""
    found: dict[tuple[str, str, int], tuple[Contestant, list[Path]]] = {}
    for model in models:
        opened = open_contestant(model, dataset, device=device)
        for one in [opened, *baselines(opened, device=device)]:
            key = (one.label, one.sha256, one.encoder.image_size)
            owners = found.setdefault(key, (one, []))[1]
            if opened.folder and not callable(model) and is_ours(model, opened.folder):
                owners.append(opened.folder)
    return dict(found.values())


def main() -> None:
    """Command line: models, then where the data lies."""

    def command_line(
        models: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
        encoder: tuple[str, ...] = (),
        data: tuple[str, ...] = (),
        protocol: str = "",
        quick: bool = False,
        out: Path | None = None,
        max_train: int | None = None,
        max_test: int | None = None,
        finetune_steps: int = 5000,
    ) -> None:
        """Measure models and write the results into their cards.

        Args:
            models: Names of the zoo, run folders, hf://ORG/NAME, timm/NAME (with the Hub's weights), timm:NETWORK (at
                random), timm:NETWORK=FILE.safetensors, random:BACKBONE, pixels:, onnx:FILE, https://HOST/embed
            encoder: Encoders of your own, package.module:function each: a function without arguments that returns a
                module, or any callable from images (B, 3, S, S) in [0, 1] to features (B, D).
            data: NAME=PATH of every data set to measure on; NAME alone takes the Hub's copy. Default: the model's own.
            protocol: What to measure, with commas between (by default knn): knn, knn-euclidean, linear, linear-sgd,
                linear-augmented, linear-moco, ridge, fewshot, labels, finetune, retrieval, geometry; transfer is
                linear, fewshot, labels, finetune.
            quick: An answer in a minute by knn and ridge, on as few random images as that takes; the notes say how
                long all of them would take.
            out: Folder for tables, plots, report.html and predictions. A second call goes on where the first stopped,
                and what was measured into it before stays in its tables.
            max_train: Use a random subset of this many train images.
            max_test: Use a random subset of this many test images.
            finetune_steps: Length of each fine-tuning.
        """
        models = (*models, *(f"python:{text}" for text in encoder))
        if not models:
            raise BadData("no model to measure; give a name of the zoo or a run folder, see --help")
        where = dict(_data_argument(text) for text in data)
        if len(where) < len(data):
            raise BadData(f"--data {' '.join(data)}: a data set stands there twice; measure them one after the other")
        group = Processes.started()
        device = group.device
        found = score(
            models,
            data=where,
            protocols=protocol,
            quick=quick,
            max_train=max_train,
            max_test=max_test,
            finetune_steps=finetune_steps,
            out=out,
            pictures=out is not None,
            device=device,
            processes=group,
        )
        if group.rank == 0:
            if not found:
                raise BadData(f"nothing was measured: {protocol} trains a network, and {' '.join(models)} has none")
            print(markdown(found))
            for model in models:
                _tell_unwritten(model)
            if failed := sum(bool(one.failure) for one in found):
                raise BadData(f"{failed} of {len(found)} measurements failed; the notes below the tables say why")

    parse_and_call(command_line, prog="zoo score", stopped="with --out FOLDER, the same command goes on from there")


def _tell_unwritten(model: str) -> None:
    """Say so where the card stayed as it was."""
    folder = locate(model) if is_of_the_zoo(model) else None
    if folder and not is_ours(model, folder):
        print(
            f"{model} is not yours to change: its card stays as it is. --out FOLDER keeps these results",
            file=sys.stderr,
        )


def _data_argument(text: str) -> tuple[str, Path | None]:
    name, _, path = text.partition("=")
    known_row(name, path or None)
    return name, Path(path) if path else None
