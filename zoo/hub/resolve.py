"""From a name, a path or an address to the verified folder of a model.

resolve.locate("simco-r18-cifar100-cpu")     # a folder: bundled with the package, kept, or fetched
resolve.locate("simco-r18-cifar100-cpu@v1")  # the same weights forever, or an error
"""

import json
import os
import re
import warnings
from importlib import resources
from pathlib import Path

from zoo.errors import NoWeights, UnknownName, VariantWarning, ZooError, unknown
from zoo.files import zoo_home
from zoo.hub import store
from zoo.hub.spelling import hint
from zoo.hub.store import CARD, candidates, fetched_folder, named_card, own_folder, read_card
from zoo.hub.versions import VERSIONS
from zoo.model.card import REPO, Card, parse_card
from zoo.names import natural_order, parse_name

CATALOG = "catalog.jsonl"  # in the package: a card a line, written by `python -m train.catalog`
ADDRESSES = ("hf://", "timm/")
DIGEST = r"[0-9a-f]{8,64}"  # the beginning of a weights file's sha256


def names() -> list[str]:
    """Every name of the catalog, bundled with the package or kept, in natural order. No card is checked."""
    folders = [path.parent for home in (store.BUNDLED, zoo_home() / "models") for path in home.glob(f"*/{CARD}")]
    found = {folder.name for folder in folders if not folder.name.startswith(".")}
    return sorted(found | {json.loads(line)["name"] for line in _catalog_lines()}, key=natural_order)


def _catalog_lines() -> list[str]:
    file = resources.files("zoo").joinpath(CATALOG)
    return file.read_text("utf-8").splitlines() if file.is_file() else []


def catalog() -> dict[str, Card]:
    """The cards that come with the package, by name in natural order. Of two with one name the later one counts."""
    cards = [parse_card(line, where=f"{CATALOG}, line {number}") for number, line in enumerate(_catalog_lines(), 1)]
    return {card.name: card for card in sorted(cards, key=lambda card: natural_order(card.name))}


def variants(name: str, cards: dict[str, Card]) -> list[str]:
    """Names `NAME-VARIANT` with weights bundled with the package, or published according to `cards`."""
    bundled = {path.parent.name for path in store.BUNDLED.glob(f"{name}-*/{CARD}")}
    published = {other for other, card in cards.items() if card.published and other.startswith(f"{name}-")}
    return sorted(bundled | published, key=natural_order)


def locate(model: str | Path, *, exact: bool = False) -> Path:
    """The folder of a model, fetched from the Hub if it is not here.

    Args:
        model: A name, `NAME@VERSION`, a path, or an address on the Hub.
        exact: Refuse a variant's weights in place of the name's own.

    Raises:
        UnknownName, NoWeights, CorruptFile: See `find`.
        Unreachable, AccessDenied: The Hub does not answer, or refuses.
    """
    found = find(model, exact=exact)
    return found if isinstance(found, Path) else _fetch(found)


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
    try:
        with warnings.catch_warnings(action="ignore", category=VariantWarning):
            found = find(name)
    except ZooError:
        return None
    return found if isinstance(found, Path) else None


def find(model: str | Path, *, exact: bool = False) -> Path | Card:
    """The folder of a model, or the catalog's card if the commit that it pins has not been fetched yet.

    In this order: the path itself, if it is one; the kept model of that name; the weights bundled with the package;
    the pinned commit; the one variant NAME-VARIANT that has weights, with a `VariantWarning`. `NAME@v1` and
    `NAME@DIGEST` (of the weights' sha256) are one set of weights wherever it is. `hf://ORG/NAME` and `timm/NAME`, each
    also with `@REVISION`, are any other model on the Hub; these are fetched.

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
    folder = own_folder(text)
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


def _find_version(name: str, version: str) -> Path:
    """The folder with exactly the weights of `NAME@VERSION`. Raises UnknownName or NoWeights."""
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
    from zoo.hub.client import fetch  # imported late: it takes longer than loading a fetched model

    assert card.published is not None
    return fetch(card.published)
