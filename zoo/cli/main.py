"""The `zoo` command: models by their names. `zoo serve` and `zoo index` belong to it, each with its own --help."""

import os
import sys

from zoo.command_line import in_one_line

PROGRAMS = {"serve": "serve.launch", "index": "serve.index"}  # of a layer above: `zoo serve -h` is theirs to answer


def main() -> None:
    """Entry point; errors meant for the user are one line, without a traceback."""
    words = sys.argv[1:]
    if words and words[0] in PROGRAMS:
        os.execv(sys.executable, [sys.executable, "-m", PROGRAMS[words[0]], *words[1:]])
    with in_one_line():
        _run(words)


def _run(words: list[str]) -> None:
    """The two commands that only look are done before tyro and numpy are loaded, which would take most of the time."""
    from zoo.cli import listing

    plain = not any(word.startswith("-") for word in words)
    if words[:1] == ["list"] and plain and len(words) <= 2:
        listing.list_models(*words[1:])
    elif words[:1] == ["info"] and plain and len(words) == 2:
        listing.info(words[1])
    else:
        from zoo.cli import commands

        commands.run(about=str(__doc__))
