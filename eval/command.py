"""How a command of this layer starts and ends."""

import sys
from collections import Counter
from collections.abc import Callable

import tyro

from zoo.command_line import in_one_line
from zoo.errors import BadData


def at_least_one(**numbers: int | None) -> None:
    """Raises BadData, with the name of the first number that is below 1; None stands for no limit."""
    for flag, number in numbers.items():
        if number is not None and number < 1:
            raise BadData(f"{flag} = {number}; at least 1 is needed")


def run(function: Callable[..., None], *, module: str, stopped: str) -> None:
    """Call `function` with what stands on the command line; see `zoo.command_line.in_one_line`.

    module: what `python -m` was given. stopped: what to do after Ctrl-C. Refuses a flag that stands there twice, for
    only its last values would count.
    """
    with in_one_line(stopped):
        flags = Counter(word.partition("=")[0].replace("_", "-") for word in sys.argv[1:] if word.startswith("--"))
        if twice := [flag for flag, times in flags.items() if times > 1]:
            raise BadData(f"{twice[0]} stands there twice; give all its values after one, as in {twice[0]} A B")
        tyro.cli(function, prog=f"python -m {module}")
