"""The page at /, in a real browser: what it shows is what the model says, by mouse, keyboard and screen reader."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, Page, opened
from serve_model import NAME, OTHER, png

from serve.limits import MAX_BODY, MAX_IMAGE
from zoo.model.encoder import Encoder

pytest_plugins = ["serve_fixtures"]
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # httpx-ws leaves its socket to the garbage collector
]
DONE = "document.getElementById('status').textContent.includes('compared')"
IN_INDEX = "[...document.querySelectorAll('#nearest li')].every((li) => li.innerText.includes('in pictures:'))"

# the contrast of every text with what lies behind it
CONTRASTS = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const luminance = (color) => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if (color !== "rgba(0, 0, 0, 0)") return color;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? "#121212" : "white"; // Chromium's own
  };
  const contrast = (each) => {
    const pair = [luminance(getComputedStyle(each).color), luminance(behind(each))];
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  };
  const written = (each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const seen = [...document.querySelectorAll("main *")].filter((each) => each.checkVisibility());
  return seen.filter(written).map(contrast);
})()"""


@pytest.fixture(scope="module")
def page(live: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with opened(f"{live}/", tmp_path_factory.mktemp("browser") / "profile") as page:
        page.wait_for("document.readyState === 'complete' && document.getElementById('model').value")
        yield page


@pytest.fixture
def compared(page: Page, tmp_path: Path) -> list[bytes]:
    """Three pictures and a broken one, chosen on the page and answered."""
    contents = [png(seed) for seed in range(3)]
    paths = [tmp_path / f"picture {number}.png" for number in range(4)]
    for path, content in zip(paths, [*contents, b"no picture"], strict=True):
        path.write_bytes(content)
    page.run("document.getElementById('clear').click()")
    page.choose_files("#files", paths)
    page.wait_for(DONE)
    return contents


def shown(page: Page) -> np.ndarray:
    """The similarity matrix as it stands on the page."""
    numbers = "(tr) => [...tr.querySelectorAll('td')].map((td) => +td.textContent)"
    return np.array(page.run(f"[...document.querySelectorAll('tbody tr')].map({numbers})"))


def test_the_matrix_is_the_cosine_and_a_bad_image_is_named(
    page: Page, compared: list[bytes], torch_encoder: Encoder, other_encoder: Encoder
) -> None:
    for name, encoder in ((NAME, torch_encoder), (OTHER, other_encoder)):
        page.run(f"document.getElementById('model').value = '{name}'")
        page.run("document.getElementById('model').dispatchEvent(new Event('change'))")
        page.wait_for(f"document.getElementById('status').textContent.includes('compared by {name}')")
        units = encoder.embed(compared, normalize=True)
        assert np.abs(shown(page) - units @ units.T).max() < 6e-4  # three digits are shown
    assert page.run("document.getElementById('errors').textContent").startswith("picture 3.png: ")
    assert "1 left out" in page.run("document.getElementById('status').textContent")


def test_the_nearest_stand_first_among_the_images_and_in_the_index(
    page: Page, compared: list[bytes], torch_encoder: Encoder
) -> None:
    page.wait_for(f"document.getElementById('model').value === '{OTHER}' || {IN_INDEX}")
    page.run(f"document.getElementById('model').value = '{NAME}'")
    page.run("document.getElementById('model').dispatchEvent(new Event('change'))")
    page.wait_for(f"{DONE} && {IN_INDEX}")
    units = torch_encoder.embed(compared, normalize=True)
    for number in range(3):
        order = [each for each in np.argsort(-(units @ units[number])) if each != number]
        among, found = page.run(f"document.querySelectorAll('#nearest li')[{number}].innerText").split("in pictures: ")
        assert [among.index(f"picture {each}.png (") for each in order] == sorted(
            among.index(f"picture {each}.png (") for each in order
        )
        assert found.startswith(f"{'ab'[number % 2]}/{number} 🙂.png (1.000)")


def test_many_large_images_and_what_cannot_be_sent_are_no_harm(
    page: Page, torch_encoder: Encoder, tmp_path: Path
) -> None:
    large = png() + bytes(MAX_BODY // 4)  # what follows a PNG's end is not read
    contents = [large, png(1), large, large, large]  # more than one request may hold
    rest = {"too large.png": large + bytes(MAX_IMAGE), "deleted.png": png(2)}
    paths = [tmp_path / name for name in [*(f"{number}.png" for number in range(5)), *rest]]
    for path, content in zip(paths, [*contents, *rest.values()], strict=True):
        path.write_bytes(content)
    page.run("document.getElementById('clear').click()")
    page.run(f"document.getElementById('model').value = '{NAME}'")
    page.choose_files("#files", paths)
    page.wait_for(f"{DONE} && [...document.images].every((each) => each.complete)")
    paths[-1].unlink()
    page.run("document.getElementById('model').dispatchEvent(new Event('change'))")
    page.wait_for("document.getElementById('status').textContent.includes('5 images compared')")
    units = torch_encoder.embed(contents, normalize=True)
    assert np.abs(shown(page) - units @ units.T).max() < 6e-4
    told = page.run("[...document.querySelectorAll('#errors p')].map((p) => p.textContent)")
    assert told[0] == f"too large.png: larger than {MAX_IMAGE:,} bytes"
    assert told[1].startswith("deleted.png: cannot be read")
    assert len(told) == 2


def test_everything_can_be_reached_and_done_by_keyboard(page: Page, compared: list[bytes]) -> None:
    page.run("document.activeElement.blur()")
    seen = []
    for _ in range(8):
        page.press("Tab")
        seen.append(page.run("document.activeElement.id || document.activeElement.tagName"))
    assert [name for name in seen if name != "BODY"][:6] == ["A", "model", "key", "files", "clear", "matrix"]
    assert page.run("document.getElementById('matrix').checkVisibility()")
    page.run("document.activeElement.blur()")
    while page.run("document.activeElement.id") != "clear":
        page.press("Tab")
    page.press("Enter")
    assert page.run("document.getElementById('status').textContent") == "No images yet."
    assert page.run("document.querySelectorAll('table').length") == 0
    assert not page.run("document.getElementById('matrix').checkVisibility()")  # no heading above nothing


def test_a_screen_reader_is_told_names_headers_and_changes(page: Page, compared: list[bytes]) -> None:
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]}
    roles = {role for role, _ in named}
    assert {"main", "status", "alert", "table", "columnheader", "rowheader"} <= roles
    assert ("combobox", "Model") in named
    assert ("button", "Remove all") in named
    assert ("rowheader", "picture 1.png") in {(role, name.strip()) for role, name in named}
    for role in ("button", "combobox", "link", "textbox", "heading", "region"):
        assert all(name for kind, name in named if kind == role), f"a {role} without a name"


def test_the_page_asks_nobody_else_and_breaks_no_policy(page: Page, compared: list[bytes], live: str) -> None:
    urls = [each["params"]["request"]["url"] for each in page.events if each["method"] == "Network.requestWillBeSent"]
    assert f"{live}/page.js" in urls
    assert all(url.startswith((live, "blob:", "about:")) for url in urls), urls
    assert not [each for each in page.events if each["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_narrow_screen_nothing_is_cut_off_and_all_can_be_read(
    page: Page, compared: list[bytes], scheme: str
) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=400, height=900, deviceScaleFactor=1, mobile=True)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    assert page.run("document.documentElement.scrollWidth") == 400
    contrasts = page.run(CONTRASTS)
    assert len(contrasts) > 20
    assert min(contrasts) >= 4.5  # WCAG 2.2, 1.4.3
    page.call("Emulation.clearDeviceMetricsOverride")
    page.call("Emulation.setEmulatedMedia", features=[])
