"""Write the cards of all recipes into the package's catalogue, where no weights are published under their names.

python -m train.catalog
"""

from pathlib import Path

import zoo
from train.recipe import recipes
from zoo.files import write_bytes
from zoo.hub.resolve import catalog


def write_catalog() -> list[Path]:
    """One `zoo/catalog/NAME.json` a recipe; published cards stay as they are. Returns the files written."""
    published = {name for name, card in catalog().items() if card.weights is not None}
    folder = Path(zoo.__file__).parent / "catalog"
    written = []
    for name, recipe in recipes().items():
        if name not in published:
            written.append(folder / f"{name}.json")
            write_bytes(written[-1], recipe.card().to_json().encode())
    return written


if __name__ == "__main__":
    for path in write_catalog():
        print(path.name)
