"""What the zoo knows by name: recipes, bundled models, the authors' published files, kept models."""

import json
from importlib import resources

from zoo.files import zoo_home
from zoo.hub import store
from zoo.hub.author_files import AUTHOR_FILES, PARAMETERS
from zoo.hub.store import CARD
from zoo.images.dataset import dataset_row
from zoo.model.backbone import backbone_row
from zoo.model.card import Card, parse_card
from zoo.names import natural_order, parse_name

CATALOG = "catalog.jsonl"  # in the package: a card a line, written by `python -m train.catalog`


def names() -> list[str]:
    """Every name of the catalog, bundled with the package, published by its authors or kept, in natural order."""
    folders = [path.parent for home in (store.BUNDLED, zoo_home() / "models") for path in home.glob(f"*/{CARD}")]
    found = {folder.name for folder in folders if not folder.name.startswith(".")}
    cards = {json.loads(line)["name"] for line in _catalog_lines()}
    return sorted(found | AUTHOR_FILES.keys() | cards, key=natural_order)


def _catalog_lines() -> list[str]:
    file = resources.files("zoo").joinpath(CATALOG)
    return file.read_text("utf-8").splitlines() if file.is_file() else []


def catalog() -> dict[str, Card]:
    """The cards that come with the package, by name in natural order. Of two with one name the later one counts."""
    cards = [parse_card(line, where=f"{CATALOG}, line {number}") for number, line in enumerate(_catalog_lines(), 1)]
    return {card.name: card for card in sorted(cards, key=lambda card: natural_order(card.name))}


def variants(name: str, cards: dict[str, Card]) -> list[str]:
    """Names `NAME-VARIANT` with weights bundled with the package, or published as a file or according to `cards`."""
    bundled = {path.parent.name for path in store.BUNDLED.glob(f"{name}-*/{CARD}")}
    published = {other for other, card in cards.items() if card.published} | AUTHOR_FILES.keys()
    return sorted(bundled | {other for other in published if other.startswith(f"{name}-")}, key=natural_order)


def author_card(name: str) -> Card:
    """The card of a checkpoint that its authors publish as a file, before it is fetched."""
    row, parts, cards = AUTHOR_FILES[name], parse_name(name), catalog().values()
    data = dataset_row(parts.dataset)
    return Card(
        name=name,
        paper=next((card.paper for card in cards if card.name.startswith(f"{parts.method}-")), f"see {row.publisher}"),
        image_size=data.image_size,
        crop=0.875 if data.image_size >= 224 else 1.0,
        mean=data.mean,
        std=data.std,
        dim=backbone_row(parts.backbone).dim,
        parameters=PARAMETERS.get(parts.backbone),
        licence=row.licence,
        expects=f"{row.top1} % top-1 on ImageNet by linear evaluation, as stated by the publisher ({row.publisher})",
        training={"url": row.url, "publisher": row.publisher, "publisher_hash": row.digest or "none stated"},
    )
