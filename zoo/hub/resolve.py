"""From a name, a path or an address to the verified folder of a model.

resolve.locate("simco-r18-cifar100-cpu")     # a folder: bundled with the package, kept, or fetched
resolve.locate("simco-r18-cifar100-cpu@v1")  # the same weights forever, or an error
"""

import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from zoo.errors import NoWeights, UnknownName, VariantWarning, ZooError, unknown
from zoo.files import zoo_home
from zoo.hub.author_files import AUTHOR_FILES
from zoo.hub.catalog import author_card, catalog, names, variants
from zoo.hub.licences import VARIABLE, check_licence
from zoo.hub.spelling import hint
from zoo.hub.store import CARD, candidates, fetched_folder, folder_of_name, named_card, read_card
from zoo.hub.versions import VERSIONS
from zoo.model.card import REPO, Card
from zoo.names import parse_name

ADDRESSES = ("hf://", "timm/")
DIGEST = r"[0-9a-f]{8,64}"  # the beginning of a weights file's sha256


def locate(model: str | Path, *, exact: bool = False, extras: Sequence[str] = ()) -> Path:
    """The folder of a model, fetched from the Hub if it is not here.

    Args:
        model: A name, `NAME@VERSION`, a path, or an address on the Hub.
        exact: Refuse a variant's weights in place of the name's own.
        extras: Files that loading does not need, to be fetched as well where they are published: ONNX, HEAD, GOLDEN.

    Raises:
        UnknownName, NoWeights, CorruptFile: See `find`.
        Unreachable, AccessDenied: The Hub does not answer, or refuses.
    """
    found = find(model, exact=exact)
    folder = found if isinstance(found, Path) else _fetch(found)
    missing = [name for name in extras if not (folder / name).is_file()]
    if missing and folder.is_relative_to(zoo_home() / "hub"):
        from zoo.hub.client import fetch_extras

        fetch_extras(folder, missing)
    if os.environ.get(VARIABLE):  # of weights that were fetched before it was set
        card = read_card(folder)
        check_licence(card.name, card.licence)
    return folder


def known_card(model: str | Path) -> Card:
    """The card of a model: the one in its folder, or the catalog's. A name is never fetched for it."""
    try:
        found = find(model)
    except NoWeights:
        card = catalog().get(str(model))
        if card is None:
            raise
        return card
    return read_card(found) if isinstance(found, Path) else found


def folder_at_hand(name: str) -> Path | None:
    """The folder that `name` loads from if it is already on this machine, else None. Nothing is fetched."""
    found = _quietly(name)
    return found if isinstance(found, Path) else None


def can_be_fetched(name: str) -> bool:
    """Whether `name` is published and not on this machine. Nothing is fetched."""
    return isinstance(_quietly(name), Card)


def _quietly(name: str) -> Path | Card | None:
    try:
        with warnings.catch_warnings(action="ignore", category=VariantWarning):
            return find(name)
    except ZooError:
        return None


def find(model: str | Path, *, exact: bool = False) -> Path | Card:
    """The folder of a model, or its card if it is published and has not been fetched yet.

    In this order: the path itself, if it is one; the kept model of that name; the weights bundled with the package;
    the pinned commit; the authors' file; the one variant NAME-VARIANT that has weights, with a `VariantWarning`.
    `NAME@v1` and `NAME@DIGEST` (of the weights' sha256) are one set of weights wherever it is. `hf://ORG/NAME` and
    `timm/NAME`, each also with `@REVISION`, are any other model on the Hub; these are fetched.

    Args:
        model: A name, a path or an address.
        exact: Refuse a variant's weights in place of the name's own.

    Raises:
        NoWeights: The name has no weights yet, or several variants have; or nothing is at the path.
        UnknownName: No such name, version or form of name; the message has the nearest names.
        CorruptFile: A kept folder holds the card of another model.
    """
    path, text = Path(model), str(model)
    if not text:
        parse_name(text)  # raises: it would be the path of the current folder
    if (path / CARD).is_file():
        return path
    if text.startswith(ADDRESSES):
        from zoo.hub.client import fetch_address

        return fetch_address(text)
    if "@" in text and os.sep not in text:
        return _find_version(*text.split("@", 1))
    folder = folder_of_name(text)
    if folder is not None:
        named_card(folder)
        return folder
    if os.sep in text or path.is_dir():
        raise _no_model_at(path, text)
    return _find_elsewhere(text, exact=exact)


