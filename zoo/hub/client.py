"""The Hugging Face Hub: fetching and uploading. The only module that imports huggingface_hub.

The Hub's own client does not check what it downloads over plain HTTP and tries a dead server for half a minute, so
here one quick question comes first, and every file is compared with its sha256.
"""

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from zoo.errors import AccessDenied, CorruptFile, NoWeights, UnknownName, Unreachable, ZooError, needs
from zoo.files import locked, make_folder, new_folder, sha256, write_bytes, zoo_home
from zoo.hub.offline import is_offline
from zoo.hub.published import CONFIG, FETCHED, fingerprint, refuse_config, unpack
from zoo.hub.store import CARD, WEIGHTS, fetched_folder
from zoo.model.card import REPO, Published, Weights

with needs("core"):
    from huggingface_hub import HfApi, ModelCard, ModelInfo, get_session, hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

PAUSES = (0.5, 1.5)  # seconds before the second and the third try of a busy Hub
BUSY = (429, 500, 502, 503, 504)
MEANWHILE = (409, 412)  # another commit, or the same tag, since we looked
QUICK = 10.0  # seconds that the first question of a fetch waits for its answer
PATIENT = 120.0  # seconds without a byte, while publishing
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
COMMIT = "[0-9a-f]{40}"
T = TypeVar("T")


class Address(NamedTuple):
    """A model anywhere on the Hub: `hf://ORG/NAME[@REVISION]`, or `timm/NAME[@REVISION]`."""

    repo: str
    revision: str = "main"


class Promise(NamedTuple):
    """What a file must be."""

    file: str
    bytes: int
    digest: str  # sha256, 64 hex digits, or for small files where the Hub knows no other, git's blob id, 40


def parse_address(text: str) -> Address:
    """Raises UnknownName if `text` is no address."""
    repo, at, revision = text.removeprefix("hf://").partition("@")
    if not re.fullmatch(REPO, repo) or (at and not re.fullmatch(r"\w[\w./-]*", revision)):
        raise UnknownName(
            f"{text!r} is no address on the Hub; allowed: hf://ORG/NAME, hf://ORG/NAME@REVISION, timm/NAME"
        )
    return Address(repo, revision) if at else Address(repo)


def fetch(published: Published) -> Path:
    """The folder of a pinned model, fetched if it is not here.

    Raises NoWeights (offline), Unreachable, AccessDenied, CorruptFile.
    """
    folder = fetched_folder(published.repo, published.revision)
    if not _whole(folder):
        _online(published.repo)
        _info(Address(published.repo, published.revision))  # a quick answer where the download would try for long
        promises = [Promise(file.file, file.bytes, file.sha256) for file in published.files]
        _fetch(published.repo, published.revision, promises)
    return folder


def fetch_address(text: str) -> Path:
    """The folder of the model at `hf://ORG/NAME[@REVISION]` or `timm/NAME`.

    A commit that is here costs no request; a branch or tag is asked for, and taken as last seen where nobody answers.
    Raises NoWeights, Unreachable, AccessDenied, CorruptFile, UnknownName.
    """
    address = parse_address(text)
    if re.fullmatch(COMMIT, address.revision) and _whole(fetched_folder(*address)):
        return fetched_folder(*address)
    try:
        _online(address.repo)
        info = _info(address)
    except (NoWeights, Unreachable):
        seen = _last_seen(address)
        if seen is None or not _whole(fetched_folder(address.repo, seen)):
            raise
        return fetched_folder(address.repo, seen)
    if info.sha is None or not re.fullmatch(COMMIT, info.sha):
        raise _no_hub(f"{info.sha!r} is no commit")
    folder = fetched_folder(address.repo, info.sha)
    if not _whole(folder):
        _fetch(address.repo, info.sha, _promises(info))
    with suppress(ZooError):  # a home that is read-only and full of models serves them all the same
        write_bytes(_ref(address), info.sha.encode())
    return folder


def _whole(folder: Path) -> bool:
    """Whether a commit is here; a folder that somebody has emptied is fetched again."""
    return (folder / CARD).is_file()


def _ref(address: Address) -> Path:
    return zoo_home() / "hub" / address.repo / ".refs" / quote(address.revision, safe="")


def _last_seen(address: Address) -> str | None:
    """The commit that a branch or tag pointed to when it was last asked for."""
    seen = _ref(address).read_bytes().decode(errors="replace") if _ref(address).is_file() else ""
    return seen if re.fullmatch(COMMIT, seen) else None


def _online(repo: str) -> None:
    """Raises NoWeights if `HF_HUB_OFFLINE` is set."""
    if is_offline():
        raise NoWeights(
            f"{repo} is not in {zoo_home()}, and HF_HUB_OFFLINE forbids fetching it. "
            f"Unset HF_HUB_OFFLINE, or copy {zoo_home() / 'hub' / repo} from a machine that has it"
        )


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _info(address: Address) -> ModelInfo:
    api = HfApi(endpoint=_endpoint())
    return _asked(address, lambda: api.model_info(
        address.repo, revision=address.revision, files_metadata=True, timeout=QUICK,
    ))  # fmt: skip


