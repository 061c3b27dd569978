"""Write the cards of all recipes into the package's catalog, where no weights are published under their names.

python -m train.catalog
"""

from pathlib import Path

import zoo
from train.recipe import recipes
from zoo.files import write_bytes
from zoo.hub.catalog import CATALOG, catalog
from zoo.names import natural_order


def write_catalog(path: Path) -> int:
    """Write one line for each recipe, and those of published cards as they are. Returns the number of lines."""
    cards = {name: recipe.card() for name, recipe in recipes().items()}
    cards |= {name: card for name, card in catalog().items() if card.weights is not None}
    lines = [cards[name].to_line() for name in sorted(cards, key=natural_order)]
    write_bytes(path, "".join(lines).encode())
    return len(lines)


if __name__ == "__main__":
    file = Path(zoo.__file__).with_name(CATALOG)
    print(f"{file}: {write_catalog(file)} cards")
