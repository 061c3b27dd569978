"""`zoo doctor`: what is installed, what is missing, and which files hide the package's modules."""

import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

import zoo
from zoo.errors import PACKAGES, ZooError, how_to_install
from zoo.files import zoo_home

DISTRIBUTION = "contrastive-zoo"


def doctor() -> None:
    """Say what is installed, what is missing, and what hides what. The exit code is 1 if something must be mended."""
    print(f"{DISTRIBUTION} {zoo.__version__}, Python {platform.python_version()}, {Path(zoo.__file__).parent}")
    for extra, missing in sorted(missing_packages().items()):
        print(f"  [{extra}]: {'not installed: ' + ', '.join(missing) if missing else 'installed'}")
    print(f"  kept models and caches: {zoo_home()}")
    faults = [*hidden(Path.cwd()), *home_faults(zoo_home())]
    for fault in faults:
        print(f"  {fault}")
    if any(missing_packages().values()):
        print(f"{how_to_install('EXTRA')}")
    if faults:
        sys.exit(1)


def missing_packages() -> dict[str, list[str]]:
    """The packages that each extra of this distribution needs and that are not installed."""
    found: dict[str, list[str]] = {}
    for line in _requirements():
        wanted = re.match(r"""([\w.-]+)(?:\[([\w,-]+)\])?.*;.*extra == ['"]([\w-]+)['"]""", line)
        if wanted is None:
            continue
        package, _, extra = wanted.groups()
        missing = found.setdefault(extra, [])
        if not _installed(package):
            missing.append(package)
    return found


def _requirements() -> list[str]:
    try:
        return requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # run from a folder on PYTHONPATH
        return []


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def hidden(folder: Path) -> Iterator[str]:
    """One line for each file in `folder`, or module found first on the path, that bears the name of a package of ours.

    `python -m` and scripts in the folder import it instead of ours; the `zoo` command does not look there.
    """
    ours = Path(zoo.__file__).parents[1]
    for package in PACKAGES:
        places = [path for path in (folder / f"{package}.py", folder / package / "__init__.py") if path.is_file()]
        spec = find_spec(package)
        if spec and spec.origin and Path(spec.origin).parents[1] != ours:
            places.append(Path(spec.origin))
        for place in dict.fromkeys(places):
            if place.resolve() != (ours / package / "__init__.py").resolve():
                yield (
                    f"{place} hides the package `{package}` of {DISTRIBUTION} from `python` started there. Rename it, "
                    f"or use the `zoo` command, or PYTHONSAFEPATH=1"
                )


def home_faults(home: Path) -> Iterator[str]:
    """One line if no file can be written into the folder of kept models, or it cannot be made."""
    try:
        existing = next(path for path in (home, *home.absolute().parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            yield f"{home} cannot be written to. Set ZOO_HOME to a folder that can"
    except (OSError, ZooError) as error:
        yield f"{home}: {error}. Set ZOO_HOME to a folder that can be written to"