def _asked(address: Address, call: Callable[[], T]) -> T:
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
            where = f"{_endpoint()}/{repo}"
            return AccessDenied(f"{repo} wants its conditions accepted. Accept them at {where}, then {sign_in}")
        case RepositoryNotFoundError():
            what = "private, gated or misspelt, or the token has no access"
            return AccessDenied(f"{repo} is {what}. Check the name; {sign_in}")
        case RevisionNotFoundError():
            return UnknownName(f"{repo} has no revision {address.revision!r}; see {_endpoint()}/{repo}/tree/main")
        case EntryNotFoundError() if not isinstance(error, LocalEntryNotFoundError):
            return NoWeights(f"{repo} at {address.revision} lacks a file that is needed: {error}")
        case OSError() if error.errno in NO_ROOM and not isinstance(error, ConnectionError):
            return ZooError(f"cannot keep {repo} in {zoo_home()}: {error}. Make room there, or set ZOO_HOME")
    if _status(error) in MEANWHILE:
        return ZooError(
            f"somebody else changed {repo} meanwhile ({_status(error)}); it is as they left it. Publish again"
        )
    if _status(error) in (401, 403):
        what = f"the token is missing, revoked or may not write to {repo}"
        return AccessDenied(f"the Hub refused ({_status(error)}): {what}. {sign_in}")
    return _no_hub(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)


def _no_hub(reason: str) -> Unreachable:
    return Unreachable(
        f"{_endpoint()} does not answer as a Hub ({reason}). Try again later; check the network, HF_ENDPOINT, "
        "HF_TOKEN, proxies"
    )


def _promises(info: ModelInfo) -> list[Promise]:
    """What the Hub itself says of the files of a commit that we fetch."""
    found = {file.rfilename: file for file in info.siblings or ()}
    missing = [name for name in (CONFIG, WEIGHTS) if name not in found]
    if missing:
        raise NoWeights(
            f"{info.id} holds no {' and no '.join(missing)}: neither a model of this zoo nor one of timm in safetensors"
        )
    some = [found[name] for name in FETCHED if name in found]
    return [Promise(f.rfilename, f.size or 0, f.lfs.sha256 if f.lfs else f.blob_id or "") for f in some]


def _fetch(repo: str, revision: str, promises: Iterable[Promise]) -> None:
    """Download, check and unpack a commit. Another process waits; a kill leaves what the next call goes on with."""
    target = fetched_folder(repo, revision)
    with locked(target.parent):
        if _whole(target):  # another process was faster
            return
        downloads = target.parent / f".download-{revision}"
        make_folder(downloads)
        files = []
        for promise in sorted(promises, key=lambda promise: promise.file != CONFIG):
            files.append(_download(Address(repo, revision), promise, downloads))
            if promise.file == CONFIG:  # what cannot be used is refused before its weights are here
                refuse_config(downloads, Published(repo=repo, revision=revision, files=()))
        with new_folder(target) as aside:
            unpack(downloads, aside, Published(repo=repo, revision=revision, files=tuple(files)))
        shutil.rmtree(downloads)


def _download(address: Address, promise: Promise, folder: Path) -> Weights:
    """One file, checked; fetched once more if it is not what it should be. Raises CorruptFile the second time."""
    found = ""
    for force in (False, True):
        path = Path(_asked(address, lambda force=force: hf_hub_download(  # type: ignore[misc]
            address.repo, promise.file, revision=address.revision, local_dir=folder, endpoint=_endpoint(),
            force_download=force,
        )))  # fmt: skip
        found = sha256(path) if len(promise.digest) == 64 else git_blob_id(path)
        if (path.stat().st_size, found) == (promise.bytes, promise.digest):
            return fingerprint(path)
        path.unlink()
    raise CorruptFile(
        f"{promise.file} of {address.repo} came twice with other content: {found[:12]}... instead of "
        f"{promise.digest[:12]}... Nothing of it is kept. Try another network, or tell the owner of the repository"
    )


def git_blob_id(path: Path) -> str:
    """git's name of a file's content, which the Hub keeps of small files."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def check_model_card(text: str) -> None:
    """Raises ZooError if the Hub would not read the card's header, or its results."""
    try:
        data = ModelCard(text).data
    except Exception as error:  # yaml's and the Hub's classes, for one fact
        raise ZooError(f"the model card's header is not readable: {error}") from error
    if not data.to_dict().get("license"):
        raise ZooError("the model card has no header")


class Upload(NamedTuple):
    """A commit on the Hub and its tag."""

    revision: str
    tag: str


def upload(folder: Path, repo: str, *, private: bool) -> Upload:
    """Make `repo` hold exactly the files of `folder`, under a new tag v1, v2, ...; no tag ever moves.

    The same files once more make no commit and no tag. Raises AccessDenied, Unreachable.
    """
    api, address = HfApi(endpoint=_endpoint()), Address(repo)
    get_session().timeout = PATIENT  # its own is to wait without end
    _asked(address, lambda: api.create_repo(repo, private=private, exist_ok=True))
    refs = _asked(address, lambda: api.list_repo_refs(repo))
    head = next(branch.target_commit for branch in refs.branches if branch.name == "main")
    commit = _asked(address, lambda: api.upload_folder(
        repo_id=repo, folder_path=folder, commit_message="The model", delete_patterns="*", parent_commit=head,
    ))  # fmt: skip
    tags = {tag.name: tag.target_commit for tag in refs.tags}
    for tag, target in tags.items():
        if target == commit.oid:
            return Upload(commit.oid, tag)
    tag = next(f"v{n}" for n in range(1, len(tags) + 2) if f"v{n}" not in tags)
    _asked(address, lambda: api.create_tag(repo, tag=tag, revision=commit.oid))
    return Upload(commit.oid, tag)
