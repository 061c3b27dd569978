"""Sentences about a number that several protocols write: what was selected, and how surely."""

import math
from collections.abc import Mapping
from typing import Any


def selection_notes(*, grid_edge: bool, held_out: Mapping[str, float], converged: bool = True) -> tuple[str, ...]:
    """Doubts about a setting that was chosen on held-out images.

    grid_edge: it is the first or last of those tried. held_out: the score of each setting. converged: the last fit did.
    """
    best = [setting for setting, score in held_out.items() if score == max(held_out.values())]
    tie = f"the settings {' and '.join(best)} were equally good on the held-out images."
    doubts = {
        "the best setting lies at the edge of those tried.": grid_edge,
        tie: len(best) > 1,
        "the last fit did not converge.": not converged,
    }
    return tuple(sentence for sentence, holds in doubts.items() if holds)


def label_note(*, used: int, asked: float) -> tuple[str, ...]:
    """Says so where two labels of each class are far more than the share that was asked for."""
    if used <= 1.2 * asked:
        return ()
    return (f"{used:,} labels were used, not {asked:,}: of each class two at least.",)


def divergence_note(diverged: object, seed: object = None) -> tuple[str, ...]:
    """Says so where a training run diverged. diverged: whether, or how."""
    if not diverged:
        return ()
    return (f"the training of seed {seed} {diverged}." if seed is not None else "the training diverged.",)


IN_ONE_RUN = "in one training run at least, "  # before a note of a mean over several
COLLAPSED_NOTE = "the features are (nearly) one point; the encoder has collapsed."


def notes_of_earlier_versions(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes of a result that an earlier version wrote without any, from the entries of its row."""
    selected = selection_notes(
        grid_edge=row.get("grid_edge", False),
        held_out=row.get("held_out", {}),
        converged=row.get("converged") is not False,
    )
    labels = label_note(used=row.get("n_fit", 0), asked=row.get("n_asked", math.inf))
    of_several = ("trainings" in row) * IN_ONE_RUN
    collapsed = (COLLAPSED_NOTE,) if row.get("collapsed") else ()
    notes = (*collapsed, *selected, *divergence_note(row.get("diverged"), row.get("seed")), *labels)
    return tuple(of_several + note for note in notes)
