"""What can go wrong. Every message says what came, what is allowed and what to do next."""

import difflib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

PACKAGES = ("zoo", "eval", "train", "serve")  # of this distribution, at the top level


class ZooError(Exception):
    """Base of every error this package raises on purpose; its text is meant for the user."""


class UnknownName(ZooError, LookupError):
    """A model, backbone, data set or split that no table knows."""


class NotInstalled(ZooError, ImportError):
    """A package of an extra that is not installed."""


class NoWeights(ZooError):
    """The name is known, but its weights are nowhere at hand."""


class CorruptFile(ZooError):
    """A file that is truncated, altered, or of another format version."""


class Unreachable(ZooError, ConnectionError):
    """The Hub does not answer, or is busy."""


class AccessDenied(ZooError, PermissionError):
    """The Hub knows no such repository, or may not show it to us."""


class LicenceRefused(ZooError, PermissionError):
    """Weights with a licence that the user refuses."""


class BadImage(ZooError, ValueError):
    """A picture that cannot be decoded or has no agreed meaning as 8-bit RGB."""


class ImageTooLarge(BadImage):
    """A picture whose header promises more pixels than allowed; it was not decoded."""


class ImageFormatNotAllowed(BadImage):
    """Bytes that are no picture, or a picture in a format outside the allowed list."""


class BadNumber(ZooError, ValueError):
    """A number outside its range: of a recipe, of an augmentation, an image size."""


class BadData(ZooError, ValueError):
    """A data set that does not hold what was asked of it."""


class VariantWarning(UserWarning):
    """A name without weights of its own was answered with those of its one variant."""


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Imports in the block may want the packages of `extra`. Raises NotInstalled, which says how to get them."""
    try:
        yield
    except ModuleNotFoundError as error:
        if found := _shadowing(error.name or ""):
            raise NotInstalled(found) from error
        raise NotInstalled(f"{error.name} is not installed. {how_to_install(extra)}") from error


def how_to_install(extra: str) -> str:
    """What to type to get the packages of an extra: the package is on no index yet, so from its repository."""
    return f'In a clone of the repository of contrastive-zoo: pip install ".[{extra}]"'


def _shadowing(missing: str) -> str:
    """Why a module of this package was not found: a file of the user's bears the name of its package, or ""."""
    package = missing.partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    if package not in PACKAGES or "." not in missing or file.endswith("__init__.py"):
        return ""
    return (
        f"{file or package} hides the package `{package}` of contrastive-zoo, which has {missing}. Rename that file, "
        "or start the command as `zoo ...`, which does not look for modules in the working directory"
    )


def unknown(kind: str, got: str, known: Iterable[str], then: str = "") -> UnknownName:
    """UnknownName for `got`, with the three nearest of the `known` names, or all when few."""
    names = list(known)
    near = difflib.get_close_matches(got, names, n=3, cutoff=0.5)
    if near:
        hint = f"nearest: {', '.join(near)}"
    elif names:
        hint = f"known: {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}"
    else:
        hint = "none are known"
    return UnknownName(f"unknown {kind} {got!r}; {hint}{'. ' + then if then else ''}")
