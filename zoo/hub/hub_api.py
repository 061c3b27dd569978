"""Requests to the Hugging Face Hub: addresses, retries, and its client's errors as ours."""

import errno
import os
import re
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from zoo.errors import AccessDenied, NoWeights, UnknownName, Unreachable, ZooError, needs
from zoo.files import zoo_home
from zoo.model.card import REPO

with needs("core"):
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

PAUSES = (0.5, 1.5)  # seconds before the second and the third try of a busy Hub, which its client does not retry
BUSY = (429, 500, 502, 503, 504)
CONFLICTS = (409, 412)  # another commit, or the same tag, since we looked
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
COMMIT = "[0-9a-f]{40}"
T = TypeVar("T")


class Address(NamedTuple):
    """A model anywhere on the Hub: `hf://ORG/NAME[@REVISION]`, or `timm/NAME[@REVISION]`."""

    repo: str
    revision: str = "main"


def parse_address(text: str) -> Address:
    """Raises UnknownName if `text` is no address."""
    repo, at, revision = text.removeprefix("hf://").partition("@")
    if not re.fullmatch(REPO, repo) or (at and not re.fullmatch(r"\w[\w./-]*", revision)):
        raise UnknownName(
            f"{text!r} is no address on the Hub; allowed: hf://ORG/NAME, hf://ORG/NAME@REVISION, timm/NAME"
        )
    return Address(repo, revision) if at else Address(repo)


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def ask(address: Address, call: Callable[[], T]) -> T:
    """The answer to one request, a busy Hub asked three times. Raises our errors in place of its client's."""
    for pause in (*PAUSES, None):
        try:
            return call()
        except Exception as error:  # of its client, of HTTP, of what a login page answers in place of a Hub
            if pause is None or _status(error) not in BUSY:
                raise _explained(address, error) from error
        time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _status(error: Exception) -> int:
    """The HTTP status that came; 0 if none did."""
    response = getattr(error, "response", None)
    return 0 if response is None else int(response.status_code)


def _explained(address: Address, error: Exception) -> ZooError:
    """What went wrong and what to do. The client's narrower classes come before those they belong to."""
    repo, sign_in = address.repo, "`hf auth login`, or set HF_TOKEN"
    match error:
        case GatedRepoError():
            where = f"{endpoint()}/{repo}"
            return AccessDenied(f"{repo} wants its conditions accepted. Accept them at {where}, then {sign_in}")
        case RepositoryNotFoundError():
            what = "private, gated or misspelt, or the token has no access"
            return AccessDenied(f"{repo} is {what}. Check the name; {sign_in}")
        case RevisionNotFoundError():
            return UnknownName(f"{repo} has no revision {address.revision!r}; see {endpoint()}/{repo}/tree/main")
        case EntryNotFoundError() if not isinstance(error, LocalEntryNotFoundError):
            return NoWeights(f"{repo} at {address.revision} lacks a file that is needed: {error}")
        case OSError() if error.errno in NO_ROOM and not isinstance(error, ConnectionError):
            return ZooError(
                f"cannot keep {repo} in {constants.HF_HUB_CACHE} and {zoo_home()}: {error}. Make room there, or set "
                "HF_HOME (downloads) and ZOO_HOME (models)"
            )
    if _status(error) in CONFLICTS:
        return ZooError(
            f"somebody else changed {repo} meanwhile ({_status(error)}); it is as they left it. Publish again"
        )
    if _status(error) in (401, 403):
        what = f"the token is missing, revoked or may not write to {repo}"
        return AccessDenied(f"the Hub refused ({_status(error)}): {what}. {sign_in}")
    return no_hub(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)


def no_hub(reason: str) -> Unreachable:
    return Unreachable(
        f"{endpoint()} does not answer as a Hub ({reason}). Try again later; check the network, HF_ENDPOINT, "
        "HF_TOKEN, proxies"
    )
