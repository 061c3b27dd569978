"""A typed client of the server: arrays back, busy servers asked again, errors as exceptions.

with Client("http://127.0.0.1:3000") as client:
    rows = client.embed(["cat.png", Path("dog.jpg").read_bytes()])  # (2, D) float32
"""

import base64
import io
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, final

import httpx
import numpy as np

from serve.limits import MAX_BODY
from zoo.errors import ZooError

AT_A_TIME = 8  # images of one request
AT_MOST = MAX_BODY - 2**20  # bytes of their files, which leaves room for the form around them
AGAIN = {429, 503}  # what a busy server says
LONGEST = 8.0  # seconds that a server can ask for before the next attempt

Picture = str | Path | bytes  # a path, or an encoded JPEG, PNG or WebP


class ServerRefused(ZooError):
    """The server's answer was an error. status, code, param: as it said; index: of the image at fault, or None."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status} {error.get('code')}: {error.get('message')} (request {error.get('request_id')})")
        self.status, self.code = status, error.get("code")
        self.param, self.index = error.get("param"), error.get("index")


class Neighbour(NamedTuple):
    """One image that a search found."""

    path: str  # below the indexed folder
    similarity: float  # cosine


@final
class Client:
    """One server. key: a bearer token. retries: further attempts when it is busy or unreachable. timeout: seconds."""

    def __init__(self, url: str, *, key: str | None = None, retries: int = 4, timeout: float = 60.0) -> None:
        headers = {b"authorization": f"Bearer {key.strip()}".encode()} if key else {}  # a key read from a file has a \n
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        self._retries = retries

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def models(self) -> list[dict[str, Any]]:
        """What the server has: id, dim, image_size and weights_sha256 of each."""
        return _field(self._ask("GET", "/v1/models"), "data")

    def embed(
        self,
        pictures: Sequence[Picture],
        *,
        model: str = "",
        normalize: bool = False,
        dimensions: int | None = None,
    ) -> np.ndarray:
        """(n, D) float32 embeddings, in the order of the pictures; any number of them, n >= 1.

        Raises ServerRefused, with `index` the place among `pictures`, FileNotFoundError, and ZooError for a wrong call.
        """
        if isinstance(pictures, str | bytes | Path):
            raise ZooError(f"embed takes a list of pictures; got one {type(pictures).__name__}. Write embed([picture])")
        query = {"normalize": str(normalize).lower()} | ({"model": model} if model else {})
        query |= {"dimensions": str(dimensions)} if dimensions is not None else {}
        rows = [self._embed(files, query, start, pictures) for start, files in _portions(pictures)]
        if not rows:
            raise ZooError("no picture to embed; give at least one")
        return np.concatenate(rows)

    def similarity(self, a: Picture, b: Sequence[Picture], *, model: str = "") -> np.ndarray:
        """(n,) float32 cosines of one picture with n others."""
        body = {"a": _base64(a), "b": [_base64(picture) for picture in b], "model": model}
        return np.array(_field(self._ask("POST", "/v1/similarity", json=body), "similarities"), np.float32)

    def search(self, picture: Picture, *, k: int = 10, index: str = "") -> list[Neighbour]:
        """The k nearest images of an indexed folder, the nearest first."""
        body = {"image": _base64(picture), "k": k, "index": index}
        found = _field(self._ask("POST", "/v1/search", json=body), "neighbours")
        return [Neighbour(row["path"], row["similarity"]) for row in found]

    def _embed(self, files: list[bytes], query: dict[str, str], start: int, pictures: Sequence[Picture]) -> np.ndarray:
        """(n, D) of one request's files. start: the place of the first of them among all pictures."""
        parts = [("images", (str(place), content)) for place, content in enumerate(files)]
        headers = {"accept": "application/x-npy"}
        try:
            answer = self._ask("POST", "/v1/embed", params=query, files=parts, headers=headers)
        except ServerRefused as refusal:
            if refusal.index is not None:
                refusal.index += start
                refusal.args = (f"{_name(pictures[refusal.index], refusal.index)}: {refusal}",)
            raise
        try:
            return np.load(io.BytesIO(answer.content), allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise _not_ours(answer) from error

    def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """The answer to a request, which is sent again while the server is busy or unreachable."""
        for attempt in range(self._retries + 1):
            try:
                answer = self._http.request(method, path, **request)
            except httpx.UnsupportedProtocol as error:  # waiting is no help
                raise ZooError(f"{self._http.base_url}: {error}. A URL is such as http://127.0.0.1:3000") from error
            except httpx.TransportError as error:
                if attempt == self._retries:
                    raise ZooError(
                        f"{self._http.base_url}: no answer ({error}). Is `zoo serve` running there?"
                    ) from error
                time.sleep(_pause(attempt, ""))
                continue
            if answer.status_code not in AGAIN or attempt == self._retries:
                break
            time.sleep(_pause(attempt, answer.headers.get("retry-after", "")))
        if answer.is_success:
            return answer
        raise ServerRefused(answer.status_code, _error(answer))


def _portions(pictures: Sequence[Picture]) -> Iterator[tuple[int, list[bytes]]]:
    """The files of as many pictures as one request may hold, each time with the place of the first."""
    start, files = 0, list[bytes]()
    for place, picture in enumerate(pictures):
        content = _content(picture)
        if len(content) > AT_MOST:
            raise ZooError(f"picture {place} has {len(content):,} bytes; one request holds at most {AT_MOST:,}")
        if files and (len(files) == AT_A_TIME or sum(map(len, files)) + len(content) > AT_MOST):
            yield start, files
            start, files = place, []
        files.append(content)
    if files:
        yield start, files


def _pause(attempt: int, retry_after: str) -> float:
    """Seconds before the next attempt: what the server asked for, else 0.1, 0.2, 0.4 ...; up to half as much again."""
    least = float(retry_after) if retry_after.isdecimal() else 0.1 * 2**attempt
    return min(least, LONGEST) * random.uniform(1, 1.5)


def _field(answer: httpx.Response, name: str) -> Any:
    """One field of a JSON answer. Raises ZooError if the answer has none."""
    try:
        return answer.json()[name]
    except (ValueError, KeyError, TypeError) as error:
        raise _not_ours(answer) from error


def _not_ours(answer: httpx.Response) -> ZooError:
    kind = answer.headers.get("content-type", "nothing")
    return ZooError(
        f"{answer.url.copy_with(query=None)} answered with {kind}, as no `zoo serve` does. Is this its URL?"
    )


def _error(answer: httpx.Response) -> dict[str, Any]:
    """The error object of an answer, also of one that a proxy made."""
    try:
        return answer.json()["error"] | {}
    except (ValueError, KeyError, TypeError):
        return {"message": answer.text[:200]}


def _name(picture: Picture, place: int) -> str:
    """What a picture is called in a message."""
    return f"picture {place}" if isinstance(picture, bytes) else str(picture)


def _content(picture: Picture) -> bytes:
    """The encoded file."""
    return picture if isinstance(picture, bytes) else Path(picture).read_bytes()


def _base64(picture: Picture) -> str:
    return base64.b64encode(_content(picture)).decode()
