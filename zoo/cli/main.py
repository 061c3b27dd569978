"""The `zoo` command: models by their names.

More commands, each with its own --help: zoo train (a recipe), zoo score, seeds and detect (measure), zoo export (to
ONNX), zoo serve (over HTTP), zoo index and bulk (many images), zoo demo (all of it on digits), zoo reproduce (a
checkpoint of the package again).

For several processes: accelerate launch -m zoo.cli train RECIPE.
"""

import sys
from typing import NamedTuple

from zoo.command_line import in_one_line, run_command


class Program(NamedTuple):
    """A command with a module of its own, whose `main` reads the command line."""

    module: str
    extra: str  # of this package, which has the module's dependencies


PROGRAMS = {
    "train": Program("train.pretrain", "train"),
    "score": Program("eval.score", "eval"),
    "seeds": Program("eval.seeds", "eval"),
    "detect": Program("eval.detect", "eval"),
    "export": Program("serve.export", "export"),
    "serve": Program("serve.launch", "serve"),
    "index": Program("serve.index", "index"),
    "bulk": Program("serve.bulk", "bulk"),
    "demo": Program("zoo.cli.demo", "demo"),
    "reproduce": Program("zoo.cli.reproduce", "demo"),
}


def main() -> None:
    """Entry point; errors meant for the user are one line, without a traceback."""
    words = sys.argv[1:]
    program = PROGRAMS.get(words[0]) if words else None
    if program is not None:
        sys.argv = [f"zoo {words[0]}", *words[1:]]
        run_command(program.module, program.extra)
    with in_one_line():
        _run(words)


def _run(words: list[str]) -> None:
    """The commands that only look are done before tyro and numpy are loaded, which would take most of the time."""
    from zoo.cli import listing

    plain = not any(word.startswith("-") for word in words)
    if words == ["--version"]:
        print(listing.version_line())
    elif words[:1] == ["list"] and plain and len(words) <= 2:
        listing.list_models(*words[1:])
    elif words[:1] == ["info"] and plain and len(words) == 2:
        listing.info(words[1])
    else:
        from zoo.cli import commands

        commands.run(about=str(__doc__))
