"""Which card results are written into, and how: a run's and a kept model's, never one that somebody else wrote."""

from pathlib import Path
from tempfile import TemporaryFile

from eval.result import Result
from zoo.errors import ZooError
from zoo.files import locked, write_bytes, zoo_home
from zoo.hub import store
from zoo.hub.store import CARD, read_card


def is_ours(model: str | Path, folder: Path) -> bool:
    """Whether results of `model`, which lies in `folder`, belong into its card.

    Not into one that came with the package or from the Hub: those are the installation's and the publisher's. Whoever
    gives such a folder by its path means it. Nor into one that we may not write.
    """
    brought = folder.parent == store.BUNDLED or folder.is_relative_to(zoo_home() / "hub")
    return (Path(model) == folder or not brought) and writable(folder)


def writable(folder: Path) -> bool:
    """Whether a file can be made in it."""
    try:
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def add_results(folder: Path, results: list[Result]) -> None:
    """Add results that have a value to the card.

    Raises ZooError if the card has other weights by now than those measured. A mean over training runs is of no single
    weights: its `weights_sha256` is empty.
    """
    with locked(folder):  # a training that saves, or another evaluation, waits
        card = read_card(folder)  # anew: another process may have added results, or training gone on
        measured = {one.encoder.weights_sha256 for one in results if one.encoder.name == card.name}
        if card.weights is None or measured - {card.weights.sha256, ""}:
            raise ZooError(
                f"the weights in {folder} changed while they were measured; measure again when training is over"
            )
        for one in results:
            card = card.with_result(one.to_row()) if one.value is not None else card
        write_bytes(folder / CARD, card.to_json().encode())
