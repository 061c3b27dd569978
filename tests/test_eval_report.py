"""report.html and its pictures: they show the numbers they claim to show, and need no other file."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from browser import CHROMIUM, opened
from eval_rows import result
from PIL import Image

from eval.features import Features, RawPixels, extract
from eval.plots import (
    NAMED,
    confusion_figure,
    confusion_png,
    map_png,
    neighbours_png,
    per_class_figure,
    per_class_png,
    spectrum_png,
)
from eval.report import CAPTIONS, html, picture_stem
from eval.results import Results
from eval.score import score
from eval.task import Task
from zoo.images.opening import open_images


@pytest.fixture(scope="module")
def task() -> Task:
    train, test = open_images("digits", "train").sample(200), open_images("digits", "test").sample(60)
    encoder = RawPixels(8)
    return Task(encoder, train, test, extract(encoder, train), extract(encoder, test), 10)


def pixels_of(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_the_confusion_matrix_of_a_perfect_encoder_is_a_bright_diagonal(task):
    """viridis: yellow (253, 231, 37) at 1, violet (68, 1, 84) at 0."""
    right = pixels_of(confusion_png(task.queries.labels, task, by="k-NN"))
    wrong = pixels_of(confusion_png((task.queries.labels + 1) % 10, task, by="k-NN"))
    yellow = (np.abs(right - [253, 231, 37]).sum(-1) < 30).sum()
    violet = (np.abs(right - [68, 1, 84]).sum(-1) < 30).sum()
    assert violet / yellow == pytest.approx(9, rel=0.2)
    assert np.abs(right - wrong).max() > 100


def test_bars_of_a_perfect_encoder_are_all_full(task):
    full, half = (pixels_of(per_class_png(p, task, by="k-NN")) for p in (task.queries.labels, np.zeros(60, np.int64)))
    blue = [(np.abs(image - [31, 119, 180]).sum(-1) < 30).sum() for image in (full, half)]
    assert blue[0] == pytest.approx(10 * blue[1], rel=0.2)


def ticks(axis) -> dict[int, str]:
    """The names at the positions of a drawn axis."""
    return {int(at): label.get_text() for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)}


def relabelled(task: Task, labels: np.ndarray, *, classes: int, names: tuple[str, ...]) -> Task:
    """`task` with other labels of its queries."""
    queries, test = Features(task.queries.rows, labels), replace(task.test, labels=labels, classes=names)
    return replace(task, queries=queries, test=test, classes=classes)


def test_every_bar_and_cell_is_of_the_class_that_its_tick_names_where_the_data_has_fewer_classes_than_allowed(task):
    labels = np.repeat([0, 2, 3], 20)
    few = relabelled(task, labels, classes=47, names=("ant", "bee", "cat", "dog"))
    predicted = np.concatenate([np.repeat([0, 1], 10), np.repeat(2, 20), np.repeat([3, 0], [5, 15])])
    (bars,) = per_class_figure(predicted, few, by="p").axes
    heights = {ticks(bars.xaxis)[i]: bar.get_height() for i, bar in enumerate(bars.patches)}
    assert heights == {"cat": 100, "ant": 50, "dog": 25}
    axis = confusion_figure(predicted, few, by="p").axes[0]
    cells = axis.images[0].get_array()
    true, found = ticks(axis.yaxis), ticks(axis.xaxis)
    assert (list(true.values()), list(found.values())) == (["ant", "cat", "dog"], ["ant", "bee", "cat", "dog"])
    shares = {(true[i], found[j]): float(cells[i, j]) for i, j in np.ndindex(cells.shape) if cells[i, j]}
    assert shares == {
        ("ant", "ant"): 0.5,
        ("ant", "bee"): 0.5,
        ("cat", "cat"): 1,
        ("dog", "dog"): 0.25,
        ("dog", "ant"): 0.75,
    }


def test_ticks_of_more_classes_than_fit_name_the_classes_at_their_places(task):
    labels = np.arange(60) * 5  # classes 0, 5, ..., 295
    many = relabelled(task, labels, classes=300, names=tuple(f"class {i}" for i in range(300)))
    predicted = (labels + np.where(np.arange(60) < 30, 0, 1)) % 300
    axis = confusion_figure(predicted, many, by="p").axes[0]
    columns = sorted({*labels.tolist(), *predicted.tolist()})
    assert ticks(axis.xaxis) == {i: f"class {c}" for i, c in enumerate(columns)}
    wide = relabelled(task, np.arange(60), classes=300, names=many.test.classes)
    everywhere = replace(wide, queries=Features(np.zeros((300, 3), np.float32), np.arange(300)))
    (bars,) = per_class_figure(np.where(np.arange(300) < 100, 7, np.arange(300)), everywhere, by="p").axes
    named = ticks(bars.xaxis)
    assert len(named) == 100 <= NAMED
    for at, name in named.items():
        label = int(name.removeprefix("class "))
        assert bars.patches[at].get_height() == (100 if label >= 100 or label == 7 else 0)


def test_a_class_without_a_name_is_named_by_its_number_and_no_answer_is_called_none(task):
    labels = np.repeat([0, 5], 30)
    odd = relabelled(task, labels, classes=10, names=("ant",))
    axis = confusion_figure(np.where(np.arange(60) == 0, -1, labels), odd, by="p").axes[0]
    assert list(ticks(axis.xaxis).values()) == ["ant", "5", "none"]


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
    pictures = [source for source in page.sources if not source.startswith("#")]
    assert len(pictures) == 10
    assert all(re.match("data:image/png;base64,", source) for source in pictures)
    assert rows[0].provenance.command in page.text
    assert {f"{100 * value:.2f}" for row in rows[:1] for value in row.extras["by_k"].values()} <= set(page.text)
    assert "pixels on digits" in page.text


def test_names_cannot_break_the_page():
    page = Page()
    page.feed(html([result("<script>&", 0.5)], {}))
    assert "<script>&" in page.text
    assert "script" not in page.open


def leaders(wrong: dict[str, int], **entries: object) -> list:
    """Encoders that have so many of 1,000 images wrong, the last ones, and what they answered."""
    labels = np.zeros(1000, int)
    results, answers = [], {}
    for name, n in wrong.items():
        results.append(result(name, 1 - n / 1000, ci95=[0.0, 1.0], **entries))
        answers[name] = (np.where(np.arange(1000) >= 1000 - n, 1, 0), labels)
    return [results, lambda one: answers[one.encoder.name]]


def cells_of(page: str, mark: str) -> list[str]:
    """Encoders whose value has a mark."""
    return re.findall(rf'<td>(\w+)</td><td>4</td><td class="{mark}">', page)


def test_the_best_is_marked_with_those_that_do_not_differ_from_it():
    """All that the better one has wrong, the worse one has, too: of 5 more p is 0.06, of 20 more 2e-6."""
    results, answers = leaders({"a": 20, "b": 0, "c": 5})
    page = html(results, {}, answers)
    assert (cells_of(page, "best"), cells_of(page, "tie")) == (["b"], ["c"])
    results, answers = leaders({"a": 7, "b": 0})  # p = 0.016 alone, 0.031 of two such, 0.047 of three, 0.063 of four
    assert cells_of(html(results, {}, answers), "tie") == []
    results, answers = leaders({"a": 7, "b": 0, "c": 7, "d": 7, "e": 7})
    assert cells_of(html(results, {}, answers), "tie") == ["a", "c", "d", "e"]


def test_no_tie_is_claimed_where_no_test_was_made():
    results, answers = leaders({"a": 5, "b": 0}, metric="mean per-class accuracy")
    page = html(results, {}, answers)
    assert (cells_of(page, "best"), cells_of(page, "tie")) == (["b"], [])
    assert cells_of(html(results, {}), "tie") == []
    results, answers = leaders({"a": 5, "b": 0}, unit="")
    assert "class=" not in html(results, {}, answers).split("<script>")[0].split("</style>")[1]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # httpx-ws leaves its socket to the garbage collector
def test_a_browser_shows_all_pictures_loads_nothing_else_and_has_nothing_to_complain_of(task, tmp_path):
    stem, answers = picture_stem(result("e", 0.5)), np.roll(task.queries.labels, 1)
    pictures = {"neighbours": neighbours_png(task), "map": map_png(task), "spectrum": spectrum_png(task)}
    pictures |= {"confusion": confusion_png(answers, task, by="p"), "classes": per_class_png(answers, task, by="p")}
    file = tmp_path / "report.html"
    file.write_text(html([result("e", 0.5)], {f"{stem}-{kind}.png": png for kind, png in pictures.items()}))
    with opened(file.as_uri(), tmp_path / "profile") as page:
        page.wait_for("document.readyState === 'complete' && document.title === 'Evaluation'")
        page.call("Emulation.setDeviceMetricsOverride", width=500, height=900, deviceScaleFactor=1, mobile=False)
        widths = page.run("[...document.images].map((image) => image.naturalWidth)")
        assert page.run("document.documentElement.scrollWidth") <= 500
    assert widths == [pixels_of(pictures[kind]).shape[1] for kind in CAPTIONS]
    asked = [event["params"] for event in page.events if event["method"] == "Network.requestWillBeSent"]
    assert [ask["request"]["url"] for ask in asked if not ask["request"]["url"].startswith("data:")] == [file.as_uri()]
    complaints = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert not [event for event in page.events if event["method"] in complaints]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_in_a_browser_tables_sort_two_encoders_are_side_by_side_and_colours_keep_their_contrast(task, tmp_path):
    results, answers = leaders({"a": 20, "b": 0, "c": 5})
    pictures = {f"{picture_stem(one)}-spectrum.png": spectrum_png(task) for one in results}
    file = tmp_path / "report.html"
    file.write_text(html(results, pictures, answers))
    with opened(file.as_uri(), tmp_path / "profile") as page:
        page.wait_for("document.readyState === 'complete' && document.title === 'Evaluation'")
        column = "[...document.querySelectorAll('td:first-child')].map((cell) => cell.textContent).join('')"
        assert page.run(column) == "abc"
        order = []
        for head in (2, 2, 0, 0):
            page.run(f"document.querySelectorAll('th button')[{head}].click()")
            order.append(page.run(column))
        assert order == ["bca", "acb", "cba", "abc"]
        assert page.run("document.querySelector('th').getAttribute('aria-sort')") == "ascending"
        choose = (
            "const [a, b] = document.querySelectorAll('#beside select'); a.value = 'encoder-0'; b.value = 'encoder-2';"
        )
        page.run(
            f"(() => {{ {choose} a.dispatchEvent(new Event('change')); b.dispatchEvent(new Event('change')); }})()"
        )
        assert page.run("document.querySelectorAll('#beside img').length") == 2
        for scheme in ("light", "dark"):
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            for selector in ("body", "td.best", "td.tie", "a", "th"):
                colours = [page.run(COLOURS % (selector, what)) for what in ("color", "backgroundColor")]
                assert contrast(*colours) >= 4.5, (scheme, selector, colours)


COLOURS = """(() => { let at = document.querySelector("%s"), found;
do { found = getComputedStyle(at)["%s"]; at = at.parentElement; } while (found === "rgba(0, 0, 0, 0)" && at);
return found.match(/[0-9]+/g).map(Number); })()"""


def contrast(a: list[int], b: list[int]) -> float:
    """WCAG 2.2, relative luminance and contrast ratio."""

    def luminance(colour: list[int]) -> float:
        parts = [c / 255 for c in colour[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)
