"""`python -m serve.launch NAME...`, which `zoo serve` starts: BentoML's server with safe defaults.

It listens on this machine alone, sends nothing to anybody, and gives each worker one thread for its models.
"""

import ipaddress
import os
import resource
import socket
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import tyro

from serve.aliases import split_alias
from zoo.command_line import parse_and_call
from zoo.errors import NotInstalled, NoWeights, ZooError, how_to_install
from zoo.files import make_folder, zoo_home
from zoo.hub.resolve import ADDRESSES, can_be_fetched, folder_at_hand, locate
from zoo.hub.store import CARD, GOLDEN, ONNX, onnx_file
from zoo.libraries import NO_REPORTS

LOOPBACK = "127.0.0.1"
FILES = 10_240  # open files of a worker, most of them connections; the most that macOS gives


def launch(
    models: tyro.conf.Positional[tuple[str, ...]],
    *,
    index: tuple[str, ...] = (),
    host: str = LOOPBACK,
    port: int = 3000,
    workers: int = 1,
) -> None:
    """Serve models over HTTP until SIGTERM or Ctrl-C; requests in flight are then answered first.

    Args:
        models: names, run folders or .onnx files; the first answers requests that name none. ALIAS=MODEL serves a model
            under a further name.
        index: files that `zoo index` wrote, for POST /v1/search.
        host: IP address to listen on; any but loopback needs ZOO_API_KEY in the environment.
        port: TCP port.
        workers: processes; each has its own copy of the models and computes in one thread.
    """
    if find_spec("bentoml") is None:
        raise NotInstalled(f"bentoml is not installed. {how_to_install('serve')}")
    check(models, index, host=host, workers=workers, keys=os.environ.get("ZOO_API_KEY", ""))
    held = hold_address(host, port)
    settings = environment(models, index, host=host, port=port, workers=workers)
    check_home(Path(settings["BENTOML_HOME"]))
    for address in (model for model in models if model.startswith(ADDRESSES)):
        locate(address, extras=(ONNX, GOLDEN))  # the server itself fetches nothing
    for name in without_onnx(models):
        make_first(name)
    held.close()
    os.environ.update(settings)
    open_more_files()
    command = [sys.executable, "-m", "bentoml", "serve", "serve.service:Embeddings"]
    packages = str(Path(__file__).parents[1])  # BentoML puts it first on sys.path: the default is the user's folder
    sys.stdout.flush()
    os.execv(sys.executable, [*command, "--working-dir", packages, "--host", host, "--port", str(port)])


def check(models: tuple[str, ...], index: tuple[str, ...], *, host: str, workers: int, keys: str) -> None:
    """Raises ZooError for what must not be served so."""
    if not models:
        raise ZooError("no model to serve; name one: zoo serve simco-r20-digits. `zoo list` shows all")
    for word in (*models, *index):
        if "," in word:
            raise ZooError(f"{word!r}: names are separated by spaces here, and a path has no comma")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError as error:
        raise ZooError(
            f"--host {host!r} is not an IP address; 127.0.0.1 is this machine, 0.0.0.0 all its networks"
        ) from error
    if not loopback and not keys.strip(" ,"):
        raise ZooError(
            f"--host {host} opens the server to others, which needs a key: "
            "export ZOO_API_KEY=$(python -c 'import secrets; print(secrets.token_urlsafe())')"
        )
    if workers < 1:
        raise ZooError(f"--workers {workers}; at least 1")


def hold_address(host: str, port: int) -> socket.socket:
    """A socket that listens there, so that nobody else takes the port before the server does.

    Raises:
        ZooError: Nobody can listen there now; BentoML would end with a traceback, or take another port.
    """
    if not 1 <= port <= 65_535:
        raise ZooError(f"--port {port}; a TCP port is a number from 1 to 65535")
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server: a port just left is free
    try:
        held.bind((host, port))
        held.listen(1)
    except OSError as error:
        held.close()
        raise ZooError(
            f"cannot listen on {host}, port {port}: {error.strerror}. "
            "Take another --port or --host, or stop what listens there"
        ) from error
    return held


def make_first(name: str) -> None:
    """Fetch a model if needed, and make its ONNX file; where it cannot be, the server's own check has the reason."""
    from serve.onnx_file import make_onnx

    folder = folder_at_hand(name)
    if folder is not None:
        with suppress(NoWeights):  # it takes torch
            make_onnx(folder)
            return
    print(f"{name}: first start, exporting it with torch", file=sys.stderr)
    subprocess.run([sys.executable, "-P", "-m", "serve.export", name])


def check_home(folder: Path) -> None:
    """Make BentoML's folder. Raises ZooError with the variable to set: BentoML would end with a traceback."""
    try:
        make_folder(folder)
    except ZooError as error:
        cause = error.__cause__ or error
        reason = getattr(cause, "strerror", None) or cause
        raise ZooError(
            f"the server needs a folder that it may write to, and {folder} cannot be made ({reason}). "
            "Set ZOO_HOME, or BENTOML_HOME, to such a folder: ZOO_HOME=/tmp/zoo zoo serve ..."
        ) from error


def without_onnx(models: tuple[str, ...]) -> list[str]:
    """Names whose weights are here or can be fetched, and that have no ONNX file yet. Paths are left to the server."""
    names = [model for _, model in map(split_alias, models) if os.sep not in model and not Path(model, CARD).is_file()]
    return [name for name in names if can_be_fetched(name) or _lacks_onnx(folder_at_hand(name))]


def _lacks_onnx(folder: Path | None) -> bool:
    return folder is not None and not onnx_file(folder).is_file()


def absolute(model: str) -> str:
    """A path independent of the working directory; a name as it is. An alias before it stays."""
    alias, where = split_alias(model)
    where = str(Path(where).absolute()) if os.sep in where or Path(where).exists() else where
    return f"{alias}={where}" if alias else where


def environment(
    models: tuple[str, ...], index: tuple[str, ...], *, host: str, port: int, workers: int
) -> dict[str, str]:
    """What the server and its workers read."""
    home = Path(os.environ.get("BENTOML_HOME") or zoo_home() / "bentoml").expanduser()
    return {
        "ZOO_HOME": str(zoo_home().absolute()),  # the workers run in another folder
        "ZOO_MODEL": ",".join(absolute(model) for model in models),
        "ZOO_INDEX": ",".join(str(Path(path).resolve()) for path in index),
        # a folder of each server's own: BentoML empties that of the metrics as it starts, also under a running server
        "BENTOML_HOME": str(home / f"{host}-{port}".replace(":", ".")),
        **NO_REPORTS,
        "BENTOML_CONFIG_OPTIONS": f"services.Embeddings.workers={workers}",
        "HF_HUB_OFFLINE": "1",
        "PYTHONSAFEPATH": "1",  # a serve.py in the user's folder is not ours
        "OMP_NUM_THREADS": "1",
    }


def open_more_files() -> None:
    """Raise this process's, and its workers', limit of open files to FILES, or as far as the system lets them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


def main() -> None:
    """Command line of `zoo serve`."""
    parse_and_call(launch, prog="zoo serve")


if __name__ == "__main__":
    main()
