"""The training loop: algorithm 1 of He et al. 2020 (MoCo), whatever the paper.

    accelerate launch train/pretrain.py simco-r18-cifar100 --data DIR

Everything random is a function of (seed, step), so the same command, run again after a kill, goes on from the last
checkpoint to the same weights (on CPU: bit for bit).
"""

import sys
from pathlib import Path
from typing import Annotated, Any

from zoo.command_line import run_command
from zoo.processes import BORN  # noqa: F401  # before torch: it notes the launcher

if __name__ == "__main__":
    run_command("train.pretrain", extra="train")

import tensorboard  # noqa: F401  (train.run_log's)
import tyro
from accelerate import PartialState

from train.config import arguments
from train.options import Options
from train.own_images import Asked, recipe_for
from train.recipe import Recipe, recipes
from train.run import OnLog, Run
from train.stopping import exit_on_user_error

HELP = ("-h", "--help")


def pretrain(recipe: Recipe, *, on_log: OnLog | None = None, **options: Any) -> Path:
    """Train the encoder of `recipe`, or go on with its run.

        pretrain(find_recipe("simco-r18-cifar100"), data=Path("cifar100"), out=Path("runs/mine"), on_log=print)

    Args:
        recipe: The method and its hyperparameters; `dataclasses.replace` changes them.
        on_log: Called on the main process with each line of the log, as it is written: step, loss in nats, learning
            rate and, at the end of every `knn_every` epochs, k-NN accuracy in [0, 1].
        options: The fields of `train.options.Options`.

    Returns:
        The run folder, which `zoo.load` opens.

    Raises:
        BadNumber: For a number outside its range.
        BadData: If the images cannot be trained on.
        CorruptFile: If no checkpoint of the run can be read.
        ZooError: If another process trains there, the folder holds a run with other hyperparameters, or loss, features
            or weights are not finite.
        SystemExit: With code 143 after SIGTERM; all is saved.
    """
    run = Run(recipe, Options(**options), on_log)
    with run.open():
        for batch in run.batches():  # aug(x), twice
            step = run.backward(batch)  # queries, keys, loss, gradients
            run.check(step, batch)
            run.optimizer.step()
            run.optimizer.zero_grad()
            run.method.after_step(step, batch.progress)  # momentum update of the key encoder; enqueue, dequeue
            run.record(step)
        run.report()
    return run.folder


def main() -> None:
    """Command line: the recipe's name, then its hyperparameters and the options as flags."""
    if len(sys.argv) < 2 or sys.argv[1] in HELP:
        print(f"usage: zoo train RECIPE [--config FILE] [--help] [flags]\n\nrecipes: {', '.join(recipes())}")
        sys.exit(0 if sys.argv[1:] else 2)
    with exit_on_user_error():
        name, *words = arguments(sys.argv[1:])
        asked, _ = tyro.cli(Asked, args=[word for word in words if word not in HELP], return_unknown_args=True)
        recipe, remarks = recipe_for(name, asked)
        kind: Any = Annotated[type(recipe), tyro.conf.arg(name="")]
        flags: Any = Annotated[Options, tyro.conf.arg(name="")]

        def command_line(recipe: kind = recipe, options: flags = Options(remarks=tuple(remarks))) -> Path:  # noqa: B008
            """Train an encoder, or go on with the run in its folder.

            --config FILE takes flags from a YAML file, as each run folder's run.yaml; those given beside it win.
            """
            return pretrain(recipe, **vars(options))

        folder = tyro.cli(command_line, prog=f"zoo train {recipe.name}", args=words)
    if PartialState().is_main_process:
        print(f'{folder}: trained. Next: zoo.load("{folder}"), zoo score {folder}')
