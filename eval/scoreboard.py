"""The checkpoints inside the package with their numbers, as Markdown: made of their cards, never typed.

python -m eval.scoreboard README.md     # writes it between the file's two marks; without a file, prints it
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from eval.seeds import results_of
from eval.tables import markdown
from zoo.errors import BadData, ZooError
from zoo.files import write_bytes
from zoo.hub.store import BUNDLED, CARD, read_card
from zoo.model.card import Card

START, END = "<!-- python -m eval.scoreboard README.md -->", "<!-- end -->"


def cards_inside() -> list[Card]:
    """The cards of the models inside the package, by name."""
    return [read_card(path.parent) for path in sorted(BUNDLED.glob(f"*/{CARD}"))]


def scoreboard(cards: Iterable[Card]) -> str:
    """How each model was trained, then a table for each protocol: every result of the cards, a shared baseline once."""
    cards = list(cards)
    heads = "| checkpoint | trained | by | of the recipe is published |\n| --- | --- | --- | --- |"
    trained = [
        f"| `{card.name}` | {_training(card)} | `{card.training['command']}` | {card.expects} |" for card in cards
    ]
    results = [one for card in cards for one in results_of(card, card.results)]
    once = {(one.key, one.encoder.sha256): one for one in results}
    return "\n\n".join(["\n".join([heads, *trained]), markdown(list(once.values()))])


def _training(card: Card) -> str:
    """`7 epochs of 50,000 images, 96 minutes, 2 cores of AMD EPYC, 2026-11-30`. Raises BadData."""
    done = card.training
    if missing := sorted({"epochs", "images", "seconds", "hardware", "date", "command"} - done.keys()):
        raise BadData(f"{card.name}: its card does not tell how it was trained: no {', '.join(missing)}")
    spent = f"{done['seconds'] / 60:.0f} minutes"
    return f"{done['epochs']} epochs of {done['images']:,} images, {spent}, {done['hardware']}, {done['date']}"


def between_marks(text: str, table: str) -> str:
    """`text` with the table between START and END. Raises ZooError if the marks do not stand there once, in order."""
    pattern = re.compile(f"{re.escape(START)}.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ZooError(f"the table's place is missing; put these two lines where it belongs: {START} and {END}")
    return pattern.sub(lambda _: f"{START}\n\n{table}\n\n{END}", text)


def main() -> None:
    """Command line: nothing, or the file to write into."""
    table = scoreboard(cards_inside())
    if len(sys.argv) == 1:
        print(table)
        return
    path = Path(sys.argv[1])
    try:
        write_bytes(path, between_marks(path.read_text("utf-8"), table).encode())
    except (ZooError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
