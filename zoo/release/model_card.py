"""`README.md` on the Hub, written from the card alone. A missing value drops its line; there are no placeholders."""

import re
from collections.abc import Sequence
from typing import Any

import yaml

from zoo.hub.licences import noncommercial
from zoo.images.dataset import DATASETS, DIGITS
from zoo.model.card import Card, Weights
from zoo.model.timm_form import small_stem, timm_config
from zoo.names import split_name
from zoo.release.snippets import usage

LICENCE = "apache-2.0"
OF_CLASSES = (
    "accuracy",
    "mean-per-class-accuracy",
    "11-point-map",
)  # metrics of classification, as `_metric_type` says


def model_card(card: Card, repo: str, files: Sequence[Weights]) -> str:
    """Markdown with the YAML header that the Hub reads. repo: ORG/NAME. files: what lies beside it."""
    header = yaml.safe_dump(_header(card), sort_keys=False, allow_unicode=True, width=120)
    sections = {
        "": _summary(card),
        "Use": usage(card, repo),
        "Preprocessing": _preprocessing(card),
        "Results": _results(card),
        "Training data": _data(card),
        "Recipe": _table(("number", "value"), _flat(card.recipe)),
        "Training": _training(card),
        "For whom, and its limits": _limits(card),
        "Files": _table(("file", "bytes", "sha256"), [(f.file, f"{f.bytes:,}", f"`{f.sha256}`") for f in files]),
        "Licence": _licence(card),
        "Citation": f"{card.paper}.\n\n{_whose(card)}",
    }
    body = "\n\n".join(f"## {title}\n\n{text}" if title else text for title, text in sections.items() if text)
    return f"---\n{header}---\n\n# {card.name}\n\n{body}\n"


def _whose(card: Card) -> str:
    if card.licence:
        return f"The weights are those that {card.training['publisher'].split()[0]} publishes, converted."
    return "The weights are not the authors'; they were trained with contrastive-zoo."


def _header(card: Card) -> dict[str, Any]:
    data, name = DATASETS.get(card.dataset), split_name(card.name)
    header: dict[str, Any] = {
        "license": card.licence.lower() or LICENCE,
        "library_name": "timm",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["timm", "transformers", "contrastive-zoo", "self-supervised-learning", "contrastive-learning",
                 name.method, name.backbone],
    }  # fmt: skip
    if data and data.hub_id:
        header["datasets"] = [data.hub_id]
    results = [_index_row(row) for row in card.measured]
    if results:
        types = list(dict.fromkeys(result["metrics"][0]["type"] for result in results))
        header |= {"metrics": types, "model-index": [{"name": card.name, "results": results}]}
    return header


def _index_row(result: dict[str, Any]) -> dict[str, Any]:
    """One result as the Hub's model-index has it. The protocol stands in the metric's name: equal tasks are merged."""
    name, metric = result["dataset"], f"{result['metric']}, {result['protocol']}"
    kind = _metric_type(result["metric"])
    return {
        "task": {"type": "image-classification" if kind in OF_CLASSES else "image-feature-extraction"},
        "dataset": {"name": name, "type": DATASETS[name].hub_id or name if name in DATASETS else name, "split": "test"},
        "metrics": [{"type": kind, "name": metric, "value": round(_scale(result) * float(result["value"]), 4)}],
    }


def _metric_type(metric: str) -> str:
    """What the Hub calls a metric: `accuracy`; else the words before the first comma, as `rankme` of `RankMe, ...`."""
    kind = re.sub(r"[^a-z0-9@]+", "-", metric.partition(",")[0].lower()).strip("-")
    return "accuracy" if kind == "top-1-accuracy" else kind


def _scale(result: dict[str, Any]) -> int:
    """Shares are told in percent, other numbers as they are."""
    return 100 if result.get("unit", "share") == "share" else 1


def _summary(card: Card) -> str:
    name, row = split_name(card.name), card.backbone_row
    n_images = card.training.get("images")
    trained = f"{n_images:,} images of {name.dataset}" if n_images else name.dataset
    facts = [
        ("input", f"{card.image_size} x {card.image_size} pixels, RGB"),
        ("embedding", f"{card.dim} numbers"),
        ("network", row.about),
    ]
    if card.parameters:
        facts.append(("parameters", f"{card.parameters:,}"))
    return (
        f"An image encoder trained without labels on {trained}, by the method `{name.method}` ({card.paper}). "
        "Images in, embeddings out.\n\n" + _table(("", ""), facts)
    )


