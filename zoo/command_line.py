"""How a command starts and ends: with its output, or with one line that says why not."""

import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

from zoo.errors import BadData, VariantWarning, ZooError, needs


def run_command(module: str, extra: str) -> NoReturn:
    """Import a module, call its `main`, and exit. A package of the extra that is missing is one line that says so.

    A module that is a command does this first, before its other imports, if it is run with `python -m`.

    Args:
        module: Its full name, as `eval.score`.
        extra: The extra of this package that has its dependencies.
    """
    with in_one_line(), needs(extra):
        main = import_module(module).main
    main()
    sys.exit()


def parse_and_call(function: Callable[..., Any], *, prog: str, stopped: str = "") -> Any:
    """Call `function` with the arguments on the command line and return what it returns; see `in_one_line`.

    Args:
        function: tyro makes the flags and the help text from its signature and docstring.
        prog: The command, for usage lines.
        stopped: What to do after Ctrl-C.
    """
    import tyro  # not before it is needed: the commands that only look do without it

    with in_one_line(stopped):
        flags = Counter(word.partition("=")[0].replace("_", "-") for word in sys.argv[1:] if word.startswith("--"))
        if twice := [flag for flag, times in flags.items() if times > 1]:
            raise BadData(f"{twice[0]} is given twice; give all its values after one, as in {twice[0]} A B")
        return tyro.cli(function, prog=prog)


@contextmanager
def in_one_line(then: str = "") -> Iterator[None]:
    """While the block runs, a signal, or an error that a user can mend, ends the process without a traceback.

    then: what to do after Ctrl-C.
    """
    try:
        with _clean_ends(), _plain_warnings():
            yield
            sys.stdout.flush()
    except KeyboardInterrupt:
        _show_output()
        print(f"stopped; {then}" if then else "stopped", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # whoever read our output has seen enough, as in `zoo info NAME | head`
        _show_output()
    except (ZooError, OSError) as error:
        _show_output()
        sys.exit(f"error: {' '.join(str(error).splitlines())}")
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _show_output()
        first = str(error).partition("\n")[0]
        sys.exit(f"error: out of memory ({first}). Give fewer images, or end other programs")


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


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """A warning that is meant for the user is one line, without the place in the code that it came from."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def showwarning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, VariantWarning):
                print(f"warning: {message}", file=sys.stderr)
            else:
                show(message, category, *place, **more)

        warnings.showwarning = showwarning
        yield


def _stop(kind: int, _frame: object) -> NoReturn:
    sys.exit(128 + kind)


def _show_output() -> None:
    """Flush what was printed, or drop it where it cannot be written: a full disk, a pipe that nobody reads."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's own last flush


def _out_of_memory(error: Exception) -> bool:
    """torch, which the lighter commands never load, has a class for a GPU's memory alone; its words tell of both."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("out of memory", "can't allocate memory")
    )
