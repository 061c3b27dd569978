"""`zoo embed`: what was stopped goes on, and only what is still true is kept."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from serve_model import make_run, noise

import zoo
import zoo.cli.embed
from zoo.cli.embed import embed
from zoo.model.encoder import Encoder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    (tmp_path / "pictures").mkdir()
    for index in range(7):
        Image.fromarray(noise(12, 12, 3, seed=index)).save(tmp_path / "pictures" / f"{index}.png")
    return tmp_path / "pictures"


@pytest.fixture
def stopped(tiny_run: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output of a run that was stopped after 4 of 7 images; parts are of 2."""
    monkeypatch.setattr(zoo.cli.embed, "PART", 2)
    pixels = Encoder.pixels

    def until_the_fifth(self: Encoder, picture: str) -> np.ndarray:
        if picture.endswith("4.png"):
            raise KeyboardInterrupt
        return pixels(self, picture)

    monkeypatch.setattr(Encoder, "pixels", until_the_fifth)
    with pytest.raises(KeyboardInterrupt):
        embed(str(tiny_run), pictures, output=tmp_path / "out.parquet", batch_size=2)
    monkeypatch.setattr(Encoder, "pixels", pixels)
    assert not (tmp_path / "out.parquet").exists()
    return tmp_path / "out.parquet"


def rows(path: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(path)
    assert table.column_names == ["path", "embedding"]
    return {Path(row["path"]).name: np.array(row["embedding"], np.float32) for row in table.to_pylist()}


def embedded_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the pictures that are embedded from now on."""
    seen: list[str] = []
    pixels = Encoder.pixels
    monkeypatch.setattr(Encoder, "pixels", lambda self, p: seen.append(Path(p).name) or pixels(self, p))
    return seen


def test_a_stopped_run_goes_on_and_gives_the_rows_of_one_that_was_not(
    stopped: Path, tiny_run: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    seen = embedded_again(monkeypatch)
    embed(str(tiny_run), pictures, output=stopped, batch_size=2)
    assert seen == ["4.png", "5.png", "6.png"]
    embed(str(tiny_run), pictures, output=tmp_path / "whole.parquet", batch_size=2)
    found, whole = rows(stopped), rows(tmp_path / "whole.parquet")
    assert list(found) == list(whole) == [f"{index}.png" for index in range(7)]
    assert all(np.array_equal(found[name], whole[name]) for name in whole)
    assert not list(tmp_path.glob(".*.begun"))


def test_a_picture_that_was_replaced_or_removed_meanwhile_is_not_kept(
    stopped: Path, tiny_run: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
):
    Image.fromarray(noise(30, 30, 3, seed=99)).save(pictures / "1.png")
    (pictures / "0.png").unlink()
    seen = embedded_again(monkeypatch)
    embed(str(tiny_run), pictures, output=stopped, batch_size=2)
    assert sorted(seen) == ["1.png", "4.png", "5.png", "6.png"]
    found = rows(stopped)
    assert sorted(found) == [f"{index}.png" for index in range(1, 7)]
    assert np.allclose(found["1.png"], zoo.load(tiny_run).embed([pictures / "1.png"])[0], atol=1e-5)


@pytest.mark.parametrize("other", ["weights", "normalize"])
def test_rows_of_other_weights_or_another_scale_are_not_taken_over(
    other: str, stopped: Path, tiny_run: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    model = make_run(tmp_path / "other", seed=5) if other == "weights" else tiny_run
    seen = embedded_again(monkeypatch)
    embed(str(model), pictures, output=stopped, batch_size=2, normalize=other == "normalize")
    assert len(seen) == 7
    expected = zoo.load(model).embed(pictures, normalize=other == "normalize")
    assert np.allclose(np.stack(list(rows(stopped).values())), expected, atol=1e-5)