def _find_elsewhere(name: str, *, exact: bool) -> Path | Card:
    """A name without a folder of its own: published on the Hub, or a variant of it has weights."""
    try:
        parse_name(name)
    except UnknownName as error:
        raise UnknownName(f"{error}.{hint(name, names())}") from None
    cards = catalog()
    card = cards.get(name)
    if card is not None and card.published is not None:
        folder = fetched_folder(card.published.repo, card.published.revision)
        return folder if (folder / CARD).is_file() else card
    if name in AUTHOR_FILES:
        return author_card(name)
    others = variants(name, cards)
    if len(others) != 1 or exact:
        raise _no_weights(name, others, known=card is not None)
    warnings.warn(
        f"{name} has no weights of its own: loading {others[0]}, another training of it. "
        f"Load {others[0]} by its own name, or pass exact=True to refuse it",
        VariantWarning,
        stacklevel=2,
    )
    return find(others[0])


def _find_version(name: str, version: str) -> Path | Card:
    """The folder with exactly the weights of `NAME@VERSION`. Raises UnknownName or NoWeights."""
    if name in AUTHOR_FILES and version == "v1":
        return _find_author_file(name)
    known = VERSIONS.get(name, ())
    here = {folder: named_card(folder).weights for folder in candidates(name)}
    digests = [weights.sha256 for weights in here.values() if weights is not None]
    numbered = [f"v{number}" for number in range(1, len(known) + 1)]
    if version in numbered:
        wanted = known[numbered.index(version)]
    elif re.fullmatch(DIGEST, version):
        wanted = version
    else:
        allowed = ", ".join(f"{name}@{word}" for word in (*numbered, *(digest[:12] for digest in digests)))
        raise UnknownName(
            f"unknown version {version!r} of {name}; known: {allowed or 'none'}. A version is v1, v2, ... of a bundled "
            f"model, or the first 8 or more hex digits of its weights' sha256.{'' if allowed else hint(name, names())}"
        )
    for folder, weights in here.items():
        if weights is not None and weights.sha256.startswith(wanted):
            return folder
    has = ", ".join(f"{name}@{digest[:12]}" for digest in digests) or "none"
    raise NoWeights(
        f"the weights of {name}@{version} (sha256 {wanted[:12]}...) are not here; here: {has}. Keep them with "
        "`zoo keep`, or install the version of this package that came with them"
    )


def _find_author_file(name: str) -> Path | Card:
    """The authors' weights, never another training that is kept under their name. Raises NoWeights."""
    here = candidates(name)
    for folder in here:
        if read_card(folder).training.get("url") == AUTHOR_FILES[name].url:
            return folder
    if here:
        raise NoWeights(
            f"{here[0]} is another training than the authors', and has the place that theirs would take. "
            f"Move it away to fetch {name}@v1"
        )
    return author_card(name)


def _no_model_at(path: Path, text: str) -> NoWeights:
    """Why a path is no model, and what to do."""
    what = "a folder without card.json" if path.is_dir() else "a file" if path.exists() else "not there"
    address = f". On the Hugging Face Hub it would be hf://{text}" if re.fullmatch(REPO, text) else ""
    return NoWeights(f"{text}: {what}; a model is a folder that training wrote, such as runs/simco-r20-digits{address}")


def _no_weights(name: str, others: list[str], *, known: bool) -> ZooError:
    """Why a name gives no folder, and what to do."""
    if others:
        count = f"{len(others)} variants have" if len(others) > 1 else "its variant has"
        return NoWeights(f"{name} has no weights of its own, but {count}: load {' or '.join(others)}")
    if not known:
        return unknown("model", name, names(), "`zoo list` shows all; a run folder works too")
    here = (
        f" A run of it is in this folder: use runs/{name}, or `zoo keep runs/{name}` first."
        if Path("runs", name, CARD).is_file()
        else ""
    )
    return NoWeights(
        f"the weights of {name} are not published yet and not in {zoo_home()}.{here} Train them: zoo train {name}"
    )


def _fetch(card: Card) -> Path:
    if card.published is None:
        from zoo.hub.author_models import fetch_author_model

        return fetch_author_model(card.name)
    from zoo.hub.client import fetch  # imported late: it takes longer than loading a fetched model

    return fetch(card.published)
