"""`zoo list` and `zoo info`: the standard library alone, since people wait for them."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict

import zoo
from zoo.errors import CorruptFile, UnknownName, ZooError
from zoo.hub import store
from zoo.hub.author_files import AUTHOR_FILES, SIZES
from zoo.hub.catalog import author_card, catalog, variants
from zoo.hub.store import folder_of_name, named_card
from zoo.model.card import Card
from zoo.names import parse_name

HEADER = ("name", "pixels", "D", "parameters", "weights", "licence", "own top-1 accuracy", "published")
OWN_LICENCE = "Apache-2.0"  # of the weights that come with this package


def version_line() -> str:
    """What `zoo --version` prints."""
    return f"contrastive-zoo {zoo.__version__}"


def list_models(pattern: str = "*", /, method: str = "*", backbone: str = "*", dataset: str = "*") -> None:
    """Every model as a table: its size, where its weights are, their licence, own and published results.

    Every argument is a pattern as in a shell. A kept model that is broken has its line, and the exit code is 1.

    Args:
        pattern: Of the name: "*cifar100".
        method: Of the name's first part.
        backbone: Of its second part.
        dataset: Of its third part.
    """
    names = zoo.list(pattern, method=method, backbone=backbone, dataset=dataset)
    if not names:
        raise UnknownName("no model matches; `zoo list` alone shows all")
    known, broken = catalog(), []
    rows: list[tuple[str, ...]] = [HEADER]
    for name in names:
        try:
            rows.append(_row(name, known))
        except ZooError as error:
            rows.append((name, "", "", "", "broken, see below", "", "", ""))
            broken.append(str(error))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if broken:
        raise CorruptFile("; ".join(broken))


def _row(name: str, known: dict[str, Card]) -> tuple[str, ...]:
    """The cells of a model: where its weights are, and the published and the own results apart."""
    folder = folder_of_name(name)
    if folder is not None:
        card = named_card(folder)
        assert card.weights is not None
        place = "bundled" if folder.parent == store.BUNDLED else "here"
        weights = f"{place}, {card.weights.bytes / 1e6:.1f} MB"
    elif name in AUTHOR_FILES:
        card, weights = author_card(name), f"to fetch, {SIZES[parse_name(name).backbone] / 1e6:.1f} MB kept"
    else:
        card, weights = known[name], _published(known[name], variants(name, known))
    own = "; ".join(
        f"{100 * row['value']:.2f} % {row['protocol'].split(',')[0]}, {row['dataset']}" for row in card.accuracies
    )
    licence = card.licence or (OWN_LICENCE if weights.startswith("bundled") else "")
    parameters = f"{card.parameters / 1e6:.2f} M" if card.parameters else ""
    return name, str(card.image_size), str(card.dim), parameters, weights, licence, own, card.expects


def _published(card: Card, others: Sequence[str]) -> str:
    """Where the weights of a name of the catalog are."""
    if card.published is not None:
        return f"to fetch, {sum(file.bytes for file in card.published.files) / 1e6:.1f} MB"
    if len(others) == 1:
        return f"loads {others[0]}"
    return f"{len(others)} variants" if others else "recipe only"


def info(model: str, /, cite: bool = False) -> None:
    """The card of a model, as JSON.

    Args:
        model: A name of the zoo, or a run folder.
        cite: Print the BibTeX entry of the method's paper instead.
    """
    card = zoo.info(model)
    print(bibtex(card.paper) if cite else json.dumps(asdict(card), indent=1))


def bibtex(paper: str) -> str:
    """The BibTeX entry of a citation such as `He et al. Some Title. CVPR 2020`; others become one of type misc."""
    found = re.fullmatch(r"(\w+) et al\. (.+)\. (.+?),? (\d{4})", paper)
    if found is None:
        return f"@misc{{contrastive-zoo-method,\n  title = {{{{{paper}}}}}\n}}"
    author, title, venue, year = found.groups()
    word = re.sub(r"[^a-z]", "", title.split()[0].lower())
    preprint = venue.startswith("arXiv")
    kind, place = ("misc", "howpublished") if preprint else ("inproceedings", "booktitle")
    entries = [
        f"author = {{{author} and others}}",
        f"title = {{{{{title}}}}}",
        f"{place} = {{{venue}}}",
        f"year = {{{year}}}",
    ]
    return f"@{kind}{{{author.lower()}{year}{word},\n  " + ",\n  ".join(entries) + "\n}"
