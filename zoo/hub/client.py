"""Models on the Hugging Face Hub: fetched through the Hub client's own cache, checked, unpacked.

Downloads go to huggingface_hub's cache (`HF_HOME`, `HF_HUB_CACHE`). Its client does not check what it downloads over
plain HTTP and tries a dead server for half a minute, so here one quick question comes first, and every file is compared
with its sha256. What is unpacked, in $ZOO_HOME/hub, is a model folder as training writes it.
"""

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from zoo.errors import CorruptFile, NoWeights, Unreachable, ZooError, needs
from zoo.files import locked, new_file, new_folder, sha256, zoo_home
from zoo.hub.hub_api import COMMIT, Address, ask, endpoint, no_hub, parse_address
from zoo.hub.published import CONFIG, EXTRAS, FETCHED, fingerprint, refuse_config, unpack
from zoo.hub.store import CARD, WEIGHTS, fetched_folder, read_card
from zoo.model.card import Published, Weights

with needs("core"):
    from huggingface_hub import HfApi, ModelInfo, hf_hub_download, is_offline_mode, try_to_load_from_cache

QUICK = 10.0  # seconds that the first question of a fetch waits for its answer


class Expected(NamedTuple):
    """What a file on the Hub must be."""

    file: str
    bytes: int
    digest: str  # sha256, 64 hex digits; or git's blob id, 40, of small files, where the Hub states no other


def fetch(published: Published) -> Path:
    """The folder of a pinned model, fetched if it is not here.

    Raises:
        NoWeights: Offline.
        Unreachable, AccessDenied, CorruptFile: As their names say.
    """
    folder = fetched_folder(published.repo, published.revision)
    if not _is_whole(folder):
        _require_online(published.repo)
        _info(Address(published.repo, published.revision))  # a quick answer where the download would try for long
        _fetch(published.repo, published.revision, [Expected(f.file, f.bytes, f.sha256) for f in published.files])
    return folder


def fetch_address(text: str) -> Path:
    """The folder of the model at `hf://ORG/NAME[@REVISION]` or `timm/NAME`.

    A commit that is here costs no request. A branch or tag is asked for, and taken as last seen where nobody answers.

    Raises:
        UnknownName: No such address or revision.
        NoWeights, Unreachable, AccessDenied, CorruptFile: As `fetch`.
    """
    address = parse_address(text)
    if re.fullmatch(COMMIT, address.revision) and _is_whole(fetched_folder(*address)):
        return fetched_folder(*address)
    try:
        _require_online(address.repo)
        info = _info(address)
    except (NoWeights, Unreachable):
        seen = _last_seen(address)
        if seen is None or not _is_whole(fetched_folder(address.repo, seen)):
            raise
        return fetched_folder(address.repo, seen)
    if info.sha is None or not re.fullmatch(COMMIT, info.sha):
        raise no_hub(f"{info.sha!r} is no commit")
    folder = fetched_folder(address.repo, info.sha)
    if not _is_whole(folder):
        _fetch(address.repo, info.sha, _expected(info))
    _note_revision(address, info.sha)
    return folder


def fetch_extras(folder: Path, names: Iterable[str]) -> None:
    """Add files that loading does not need (ONNX, head, golden embeddings) to a fetched folder, where published.

    Raises what `fetch` does.
    """
    published = read_card(folder).published
    wanted = [file for file in (published.files if published else ()) if file.file in set(names) & set(EXTRAS)]
    for file in wanted:
        assert published is not None
        with locked(folder.parent):
            if not (folder / file.file).is_file():
                _require_online(published.repo)
                address = Address(published.repo, published.revision)
                source = _download(address, Expected(file.file, file.bytes, file.sha256))
                with new_file(folder / file.file) as aside:
                    aside.write_bytes(source.read_bytes())


def _is_whole(folder: Path) -> bool:
    """Whether a commit is unpacked; a folder that somebody has emptied is fetched again."""
    return (folder / CARD).is_file()


