"""The table of checkpoints is made of their cards."""

from dataclasses import replace
from pathlib import Path

import pytest
from eval_rows import row

from eval.scoreboard import END, START, between_marks, cards_inside, scoreboard
from zoo.errors import BadData, ZooError

ROOT = Path(__file__).parents[1]


def test_every_row_of_every_card_is_there_and_a_shared_baseline_once(card):
    training = {"epochs": 3, "images": 1438, "seconds": 90.0, "hardware": "2 cores", "date": "2026-01-31"}
    training |= {"command": "python a.py"}
    one = replace(card, training=training, results=(row("one", 0.5), row("pixels", 0.25)))
    two = replace(one, expects="58.35 % (table 5)", results=(row("two", 0.75), row("pixels", 0.25)))
    text = scoreboard([one, two])
    assert "3 epochs of 1,438 images, 2 minutes, 2 cores, 2026-01-31 | `python a.py` | 58.35 % (table 5) |" in text
    lines = [line for line in text.splitlines() if line.startswith(("| one", "| two", "| pixels"))]
    assert lines == ["| one | 4 | 50.00 |", "| pixels | 4 | 25.00 |", "| two | 4 | 75.00 |"]


def test_a_card_that_does_not_tell_its_training_is_an_error(card):
    with pytest.raises(BadData, match="simco-r20-digits: its card does not tell how it was trained: no command, date"):
        scoreboard([card])


def test_the_table_replaces_what_stood_between_the_marks_and_nothing_else():
    assert between_marks(f"a\n{START}\nold\n{END}\nb", "new") == f"a\n{START}\n\nnew\n\n{END}\nb"
    for text in ("nothing", f"{END} {START}", f"{START}{END}{START}{END}"):
        with pytest.raises(ZooError, match="put these two lines where it belongs"):
            between_marks(text, "new")


def test_readme_shows_the_cards_as_they_are():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert between_marks(readme, scoreboard(cards_inside())) == readme
