"""Detection: a ResNet's weights in torchvision's Faster R-CNN, fine-tuned on a folder in VOC layout.

    python -m eval.detect runs/simco-r50-in100 random:simco-r50-in100 --data VOC2007 --neck c4 --out results/voc2007

The schedule is MoCo's for VOC (He et al. 2020, section 4.2.1, and its released configuration): 24,000 steps of 16
images, rate 0.02 after 100 steps of warm-up, a tenth of it from 18,000 and again from 22,000, short side 480 to 800,
all layers trained. Batch normalisation is of one process, and its running averages serve in the test, where MoCo's
computes its statistics anew. AP, AP50 and AP75 are COCO's, in [0, 1]. Difficult objects are learnt from, as in
Detectron2; in the test an answer that lies on one counts neither way, as on COCO's crowds.

A small set on one CPU core, such as the blood cells of BCCD (205 train, 72 test images):

    python -m eval.detect runs/simco-r18-cifar100 random:simco-r18-cifar100 --data bccd --train train --steps 100
        --batch-size 4 --sides 64 --regions 32 --rate 0.06
"""

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

from zoo.command_line import parse_and_call, run_command
from zoo.errors import BadData

if __name__ == "__main__":
    run_command("eval.detect", extra="eval")

import accelerate  # noqa: F401  (eval.contestants')
import pycocotools  # noqa: F401  (torchmetrics')
import torch
import tyro

from eval.command import at_least_one
from eval.contestants import SEED, Contestant, fingerprint, is_of_the_zoo, open_contestant
from eval.detection import METRICS, RATE, Diverged, average_precision, fit
from eval.detector import REGIONS, SIDES, Neck, detector
from eval.notes import divergence_note
from eval.result import MeasuredEncoder, Provenance, Result
from eval.results import Results
from eval.scenes import Lists, read_lists
from eval.tables import over_seeds, trainings
from zoo.model.encoder import Encoder, accelerator_name, new_encoder
from zoo.provenance import command, hardware, today, versions

UNTRAINED = "random:"
VERSION = 1  # raised when the same flags come to mean another computation


class Settings(NamedTuple):
    """All flags of a training but its seed; by default MoCo's for VOC."""

    neck: Neck = "c4"
    steps: int = 24_000
    batch_size: int = 16  # images
    rate: float = RATE
    sides: tuple[int, ...] = SIDES
    regions: int = REGIONS


def open_model(text: str) -> Contestant:
    """A model of the zoo, or, as random:NAME, the same network before any training. Raises BadData, and as `zoo.load`.

    The hash of an untrained one is that of its first draw; each training draws its own.
    """
    if is_of_the_zoo(text):
        return open_contestant(text, "")
    if not text.startswith(UNTRAINED):
        raise BadData(
            f"{text}: detection takes names of the zoo, run folders, and random:NAME, a model's untrained twin"
        )
    torch.manual_seed(SEED)
    encoder = new_encoder(text.removeprefix(UNTRAINED))
    return Contestant(text, encoder, fingerprint(encoder))


def detect(
    models: Sequence[str], lists: Lists, settings: Settings, *, seeds: int, results: Results, device: str = "cpu"
) -> Iterator[tuple[str, list[Result]]]:
    """Each model with the rows of each of its trainings, AP, AP50 and AP75, those that `results` has from there.

    A model that several names stand for is trained under the first. The value of a training that diverged is None.
    Raises BadData, CorruptFile, ZooError, and as `zoo.load`.
    """
    opened: dict[str, Contestant] = {}
    for name in models:
        one = open_model(name)
        if all((one.label, one.sha256) != (other.label, other.sha256) for other in opened.values()):
            opened[name] = one
    for one in opened.values():  # before hours go by with the first one
        detector(_encoder(one, 0), classes=len(lists.classes), neck=settings.neck)
    results.make_ready()
    done: list[Result] = []
    for name, one in opened.items():
        for seed in range(seeds):
            key = ["detect", VERSION, one.label, one.sha256, *settings, *lists.sha256, seed]
            found = results.once(key, partial(_rows, one, lists, settings, seed, device))
            done += found
            results.write_tables(results.with_earlier(done))
            yield name, found


def _rows(contestant: Contestant, lists: Lists, settings: Settings, seed: int, device: str) -> list[Result]:
    """One training, told by what belongs beside its numbers."""
    started = time.process_time()
    diverged, found = None, dict[str, float]()
    try:
        found = _measured(contestant, lists, settings, seed, device)
    except Diverged as error:
        diverged = str(error)
    encoder = MeasuredEncoder(
        name=contestant.label,
        sha256=contestant.sha256,
        weights_sha256=contestant.weights_sha256,
        feature=contestant.feature,
        image_size=settings.sides[-1],
        dim=contestant.encoder.dim,
    )
    provenance = Provenance(
        hardware=hardware(accelerator_name(device)),
        date=today(),
        versions=versions("torchvision", "torchmetrics", "pycocotools"),
        command=command(),
        cpu_seconds=round(time.process_time() - started, 2),
    )
    place = f"{lists.name}/{contestant.label}/{len(lists.train)}/{len(lists.test)}"
    extras = {"classes": lists.classes, "lists": list(lists.lists), **settings._asdict()}
    return [
        Result(
            key=f"detect-{metric}-{seed}/{place}",
            protocol=_protocol(settings),
            version=VERSION,
            metric=metric,
            unit="share",
            value=found.get(metric),
            interval=None,
            encoder=encoder,
            data=lists.measured,
            collapsed=None,  # nobody looked
            notes=divergence_note(diverged, seed),
            provenance=provenance,
            extras=extras | {"sides": list(settings.sides), "seed": seed, "diverged": diverged},
        )
        for metric in METRICS
    ]