def _preprocessing(card: Card) -> str:
    plain = timm_config(card)["pretrained_cfg"]
    share = "" if card.crop == 1 else f" of {card.crop:.1%} of it"
    return (
        f"The central square{share} is resized to {card.image_size} x {card.image_size} pixels (bicubic, antialiased), "
        f"scaled to [0, 1], then normalised by mean {list(card.mean)} and standard deviation {list(card.std)}. "
        "Transparent pixels show white. The functions above do exactly that for opaque images; the transform that "
        f"timm makes of `config.json` (input {plain['input_size']}, {plain['interpolation']}, crop "
        f"{plain['crop_pct']}, {plain['crop_mode']}) "
        + (
            "repeats pixels and does not resize: it is exact for images of the size above alone."
            if small_stem(card)
            else "rounds the crop to whole pixels, which changes photographs a little."
        )
    )


def _results(card: Card) -> str:
    """Every row, baselines and other measures too, with its protocol and command."""
    if not card.results:
        return ""
    rows = [
        (row["encoder"], row["dataset"], row["protocol"], row["metric"], _value(row), _interval(row), row["n_test"])
        for row in card.results
    ]
    commands = dict.fromkeys(f"`{row['command'].strip()}` ({row['date']}, {row['hardware']})" for row in card.results)
    header = ("encoder", "data set", "protocol", "metric", "value", "95 % interval", "test images")
    return (
        _table(header, rows)
        + "\n\nMeasured with: "
        + "; ".join(commands)
        + "."
        + ("" if card.expects.startswith("none published") else f"\n\nPublished for this recipe: {card.expects}.")
    )


def _value(row: dict[str, Any]) -> str:
    """`97.22 %`, `80.10 ± 0.51 %` over draws, `32.70 ± 0.40 % (3 trainings)`, `12.34` of what is no share."""
    scale, deviation = _scale(row), row.get("std")
    spread = "" if deviation is None else f" ± {scale * deviation:.2f}"
    of_several = f" ({len(row['trainings'])} trainings)" if "trainings" in row else ""
    return f"{scale * row['value']:.2f}{spread}{' %' if scale == 100 else ''}{of_several}"


def _interval(row: dict[str, Any]) -> str:
    if not row.get("ci95"):
        return ""
    low, high = (_scale(row) * bound for bound in row["ci95"])
    return f"{low:.2f} to {high:.2f}"


def _data(card: Card) -> str:
    row = DATASETS.get(card.dataset)
    if row is None:
        licence = card.training.get("data_licence") or "not recorded"
        return f"Images of its publisher's own, called {card.dataset}; labels were not used. Their licence: {licence}."
    where = "comes with scikit-learn" if row.hub == DIGITS else "read from a local copy"
    if row.hub_id:
        where = f"[{row.hub_id}](https://huggingface.co/datasets/{row.hub_id})"
    licence = "its authors state none" if row.licence == "unknown" else row.licence
    return (
        f"The train split of {card.dataset} ({where}), {row.classes} classes; labels were not used. "
        f"Licence of the images: {licence}."
    )


def _training(card: Card) -> str:
    table = _table(("what", "value"), _flat(card.training))
    counted = (
        "\n\nThe energy is an estimate: what the machine's processors and GPUs counted, other work on it included."
    )
    return table + (counted if card.training.get("energy_kwh") is not None else "")


def _limits(card: Card) -> str:
    return (
        f"For search, clustering, k-NN and linear classification of images like those of {card.dataset} at "
        f"{card.image_size} x {card.image_size} pixels, and as a baseline in research.\n\nNot for recognising people, "
        "not for decisions about people or safety: nobody has tested that.\n\n"
        f"Bias: the encoder has seen nothing but {card.dataset}. What those images show often it tells apart well, "
        "what they show rarely it does not; whoever and whatever their collectors left out is missing here, too. "
        "Images of another kind, size or camera give embeddings that no result above speaks for."
    )


def _licence(card: Card) -> str:
    images = "The images they were trained on have a licence of their own, see above."
    if not card.licence:
        return f"The weights: {LICENCE}. {images}"
    terms = " It forbids commercial use." if noncommercial(card.licence) else ""
    facts = card.training
    return (
        f"The weights: {card.licence}, as their publisher states it ({facts['publisher']}).{terms} {images}\n\n"
        f"They were converted by contrastive-zoo from {facts['url']} (sha256 `{facts['sha256']}`; hash stated by the "
        f"publisher: {facts['publisher_hash']}), written by {facts['source']}: the keys were renamed, no number was "
        f"changed; left behind: {facts['left_behind']}."
    )


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested numbers as rows: view1.flip, 0.5."""
    rows: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        elif value not in (None, ""):
            rows.append((f"{prefix}{key}", f"`{value}`" if key == "command" else value))
    return rows


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) if rows else ""
