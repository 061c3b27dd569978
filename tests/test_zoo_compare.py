"""`zoo compare` and `zoo info --cite`."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from serve_model import make_run, noise

import zoo
from zoo.cli.compare import agreement, compare, neighbours
from zoo.cli.listing import bibtex
from zoo.errors import BadData
from zoo.hub.catalog import catalog


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    (tmp_path / "pictures").mkdir()
    for index in range(9):
        Image.fromarray(noise(12, 12, 3, seed=index)).save(tmp_path / "pictures" / f"{index}.png")
    return tmp_path / "pictures"


def test_neighbours_are_the_nearest_others_by_cosine():
    rows = np.array([[1, 0], [3, 0.1], [0, 1], [-1, 0]], np.float32)
    assert neighbours(rows, 2).tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]


def test_agreement_is_the_share_that_both_have_in_any_order():
    assert agreement(np.array([[1, 2], [3, 4]]), np.array([[2, 1], [4, 9]])).tolist() == [1.0, 0.5]


def test_a_model_agrees_with_itself_and_the_picture_frames_all_its_neighbours(
    tiny_run: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    compare(str(tiny_run), str(tiny_run), images=pictures, output=tmp_path / "c.png", queries=3, k=2)
    assert "9 images, 100.0 % are the same under both (by chance 25.0 %)" in capsys.readouterr().out
    framed = (np.asarray(Image.open(tmp_path / "c.png")) == (0, 114, 178)).all(2)
    assert framed.sum() > 12 * 4 * 90 * 2  # 3 rows x 2 models x 2 neighbours, three pixels wide


def test_the_printed_share_is_that_of_the_two_models(
    tiny_run: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    other = make_run(tmp_path / "other", seed=3)
    compare(str(tiny_run), str(other), images=pictures, output=tmp_path / "c.png", k=3)
    sets = []
    for model in (tiny_run, other):
        rows = zoo.load(model).embed(pictures, normalize=True)
        sets.append([set(np.argsort(-(rows @ row))[1:4]) for row in rows])
    share = np.mean([len(a & b) / 3 for a, b in zip(*sets, strict=True)])
    assert f"{100 * share:.1f} % are the same" in capsys.readouterr().out


def test_too_few_images_are_refused(tiny_run: Path, pictures: Path, tmp_path: Path):
    with pytest.raises(BadData, match="at least 10 are needed"):
        compare(str(tiny_run), str(tiny_run), images=pictures, output=tmp_path / "c.png", k=9)
    assert not (tmp_path / "c.png").exists()


def test_every_paper_of_the_catalog_has_an_entry_with_author_title_venue_and_year():
    for paper in {card.paper for card in catalog().values()}:
        entry = bibtex(paper)
        assert entry.startswith(("@inproceedings{", "@misc{"))
        assert all(f"{field} = " in entry for field in ("author", "title", "year")), entry
        assert entry.count("{") == entry.count("}")
    assert bibtex("He et al. Momentum Contrast for Learning. CVPR 2020") == (
        "@inproceedings{he2020momentum,\n  author = {He and others},\n  title = {{Momentum Contrast for Learning}},\n"
        "  booktitle = {CVPR},\n  year = {2020}\n}"
    )
    assert "title = {{Nobody. A toy. 2026}}" in bibtex("Nobody. A toy. 2026")