def _measured(contestant: Contestant, lists: Lists, settings: Settings, seed: int, device: str) -> dict[str, float]:
    """AP, AP50, AP75 after one training. Raises Diverged."""
    names, (neck, steps, batch, peak, sides, regions) = lists.classes, settings
    encoder = _encoder(contestant, seed)
    torch.manual_seed(seed)  # the new layers start alike in every model
    model = detector(encoder, classes=len(names), neck=neck, sides=sides, regions=regions).to(device)
    fit(model, lists.train, names, steps=steps, batch=batch, peak=peak, seed=seed)
    return average_precision(model, lists.test, names)


def _encoder(contestant: Contestant, seed: int) -> Encoder:
    """Its encoder; of an untrained one the draw of `seed`."""
    if contestant.label.startswith(UNTRAINED):
        torch.manual_seed(seed)
        return new_encoder(contestant.label.removeprefix(UNTRAINED))
    assert isinstance(contestant.encoder, Encoder)  # of the zoo
    return contestant.encoder


def _protocol(settings: Settings) -> str:
    neck, steps, batch, peak, sides, regions = settings
    how = f"{steps} steps of {batch} images, rate {peak:g} for 16, {regions} regions an image"
    return f"detection, Faster R-CNN {neck.upper()}, {how}, shorter side {'/'.join(map(str, sides))}"


def _line(name: str, seed: str, results: Sequence[Result]) -> str:
    """One line of the table that grows on the screen: of a training, or of the mean of several."""
    cells = []
    for one in results:
        if one.value is None:
            return f"| {name} | {seed} | {one.extras['diverged']} | | |"
        cells.append(f"{100 * one.value:.2f}" + (f" ± {100 * one.extras['std']:.2f}" if "std" in one.extras else ""))
    return f"| {name} | {seed} | {' | '.join(cells)} |"


def main() -> None:
    """Command line: models, then the folder."""

    def command_line(
        models: Annotated[tuple[str, ...], tyro.conf.Positional],
        data: Path,
        neck: Neck = "c4",
        train: str = "trainval",
        test: str = "test",
        steps: int = 24_000,
        batch_size: int = 16,
        rate: float = RATE,
        sides: tuple[int, ...] = SIDES,
        regions: int = REGIONS,
        seeds: int = 1,
        out: Path | None = None,
    ) -> None:
        """Fine-tune Faster R-CNN on a folder in VOC layout and print AP, AP50, AP75.

        Args:
            models: Names of the zoo, run folders, or random:NAME, the same network as NAME's before any training.
            data: Folder with JPEGImages, Annotations and ImageSets/Main.
            neck: c4 (MoCo's) or fpn.
            train: List in ImageSets/Main to train on.
            test: List to test on.
            steps: Updates; the falls of the rate move with them.
            batch_size: Images in a step.
            rate: Learning rate for 16 images; it moves with the batch.
            sides: Shorter sides in training, pixels; the last one is used in the test.
            regions: Regions of an image that the second stage learns from in a step; a small image needs few.
            seeds: Trainings of each model. 0.3 points between single runs are noise.
            out: Folder for results.json, .csv, .md, written after each training. A second call goes on with the
                trainings that are missing.
        """
        at_least_one(models=len(models), sides=min(sides, default=0), regions=regions)
        at_least_one(steps=steps, batch_size=batch_size, seeds=seeds)
        if not 0 < rate < math.inf:
            raise BadData(f"rate = {rate}; a number above 0 is needed, such as {RATE}")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        lists = read_lists(data, train, test)
        settings = Settings(neck, steps, batch_size, rate, sides, regions)
        print(f"{_protocol(settings)}; {len(lists.train)} train and {len(lists.test)} test images\n")
        print("| model | seed | AP | AP50 | AP75 |\n|---|---|--:|--:|--:|")
        table: dict[str, list[list[Result]]] = {}
        for name, found in detect(models, lists, settings, seeds=seeds, results=Results(out), device=device):
            print(_line(name, str(found[0].extras["seed"]), found), flush=True)
            table.setdefault(name, []).append(found)
        for name, of_one in table.items():
            means = [over_seeds(same) for same in zip(*of_one, strict=True)]
            print(_line(name, trainings(means[0]), means))
        _tell_diverged([first for of_one in table.values() for first, *_ in of_one])

    parse_and_call(command_line, prog="zoo detect", stopped="with --out FOLDER, the same command goes on from there")


def _tell_diverged(results: Sequence[Result]) -> None:
    """Raises BadData if a training diverged."""
    if lost := sum(one.value is None for one in results):
        raise BadData(f"{lost} of {len(results)} trainings diverged, and are in no mean; a lower --rate may do")
