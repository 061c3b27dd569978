"""`zoo list` and `zoo info`: the standard library alone, since people wait for them."""

import json
import re
from dataclasses import asdict

import zoo
from zoo.errors import CorruptFile, UnknownName
from zoo.hub.table import Row

HEADER = ("name", "pixels", "D", "params", "weights", "licence", "k-NN", "linear", "published")


def version_line() -> str:
    """What `zoo --version` prints."""
    return f"contrastive-zoo {zoo.__version__}"


def list_models(pattern: str = "*", /, method: str = "*", backbone: str = "*", dataset: str = "*") -> None:
    """Every model as a table: size, weights, licence, and top-1 accuracy.

    "k-NN" and "linear" are measured here, on the data set that the model is named after; "published" is the authors'
    result, by a linear probe unless stated. `zoo info NAME` has all results and their sources.

    Every argument is a pattern as in a shell. A kept model that is broken has its line, and the exit code is 1.

    Args:
        pattern: Of the name: "*cifar100".
        method: Of the name's first part.
        backbone: Of its second part.
        dataset: Of its third part.
    """
    rows = zoo.table(pattern, method=method, backbone=backbone, dataset=dataset)
    if not rows:
        raise UnknownName("no model matches; `zoo list` alone shows all")
    lines = [HEADER, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if broken := [row["error"] for row in rows if row["error"]]:
        raise CorruptFile("; ".join(broken))


def _cells(row: Row) -> tuple[str, ...]:
    """The cells of a line of the table."""
    weights = row["weights"] if row["bytes"] is None else f"{row['weights']}, {row['bytes'] / 1e6:.1f} MB"
    return (
        row["name"],
        str(row["image_size"] or ""),
        str(row["dim"] or ""),
        "" if row["parameters"] is None else f"{row['parameters'] / 1e6:.2f} M",
        "broken, see below" if row["error"] else weights,
        row["licence"],
        _percent(row["knn"]),
        _percent(row["linear"]),
        f"{100 * row['published']:.4g} % {row['published_data']}" if row["published"] is not None else "",
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


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
