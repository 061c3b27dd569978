"""A file from an address on the web: whole and checked, or not there.

A download that was interrupted goes on where it stopped. huggingface_hub's HTTP does the transfer, its retries and the
progress bar.
"""

import errno
import hashlib
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from zoo.errors import CorruptFile, NoWeights, Unreachable, ZooError, needs
from zoo.files import make_folder

with needs("core"):
    import httpx2
    from huggingface_hub import get_session, is_offline_mode
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get

QUICK = 10.0  # seconds for the answer to the first question
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PLAIN = {"Accept-Encoding": "identity"}  # sizes and ranges are those of the file itself


def download(url: str, folder: Path, *, digest: str = "", name: str) -> Path:
    """The file at `url`, in `folder`.

    Args:
        url: Of the file. A redirect to another host is followed only if `digest` can prove the content.
        folder: Where it is written. An earlier part of the same version of the file is completed.
        digest: "md5:" or "sha256:" and the first hex digits of the file's hash; "" if the publisher states none.
        name: Of the model, for messages.

    Raises:
        NoWeights: Offline, or there is no such file.
        Unreachable: No answer, or the connection broke too often.
        CorruptFile: Twice another content than `digest`, or a web page.
        ZooError: No room on the disk, or a redirect that is not followed.
    """
    if is_offline_mode():
        raise NoWeights(
            f"{name} is not on this machine, and HF_HUB_OFFLINE forbids fetching it. Unset HF_HUB_OFFLINE, or fetch "
            f"{url} elsewhere and `zoo convert FILE --as {name}`"
        )
    size, version = _ask(url, digest, name)
    make_folder(folder)
    part = folder / f"{hashlib.sha256(f'{url} {size} {version}'.encode()).hexdigest()[:16]}.part"
    for older in set(folder.glob("*.part")) - {part}:  # of a version that is no longer published
        older.unlink()
    _check_room(folder, size - (part.stat().st_size if part.exists() else 0), name)
    found = ""
    for _ in range(2):
        _transfer(url, part, size, name)
        found = _wrong(part, digest)
        if not found:
            return part
        part.unlink()
    raise CorruptFile(
        f"{url} came twice with other content than its publisher states: {found}. Nothing of it is kept. Try another "
        "network, or tell the publisher"
    )


def _ask(url: str, digest: str, name: str) -> tuple[int, str]:
    """Size in bytes and version of the file (ETag or date). Raises what `download` does."""
    try:
        answer = get_session().head(url, headers=PLAIN, timeout=QUICK, follow_redirects=True)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise _unreachable(url, error) from error
    if answer.status_code in (404, 410):
        raise NoWeights(f"{name}: {url} is not there any more ({answer.status_code}). Upgrade this package")
    if answer.status_code != 200:
        raise Unreachable(f"{url} answers {answer.status_code}. Try again later; check the network and proxies")
    asked, got = urlsplit(url), urlsplit(str(answer.url))
    if (asked.scheme, asked.netloc) != (got.scheme, got.netloc) and not digest:
        raise ZooError(
            f"{url} redirects to {got.scheme}://{got.netloc}, and its publisher states no hash that would prove the "
            "content. Nothing was fetched. Check the network; a newer version of this package may know the new address"
        )
    if answer.headers.get("Content-Type", "").startswith("text/html"):
        raise CorruptFile(f"{url} is a web page, not a checkpoint: does this network want a login?")
    length = answer.headers.get("Content-Length", "")
    if not length.isdecimal() or int(length) == 0:
        raise Unreachable(f"{url} does not say its size (Content-Length {length!r}). Try again later; check proxies")
    return int(length), str(answer.headers.get("ETag") or answer.headers.get("Last-Modified"))


def _check_room(folder: Path, needed: int, name: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ZooError(
            f"no room for {name}: {needed / 1e6:,.0f} MB more are needed in {folder}, {free / 1e6:,.0f} MB are free. "
            "Make room, or set ZOO_HOME to another disk"
        )


def _transfer(url: str, part: Path, size: int, name: str) -> None:
    """Complete `part` to `size` bytes. A full disk leaves nothing; a broken connection leaves what came."""
    try:
        with part.open("ab") as file:
            done = file.tell()
            if done > size:
                file.truncate(0)
                done = 0
            http_get(url, file, resume_size=done, headers=dict(PLAIN), expected_size=size, displayed_filename=name)
    except OSError as error:
        if error.errno in FULL_DISK:
            part.unlink(missing_ok=True)
            raise ZooError(
                f"no room for {name} in {part.parent}: {error.strerror}. Nothing of it is kept. Make room, or set "
                "ZOO_HOME to another disk"
            ) from error
        _drop_useless(part, size)
        if error.errno is None or isinstance(error, HfHubHTTPError | ConnectionError | TimeoutError):
            raise _unreachable(url, error) from error
        raise ZooError(f"cannot write {part}: {error.strerror or error}") from error
    except httpx2.HTTPError as error:
        _drop_useless(part, size)
        raise _unreachable(url, error) from error


def _drop_useless(part: Path, size: int) -> None:
    """Delete a part that nothing can be added to: one without content, or with more than the file has."""
    if part.is_file() and not 0 < part.stat().st_size <= size:
        part.unlink()


def _wrong(file: Path, digest: str) -> str:
    """How the file's hash differs from the stated one, in words; "" if it does not, or none is stated."""
    if not digest:
        return ""
    kind, wanted = digest.split(":")
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    return "" if found.startswith(wanted) else f"{kind} {found[: len(wanted)]}... instead of {wanted}..."


def _unreachable(url: str, error: Exception) -> Unreachable:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return Unreachable(
        f"{url} cannot be fetched ({reason}). What has come is kept, and the next call goes on from there. Check the "
        "network and proxies"
    )
