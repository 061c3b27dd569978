"""A quick look keeps to its time, says that it is one, and says what the whole would take."""

import re
import sys
import time

import pytest
import torch

from eval.features import RawPixels
from eval.quick import FEWEST, quick_look
from eval.score import main, score
from zoo.errors import BadData
from zoo.images.opening import open_images


def slow(images: torch.Tensor) -> torch.Tensor:
    """20 ms an image."""
    time.sleep(0.02 * len(images))
    return images.flatten(1)


def test_a_quick_look_takes_the_images_that_its_time_allows_and_tells_the_time_of_all(monkeypatch):
    monkeypatch.setattr("eval.quick.SECONDS", 2.0)
    knn, ridge = score(slow, data={"digits": None}, quick=True)
    assert (knn.protocol[:4], ridge.protocol[:12]) == ("k-NN", "linear probe")
    images = knn.data.n_train + knn.data.n_test
    assert FEWEST <= images <= 100  # at 20 ms or a little more each
    assert knn.data.n_train == pytest.approx(0.8 * images, abs=1)
    note, data = knn.notes[0], knn.data
    assert note.startswith(f"a quick look at {data.n_train} of 1,438 train and {data.n_test} of 359 test images, so")
    (seconds,) = map(int, re.findall(r"about (\d+) seconds", note))
    assert 0.02 * 1797 <= seconds <= 3 * 0.02 * 1797
    low, high = knn.interval
    assert high - low > 0.1


def test_all_images_are_measured_where_there_is_time_for_all(monkeypatch, capsys):
    monkeypatch.setattr("eval.quick.MOST", 5000)
    monkeypatch.setattr(sys, "argv", ["eval.score", "pixels:", "--data", "digits", "--quick", "--protocol", "knn"])
    main()
    shown = capsys.readouterr().out
    assert "1,438 / 359" in shown
    assert "quick look" not in shown


def test_two_encoders_share_the_time_and_the_images(monkeypatch):
    monkeypatch.setattr("eval.quick.SECONDS", 4.0)
    both = score([slow, "pixels:"], data={"digits": None}, quick=True, protocols="knn")
    assert both[0].data == both[1].data
    assert both[0].data.n_train + both[0].data.n_test <= 200


def test_a_quick_look_that_cannot_be_one_is_refused():
    with pytest.raises(BadData, match="quick chooses the images itself"):
        score("pixels:", data={"digits": None}, quick=True, max_train=5)
    from eval.contestants import Contestant

    few = open_images("digits", "train").sample(3)
    with pytest.raises(BadData, match="3 labelled images in train; a quick look needs 6 at least"):
        quick_look([Contestant("pixels", RawPixels(8), "")], few, few)