def _last_seen(address: Address) -> str | None:
    """The commit that the Hub client's cache has noted for a branch or tag."""
    try:
        path = try_to_load_from_cache(address.repo, CONFIG, revision=address.revision)
    except (OSError, ValueError):  # a damaged note is as none
        return None
    commit = Path(path).parent.name if isinstance(path, str) else ""
    return commit if re.fullmatch(COMMIT, commit) else None


def _note_revision(address: Address, commit: str) -> None:
    """Let the Hub client's cache note what a branch or tag points to now. A read-only cache serves all the same."""
    if address.revision != commit and _last_seen(address) != commit:
        with suppress(ZooError):
            ask(address, lambda: hf_hub_download(
                address.repo, CONFIG, revision=address.revision, endpoint=endpoint(), etag_timeout=QUICK,
            ))  # fmt: skip


def _require_online(repo: str) -> None:
    """Raises NoWeights if the user forbids requests to the Hub."""
    if is_offline_mode():
        raise NoWeights(
            f"{repo} is not in {zoo_home()}, and HF_HUB_OFFLINE forbids fetching it. "
            f"Unset HF_HUB_OFFLINE, or copy {zoo_home() / 'hub' / repo} from a machine that has it"
        )


def _info(address: Address) -> ModelInfo:
    api = HfApi(endpoint=endpoint())
    return ask(address, lambda: api.model_info(
        address.repo, revision=address.revision, files_metadata=True, timeout=QUICK,
    ))  # fmt: skip


def _expected(info: ModelInfo) -> list[Expected]:
    """What the Hub states of the files of a commit that may be fetched."""
    found = {file.rfilename: file for file in info.siblings or ()}
    missing = [name for name in (CONFIG, WEIGHTS) if name not in found]
    if missing:
        raise NoWeights(
            f"{info.id} holds no {' and no '.join(missing)}: neither a model of this zoo nor one of timm in safetensors"
        )
    some = [found[name] for name in FETCHED if name in found]
    return [Expected(f.rfilename, f.size or 0, f.lfs.sha256 if f.lfs else f.blob_id or "") for f in some]


def _fetch(repo: str, revision: str, expected: list[Expected]) -> None:
    """Download, check and unpack a commit, except for its extras. Another process waits for it."""
    target, address = fetched_folder(repo, revision), Address(repo, revision)
    with locked(target.parent):
        if _is_whole(target):  # another process was faster
            return
        known: dict[str, Weights] = {}
        release = Path()
        for file in sorted(expected, key=lambda file: file.file != CONFIG):
            if file.file in EXTRAS:
                if len(file.digest) == 64:  # without a sha256 nothing could check it later
                    known[file.file] = Weights(file=file.file, sha256=file.digest, bytes=file.bytes)
                continue
            path = _download(address, file)
            release, known[file.file] = path.parent, fingerprint(path)
            if file.file == CONFIG:  # what cannot be used is refused before its weights are fetched
                refuse_config(release, Published(repo=repo, revision=revision, files=()))
        files = tuple(known[name] for name in FETCHED if name in known)
        with new_folder(target) as aside:
            unpack(release, aside, Published(repo=repo, revision=revision, files=files))


def _download(address: Address, expected: Expected) -> Path:
    """One file in the Hub client's cache, checked; fetched once more if it is not what it should be.

    Raises CorruptFile the second time.
    """
    found = ""
    for force in (False, True):
        path = Path(ask(address, lambda force=force: hf_hub_download(  # type: ignore[misc]
            address.repo, expected.file, revision=address.revision, endpoint=endpoint(), force_download=force,
            etag_timeout=QUICK,
        )))  # fmt: skip
        found = sha256(path) if len(expected.digest) == 64 else git_blob_id(path)
        if (path.stat().st_size, found) == (expected.bytes, expected.digest):
            return path
    for part in (path.resolve(), path):  # the content, and the link to it
        part.unlink(missing_ok=True)
    raise CorruptFile(
        f"{expected.file} of {address.repo} came twice with other content: {found[:12]}... instead of "
        f"{expected.digest[:12]}... Nothing of it is kept. Try another network, or tell the owner of the repository"
    )


def git_blob_id(path: Path) -> str:
    """git's name of a file's content, which the Hub keeps of small files."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
