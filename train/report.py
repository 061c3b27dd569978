"""The page of a run, `report.html`: one file that needs nothing else, neither a network nor this package."""

import base64
import html
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from train.method import LossRange
from train.monitor import Spectrum
from train.run_log import read_log
from zoo.files import write_bytes
from zoo.hub.store import read_card
from zoo.model.card import Card

SHOWN = 16  # images of one batch, at most
SIDE = 64  # pixels at which a view is shown, at least
PLOTS = {  # title: the entries of the log that it draws
    "k-NN accuracy on held-out train images": ("knn_held_out",),
    "Online linear probe, learnt during training (held-out train images; test at the end)": (
        "online_held_out",
        "online_test",
    ),
    "Pretext accuracy: the positive before all negatives": ("pretext_accuracy",),
    "Learning rate": ("learning_rate",),
    "Gradient norm, first and last weights": ("gradient_first", "gradient_last", "gradient_first_max"),
    "Spread of unit features (0: collapsed, 1: isotropic)": ("std",),
    "Effective rank of the features": ("rank",),
    "Momentum of the key encoder": ("key_momentum",),
}
LOGARITHMIC = ("gradient_first",)
STYLE = """body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.5em}h2{font-size:1.1em;margin-top:2em}figure{display:inline-block;margin:0 .5em 1em 0}
table{border-collapse:collapse}td{border-top:1px solid #ddd;padding:.2em 1em .2em 0;vertical-align:top}
td+td{font-family:ui-monospace,monospace;font-size:.9em;overflow-wrap:anywhere}img{image-rendering:pixelated;max-width:100%}"""


def write_report(folder: Path, bounds: LossRange, features: Spectrum, views: tuple[Tensor, ...]) -> Path:
    """Write `report.html` of the run in `folder`.

    Args:
        folder: The run folder.
        bounds: Of the loss, nats.
        features: Spectrum of the features at the end.
        views: (SHOWN, 3, S, S) in [0, 1] each, of one batch; those as large as the first are shown.
    """
    card, lines = read_card(folder), read_log(folder)
    figures = [_curve(lines, "Loss in nats, with its start and its floor", ("loss",), bounds)]
    figures += [_curve(lines, title, keys) for title, keys in PLOTS.items() if any(keys[0] in line for line in lines)]
    figures.append(_spectrum(features))
    path = folder / "report.html"
    write_bytes(path, _page(card, figures, _tiles([view for view in views if view.shape == views[0].shape])).encode())
    return path


def _page(card: Card, figures: list[str], tiles: str) -> str:
    training = {key: value for key, value in card.training.items() if key != "versions"}
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(card.name)}</title>
<style>{STYLE}</style></head><body><h1>{html.escape(card.name)}</h1>
<p>{html.escape(card.paper)}<br>Published: {html.escape(card.expects)}</p>
<h2>Curves</h2>{"".join(f"<figure>{figure}</figure>" for figure in figures)}
<h2>Two views of the first images of the first batch</h2>{tiles}
<h2>Training</h2>{_table(training)}<h2>Recipe</h2>{_table(card.recipe)}
<h2>Versions</h2>{_table(card.training.get("versions", {}))}</body></html>
"""


def _table(entries: dict[str, Any]) -> str:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in entries.items()}
    rows = (f"<tr><td>{html.escape(key)}</td><td>{html.escape(text)}</td></tr>" for key, text in texts.items())
    return f"<table>{''.join(rows)}</table>"


def _curve(lines: list[dict[str, Any]], title: str, keys: tuple[str, ...], bounds: LossRange | None = None) -> str:
    def draw(axes: Any) -> None:
        for key in keys:
            points = [(line["step"], line[key]) for line in lines if key in line]
            axes.plot(*zip(*points, strict=True), marker="." if len(points) < 30 else "", label=key)
        for name, value in bounds._asdict().items() if bounds else ():
            axes.axhline(value, linestyle="--", color="grey", linewidth=1)
            axes.annotate(f"{name} {value:.3f}", (0, value), xycoords=("axes fraction", "data"), fontsize=8)
        axes.set_xlabel("step")
        if keys[0] in LOGARITHMIC:
            axes.set_yscale("log")
        if len(keys) > 1:
            axes.legend()

    return _svg(title, draw)


def _spectrum(features: Spectrum) -> str:
    def draw(axes: Any) -> None:
        axes.semilogy(range(1, len(features.values) + 1), np.maximum(features.values, 1e-12))
        axes.set_xlabel(f"singular value of the centred features; effective rank {features.rank:.1f}")

    return _svg("Spectrum at the end", draw)


def _svg(title: str, draw: Any) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.2))
    axes = figure.add_axes((0.13, 0.15, 0.84, 0.75))
    draw(axes)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):  # words stay words: to be found, copied, read aloud
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]  # without the XML prologue, which HTML does not know


def _tiles(views: list[Tensor]) -> str:
    """A row of images for each view, as one embedded PNG."""
    rows = [np.concatenate(list(_levels(view)), axis=1) for view in views]
    sheet = Image.fromarray(np.concatenate(rows, axis=0))
    out = io.BytesIO()
    sheet.save(out, "PNG")
    zoom = max(1, SIDE // views[0].shape[-1])
    code = base64.b64encode(out.getvalue()).decode()
    return f'<img alt="augmented views" width="{sheet.width * zoom}" src="data:image/png;base64,{code}">'


def _levels(view: Tensor) -> np.ndarray:  # (B, 3, H, W) in [0, 1] -> (B, H, W, 3) uint8
    return (view.detach().cpu().permute(0, 2, 3, 1) * 255).round().byte().numpy()
