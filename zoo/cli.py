"""The `zoo` command: list, info, embed, keep, verify, publish, convert, serve, index."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from zoo.errors import ZooError

PROGRAMS = {"serve": "serve.launch", "index": "serve.index"}  # of a layer above: `zoo serve -h` is theirs to answer


def main() -> None:
    """Entry point; errors meant for the user are one line, without a traceback."""
    words = sys.argv[1:]
    if words and words[0] in PROGRAMS:
        os.execv(sys.executable, [sys.executable, "-m", PROGRAMS[words[0]], *words[1:]])
    try:
        with _clean_ends():
            _run(words)
            sys.stdout.flush()
    except KeyboardInterrupt:
        _show_output()
        print("stopped", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # whoever read our output has seen enough, as in `zoo info NAME | head`
        _show_output()
    except (ZooError, OSError) as error:
        _show_output()
        sys.exit(f"error: {error}")


@contextmanager
def _clean_ends() -> Iterator[None]:
    """A job that is ended, a terminal that is closed: leave as by Ctrl-C, taking along what is half-written."""
    ours = [kind for kind in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(kind) is signal.SIG_DFL]  # not nohup's
    for kind in ours:
        signal.signal(kind, _stop)
    try:
        yield
    finally:
        for kind in ours:
            signal.signal(kind, signal.SIG_DFL)


def _stop(kind: int, _frame: object) -> NoReturn:
    sys.exit(128 + kind)


def _show_output() -> None:
    """Flush what was printed, or drop it where it cannot be written: a full disk, a pipe that nobody reads."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's own last flush


def _run(words: list[str]) -> None:
    """The two commands that only look are done before tyro and numpy are loaded, which would take most of the time."""
    from zoo import listing

    plain = not any(word.startswith("-") for word in words)
    if words[:1] == ["list"] and plain and len(words) <= 2:
        listing.list_models(*words[1:])
    elif words[:1] == ["info"] and plain and len(words) == 2:
        listing.info(words[1])
    else:
        from zoo import commands

        commands.run(about=str(__doc__))


if __name__ == "__main__":
    main()
