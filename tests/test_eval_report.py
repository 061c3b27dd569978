"""report.html and its pictures: they show the numbers they claim to show, and need no other file."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from eval.features import Features, RawPixels, extract
from eval.plots import confusion_png, map_png, neighbours_png, per_class_png, spectrum_png
from eval.report import html
from eval.results import Results
from eval.score import score
from eval.task import Task
from zoo.split import open_split


@pytest.fixture(scope="module")
def task() -> Task:
    train, test = open_split("digits", "train").sample(200), open_split("digits", "test").sample(60)
    encoder = RawPixels(8)
    return Task(encoder, train, test, extract(encoder, train), extract(encoder, test), 10)


def pixels_of(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_the_confusion_matrix_of_a_perfect_encoder_is_a_bright_diagonal(task):
    """viridis: yellow (253, 231, 37) at 1, violet (68, 1, 84) at 0."""
    right = pixels_of(confusion_png(task.queries.labels, task))
    wrong = pixels_of(confusion_png((task.queries.labels + 1) % 10, task))
    yellow = (np.abs(right - [253, 231, 37]).sum(-1) < 30).sum()
    violet = (np.abs(right - [68, 1, 84]).sum(-1) < 30).sum()
    assert violet / yellow == pytest.approx(9, rel=0.2)
    assert np.abs(right - wrong).max() > 100


def test_bars_of_a_perfect_encoder_are_all_full(task):
    full, half = (pixels_of(per_class_png(p, task)) for p in (task.queries.labels, np.zeros(60, np.int64)))
    blue = [(np.abs(image - [31, 119, 180]).sum(-1) < 30).sum() for image in (full, half)]
    assert blue[0] == pytest.approx(10 * blue[1], rel=0.2)


def test_neighbours_of_planted_features_all_bear_a_green_title(task):
    planted = [Features(np.eye(10, dtype=np.float32)[f.labels], f.labels) for f in (task.bank, task.queries)]
    image = pixels_of(neighbours_png(replace(task, bank=planted[0], queries=planted[1])))
    red = (np.abs(image - [214, 39, 40]).sum(-1) < 30).sum()
    green = (np.abs(image - [44, 160, 44]).sum(-1) < 30).sum()
    assert red == 0 < green


def test_pictures_are_the_same_every_time(task):
    assert map_png(task) == map_png(task)
    assert spectrum_png(task) == spectrum_png(task)


def test_a_collapsed_encoder_can_be_drawn_too(task):
    flat = [Features(np.ones((len(f), 3), np.float32), f.labels) for f in (task.bank, task.queries)]
    for picture in (map_png, spectrum_png, neighbours_png):
        assert pixels_of(picture(replace(task, bank=flat[0], queries=flat[1]))).ndim == 3


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.sources += [value for key, value in attrs if key in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_report_holds_every_number_of_the_tables_and_all_pictures_in_one_file(tmp_path):
    rows = score(
        ["pixels:", "random:r20"],
        data={"digits": None},
        protocols=["knn", "geometry"],
        max_train=200,
        max_test=60,
        pictures=True,
        out=tmp_path,
    )
    page = Page()
    page.feed(html(rows, Results(tmp_path).pictures()))
    assert page.open == []
    assert len(page.sources) == 10
    assert all(re.match("data:image/png;base64,", source) for source in page.sources)
    assert {f"{100 * value:.2f}" for row in rows[:1] for value in row["by_k"].values()} <= set(page.text)
    assert "pixels on digits" in page.text


def test_names_cannot_break_the_page():
    base = {
        "protocol": "p",
        "protocol_version": 1,
        "metric": "m",
        "unit": "share",
        "value": 0.5,
        "ci95": None,
        "dim": 1,
    }
    base |= {"n_train": 1, "n_test": 1, "data_sha256": ["a", "b"], "encoder_sha256": "", "image_size": 8, "date": ""}
    base |= {
        "collapsed": False,
        "unseen": 0,
        "unlabelled": 0,
        "skipped": 0,
        "duplicates": 0,
        "hardware": "",
        "command": "",
    }
    page = Page()
    page.feed(html([base | {"key": "k", "dataset": "d", "encoder": "<script>&"}], {}))
    assert "<script>&" in page.text
    assert "script" not in page.open
