"""What the main process reports of a training run: progress bar, log, warnings, and the page at the end."""

import math
import sys
from pathlib import Path
from typing import final

from torch import Tensor
from tqdm import tqdm

from eval.features import extract, labelled
from train.batches import batches, what_is_skipped
from train.method import Method, Step
from train.monitor import (
    StepMetrics,
    collapse_warning,
    held_out_features,
    labelled_features,
    leak_warning,
    online_knn,
    online_spectrum,
)
from train.options import Options
from train.own_images import healthy_curve
from train.probe import OnlineProbe
from train.recipe import Recipe
from train.report import SHOWN, write_report
from train.run_log import RunLog, read_log
from train.views import Views
from zoo.errors import ZooError
from zoo.files import write_bytes
from zoo.images.image_set import ImageSet
from zoo.images.opening import FOLDER, open_images

NAMED = 5  # images that cannot be decoded, in one line


@final
class Watch:
    """Everything visible of one run. Except at the end of an epoch it only reads a few scalars."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        method: Method,
        images: ImageSet,
        monitored: ImageSet,
        *,
        step: int,
        total: int,
        options: Options,
        probe: OnlineProbe | None = None,
    ) -> None:
        """monitored: some of the images. step: updates done. total: updates at the end. probe: learns with method."""
        self._probe, self._monitored, self._options = probe, monitored, options
        self._test: ImageSet | None = None
        self._folder, self._recipe, self._method, self._images = folder, recipe, method, images
        self._first, self._total, self._knn_every = step, total, options.knn_every
        self._warned, self._reported = set[str](), 0
        self._metrics, self._solved = StepMetrics(), 0.0
        config = {"recipe": recipe.name} | recipe.hyperparameters()
        self._log = RunLog(folder, step=step, config=config, wandb_project=options.wandb_project)
        self._remarks = options.remarks
        self._best_knn = max((line.get("knn_held_out", 0.0) for line in read_log(folder)), default=0.0)
        seconds = 0.1 if sys.stderr.isatty() else 30.0  # between two states of the bar: a log keeps them all
        self._bar = tqdm(total=total, initial=step, unit=" steps", dynamic_ncols=True, mininterval=seconds)

    def __enter__(self) -> "Watch":
        self._report_skipped()
        batch_size = self._recipe.batch_size
        for line in (*self._remarks, *self._method.remarks(len(self._images), batch_size)):
            self._bar.write(line)
        if self._remarks:
            self._bar.write(healthy_curve(*self._method.loss_range(batch_size)))
        if self._knn_every and self._first < self._total:
            self._test = self._test_split()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._log.close()

    def step(self, outcome: Step) -> None:
        """Keep the metrics of a step and move the bar, without waiting for the device."""
        self._metrics.add(outcome.metrics)
        self._bar.update()

    def log(self, done: int, epoch: float, *, loss: Tensor, learning_rate: float) -> dict[str, float]:
        """Log the numbers after `done` updates; at the end of an epoch those of the features, too. Returns the line."""
        numbers = {"loss": loss.item(), "learning_rate": learning_rate, "epoch": epoch} | self._metrics.take()
        momentum = self._method.key_momentum_at(done / self._total)
        numbers |= {} if momentum is None else {"key_momentum": momentum}
        self._solved = numbers.get("pretext_accuracy", 0.0)
        self._bar.set_description_str(self._description(numbers["loss"], learning_rate), refresh=False)
        if epoch.is_integer():
            numbers |= self._features()
            if self._knn_every and (epoch % self._knn_every == 0 or done == self._total):
                numbers |= self._knn()
            if self._knn_every and done == self._total:
                numbers |= self._on_test()
        self._report_skipped()
        self._log.write(done, **numbers)
        return {"step": done, **numbers}

    def report(self) -> None:
        """Write `report.html`, if training went on in this process or there is none."""
        if self._first == self._total and (self._folder / "report.html").is_file():
            return
        method, recipe, size = self._method, self._recipe, self._method.encoder.image_size
        views = Views(
            *recipe.view_policies, sizes=lambda _: recipe.sizes_at(recipe.epochs - 0.5, size), seed=recipe.seed
        )
        pixels = next(batches(self._images, views, first=0, last=1, batch_size=recipe.batch_size)).pixels
        found = online_spectrum(method.encoder, self._monitored)
        shown = pixels[:SHOWN] if isinstance(pixels, Tensor) else tuple(crops[:SHOWN] for crops in pixels)
        write_report(self._folder, method.loss_range(recipe.batch_size), found, views(shown, 0))

    def _description(self, loss: float, learning_rate: float) -> str:
        """`loss 4.101 (start 5.545, floor 0.993)  lr 0.0300  812 images/s`, before the bar."""
        start, floor = self._method.loss_range(self._recipe.batch_size)
        bar = self._bar.format_dict  # nearly empty, 0 seconds, where TQDM_DISABLE has switched the bar off
        steps_per_second = bar["rate"] or (self._bar.n - self._first) / (bar["elapsed"] or math.inf)
        speed = steps_per_second * self._recipe.batch_size
        return f"loss {loss:.3f} (start {start:.3f}, floor {floor:.3f})  lr {learning_rate:.4f}  {speed:,.0f} images/s"

    def _features(self) -> dict[str, float]:
        found = online_spectrum(self._method.encoder, self._monitored)
        self._warn_once("collapse", collapse_warning(found))
        return {"std": found.std, "rank": found.rank}

    def _knn(self) -> dict[str, float]:
        features = labelled_features(self._method.encoder, self._monitored)
        if features is None:
            return {}
        value, unseen = online_knn(features), held_out_features(features)
        self._bar.write(f"k-NN on held-out train images, k = 20: {100 * value:.2f} %")
        self._warn_once("leak", leak_warning(self._solved, value, self._best_knn, held_out=len(self._monitored) // 6))
        self._best_knn = max(self._best_knn, value)
        return {"knn_held_out": value} | ({"online_held_out": self._probe.accuracy(unseen)} if self._probe else {})

    def _test_split(self) -> ImageSet | None:
        """What the online probe is measured on at the end; None where there is none, which is reported before the
        first step."""
        own = str(self._options.data).startswith(FOLDER) or not self._images.in_memory
        if self._probe is None or own:
            return None
        try:
            test = open_images(self._images.name, "test", self._options.data).sample(self._options.limit)
            labelled(test)
        except (ZooError, OSError) as error:  # the run can do its work without
            self._bar.write(f"no test split for the online probe, so no online_test at the end: {error}")
            return None
        return test

    def _on_test(self) -> dict[str, float]:
        """The online probe's accuracy on the test split, once, at the end; the papers' online numbers are of it."""
        if self._probe is None or self._test is None:
            return {}
        test = extract(self._method.encoder, self._test)
        value = self._probe.accuracy(test)
        self._bar.write(f"online linear probe on {len(test):,} test images: {100 * value:.2f} %")
        return {"online_test": value}

    def _warn_once(self, about: str, warning: str) -> None:
        if warning and about not in self._warned:
            self._bar.write(f"warning: {warning}")
            self._warned.add(about)

    def _report_skipped(self) -> None:
        """Report images that cannot be decoded, each once: the first ones here, all of them in a file."""
        lines = [printable(line) for line in what_is_skipped(self._images)]
        if len(lines) > self._reported:
            path = self._folder / "skipped.txt"
            earlier = path.read_text().splitlines() if path.exists() else []  # of the run before a stop
            write_bytes(path, "".join(f"{line}\n" for line in dict.fromkeys([*earlier, *lines])).encode())
            self._bar.write(f"{skipped_line(lines, self._reported, of=self._images.listed)}. All are in {path}")
            self._reported = len(lines)


def skipped_line(lines: list[str], said: int, *, of: int) -> str:
    """One line on the images that cannot be decoded beyond the first `said`, of so many."""
    new = lines[said:]
    count = f"{len(new)} more of {of:,} images" if said else f"{len(new)} of {of:,} images"
    total = f" ({len(lines)} in all)" if said else ""
    more = f" ... and {len(new) - NAMED} more" if len(new) > NAMED else ""
    return f"{count} cannot be decoded and are left out{total}: {'; '.join(new[:NAMED])}{more}"


def printable(text: str) -> str:
    """The text as one line of UTF-8, whatever is in a file's name."""
    return " ".join(text.encode(errors="backslashreplace").decode().splitlines())
