"""`zoo data`: data sets of the user's own, looked at once and kept under a name."""

from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from PIL import Image

from zoo.errors import needs
from zoo.files import new_file
from zoo.images.registry import Facts, facts_file, keep_facts, kept_names, read_facts

COLUMNS, ROWS, THUMBNAIL = 12, 6, 72  # of a contact sheet; pixels
LISTED = 20  # classes, and unreadable images, that are shown


def data(
    name: Annotated[str, tyro.conf.Positional] = "",
    place: Annotated[str, tyro.conf.Positional] = "",
    *,
    image_size: int | None = None,
    image: str = "",
    label: str = "",
    licence: str = "",
    source: str = "",
) -> None:
    """Look at the images of a data set of your own and keep what it holds under a name, which then works wherever a
    data set's name does: simco-r18-NAME, --data NAME. Without a place: show what is kept.

    Args:
        name: Lower-case letters and digits, such as birds.
        place: Class folders (with or without train and test above them), a flat folder, a CSV or Parquet table of files
            and labels beside the images, Parquet shards, WebDataset tars, an .npz file, a COCO or VOC folder, an
            archive of one of these, or hf://ORG/NAME@REVISION.
        image_size: Pixels that images are brought to; by default from their own sizes.
        image: Column of the pictures or files; by default found by its name.
        label: Column of the labels; by default found by its name.
        licence: Of the images, to be shown where they are named.
        source: Where they are from.
    """
    if not name:
        print("\n".join(map(_line, kept_names())) or "no data set is kept: zoo data NAME PATH looks at one")
        return
    if not place:
        print(page(read_facts(name)))
        return
    with needs("eval"):
        from zoo.images.survey import survey
    columns = {"image_column": image, "label_column": label}
    facts = survey(name, place, image_size=image_size, licence=licence, source=source, **columns)
    path = keep_facts(facts)
    sheet = contact_sheet(facts, path.with_suffix(".png"))
    print(page(facts))
    print(f"\nKept: {path}\nContact sheet: {sheet}\nNext: zoo train simco-r18-{name}, zoo score MODEL --data {name}")


def page(facts: Facts) -> str:
    """What a data set holds, for a terminal."""
    shape = "{} x {}"
    lines = [
        f"{facts.name}: {facts.place}",
        f"  {'licence':12} {facts.licence or 'not stated (--licence)'}",
        *([f"  {'source':12} {facts.source}"] if facts.source else []),
        *(_split_line(split, part) for split, part in facts.splits.items()),
        f"  {'classes':12} {_classes(facts)}",
        f"  {'sizes':12} "
        + ", ".join(f"{name} {shape.format(*size)}" for name, size in facts.sizes.items())
        + f"; brought to {facts.image_size} x {facts.image_size}",
        f"  {'modes':12} " + ", ".join(f"{count:,} {mode}" for mode, count in facts.modes.items()),
        f"  {'mean':12} {_numbers(facts.mean)}",
        f"  {'std':12} {_numbers(facts.std)}",
        *(f"  {'digest':12} {part['digest'][:16]} ({split})" for split, part in facts.splits.items()),
    ]
    if facts.classes:
        lines += ["", *_class_table(facts)]
    lines += ["", *(f"warning: {line}" for line in facts.warnings)] if facts.warnings else []
    for split, part in facts.splits.items():
        bad = list(part["unreadable"].items())
        lines += [f"left out of {split}: {name}: {reason}" for name, reason in bad[:LISTED]]
        lines += [f"left out of {split}: {len(bad) - LISTED:,} more"] if len(bad) > LISTED else []
    return "\n".join(line.encode(errors="backslashreplace").decode() for line in lines)


def contact_sheet(facts: Facts, path: Path) -> Path:
    """Draw some train images, class by class as far as they go, into a PNG file."""
    from zoo.images.opening import open_images

    images = open_images(facts.name, "train", stream=True)
    first = images.labels if images.labels.ndim == 1 else images.labels.argmax(1)
    order = np.argsort(first, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, COLUMNS * ROWS).astype(int))]
    sheet = Image.new("RGB", (COLUMNS * THUMBNAIL, -(-len(chosen) // COLUMNS) * THUMBNAIL), "white")
    for place, i in enumerate(chosen.tolist()):
        picture = images.picture(i)
        if picture is not None:
            picture.thumbnail((THUMBNAIL - 4, THUMBNAIL - 4))
            row, column = divmod(place, COLUMNS)
            sheet.paste(picture, (column * THUMBNAIL + 2, row * THUMBNAIL + 2))
    with new_file(path) as aside:
        sheet.save(aside, "PNG")
    return path


def _line(name: str) -> str:
    facts = read_facts(name)
    counts = ", ".join(f"{part['images']:,} {split}" for split, part in facts.splits.items())
    return f"{name:16} {counts}, {len(facts.classes)} classes, {facts.image_size} px  {facts.place}"


def _split_line(split: str, part: dict[str, object]) -> str:
    return f"  {split:12} {part['images']:,} images, {len(part['unreadable']):,} left out"  # type: ignore[arg-type]


def _classes(facts: Facts) -> str:
    if not facts.classes:
        return "none: the images have no labels"
    return f"{len(facts.classes)}{', several of which an image may be of' if facts.several_labels else ''}"


def _class_table(facts: Facts) -> list[str]:
    """Images of each class in each split, the most frequent first."""
    splits = list(facts.splits)
    train = facts.splits[splits[0]]["per_class"]
    names = sorted(facts.classes, key=lambda name: -train[name])
    width = max(12, *(len(name) for name in names[:LISTED]))
    lines = [f"  {'class':{width}} " + " ".join(f"{split:>8}" for split in splits)]
    for name in names[:LISTED]:
        lines.append(f"  {name:{width}} " + " ".join(f"{facts.splits[each]['per_class'][name]:>8,}" for each in splits))
    return lines + (
        [f"  ... and {len(names) - LISTED:,} more classes: {facts_file(facts.name)}"] if len(names) > LISTED else []
    )


def _numbers(values: tuple[float, float, float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)
