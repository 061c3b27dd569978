"""`zoo embed`: the images below a folder as rows of one Parquet file; a run that was stopped goes on where it was."""

import hashlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import tyro

import zoo
from zoo.errors import BadData, BadImage, needs
from zoo.files import locked, new_file
from zoo.images.walk import IMAGE_SUFFIXES, find_images, summary
from zoo.model.embedding import unit_rows

if TYPE_CHECKING:
    from zoo.model.encoder import Encoder

PART = 2048  # images between two savings: what a kill can lose


class Image(NamedTuple):
    """An image file as it was when it was embedded."""

    path: str
    size: int  # bytes
    modified: int  # nanoseconds


def embed(
    model: str,
    folder: Path,
    /,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("embeddings.parquet"),
    normalize: bool = False,
    batch_size: int = 64,
) -> None:
    """Embed every image below a folder: one Parquet row an image, `path` and `embedding`.

    The same command goes on where it was stopped. The file appears, or is replaced, when it is whole.

    Args:
        model: A name of the zoo, or a run folder.
        folder: Searched through all its folders; one image file works too.
        output: Parquet file to write.
        normalize: Scale every embedding to unit L2 norm.
        batch_size: Images at a time.
    """
    with needs("core"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    if batch_size < 1:
        raise BadData(f"--batch-size {batch_size}; at least 1 image at a time")
    if output.is_dir():
        raise BadData(f"{output} is a folder; -o names the Parquet file to write")
    bad: list[str] = []
    images = list(_known(images_below(folder, bad), bad))
    encoder = zoo.load(model)
    begun = _begun(output, encoder, normalize=normalize)
    with locked(begun):  # a second process would embed everything, too
        schema = _schema(encoder.dim)
        done = _rows_of(begun, set(images))
        if done:
            print(f"{len(done)} of {len(images)} images are embedded already, see {begun}", file=sys.stderr)
        todo = [image for image in images if image not in done]
        for start in range(0, len(todo), max(PART, batch_size)):
            part = todo[start : start + max(PART, batch_size)]
            _write_part(begun, encoder, part, bad, schema=schema, normalize=normalize, batch_size=batch_size)
        for reason in bad:
            print(f"left out: {reason}", file=sys.stderr)
        done = _rows_of(begun, set(images))
        if not done:
            shutil.rmtree(begun)
            raise BadData(f"none of {len(images)} images could be embedded; {output} is untouched")
        with new_file(output) as aside, pq.ParquetWriter(aside, schema.remove(3).remove(2)) as writer:
            for path in sorted(begun.glob("*.parquet")):
                table = pq.read_table(path)
                rows = [Image(*row.values()) in done for row in table.select(_KEYS).to_pylist()]
                writer.write_table(table.filter(pa.array(rows)).select(["path", "embedding"]))
        shutil.rmtree(begun)
    print(f"{output}: {len(done)} embeddings of {encoder.dim} numbers, {len(bad)} images left out")


_KEYS = ["path", "size", "modified"]


def _schema(dim: int) -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("path", pa.string()),
            ("embedding", pa.list_(pa.float32(), dim)),
            ("size", pa.int64()),
            ("modified", pa.int64()),
        ]
    )


def _begun(output: Path, encoder: "Encoder", *, normalize: bool) -> Path:
    """Folder beside the output with what has been embedded so far, by these weights alone."""
    assert encoder.card is not None
    assert encoder.card.weights is not None
    what = f"{encoder.card.weights.sha256} {encoder.image_size} {encoder.crop} {normalize}"
    return output.parent / f".{output.name}.{hashlib.sha256(what.encode()).hexdigest()[:12]}.begun"


def _rows_of(begun: Path, images: set[Image]) -> set[Image]:
    """Which of the images, unchanged since, are in the parts."""
    import pyarrow.parquet as pq

    found: set[Image] = set()
    for path in begun.glob("*.parquet"):
        found |= {Image(*row.values()) for row in pq.read_table(path, columns=_KEYS).to_pylist()}
    return found & images


def _write_part(
    begun: Path,
    encoder: "Encoder",
    images: Sequence[Image],
    bad: list[str],
    *,
    schema: Any,
    normalize: bool,
    batch_size: int,
) -> None:
    """Embed some images into the next file of `begun`; why one cannot be read is added to `bad`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = len(list(begun.glob("*.parquet")))
    with new_file(begun / f"{number:06}.parquet") as aside, pq.ParquetWriter(aside, schema) as writer:
        for start in range(0, len(images), batch_size):
            pixels = _readable(encoder, images[start : start + batch_size], bad)
            if pixels:
                vectors = encoder.embed_pixels(np.stack(list(pixels.values())))
                vectors = unit_rows(vectors) if normalize else vectors
                rows = pa.FixedSizeListArray.from_arrays(vectors.ravel(), encoder.dim)
                paths, sizes, times = (pa.array(column) for column in zip(*pixels, strict=True))
                writer.write_table(pa.Table.from_arrays([paths, rows, sizes, times], schema=schema))


def _readable(encoder: "Encoder", images: Sequence[Image], bad: list[str]) -> dict[Image, np.ndarray]:
    """The pixels of each image; why one cannot be read is added to `bad`."""
    found = {}
    for image in images:
        try:
            found[image] = encoder.pixels(image.path)
        except (BadImage, OSError) as error:
            bad.append(str(error))
    return found


def _known(paths: Sequence[Path], bad: list[str]) -> Iterator[Image]:
    """The files with their sizes and times; why one cannot be read is added to `bad`."""
    for path in paths:
        try:
            name = str(path).encode().decode()  # raises for a file name that is no text
            state = path.stat()
            yield Image(name, state.st_size, state.st_mtime_ns)
        except (OSError, UnicodeEncodeError) as error:
            bad.append(str(error))


def images_below(folder: Path, bad: list[str]) -> list[Path]:
    """The image files in order; why a folder cannot be searched is added to `bad`."""
    if not folder.exists():
        raise FileNotFoundError(f"{folder}: no such file or folder")
    if folder.is_file():
        return [folder]
    found = find_images(folder, on_error=lambda error: bad.append(str(error)))
    bad += [f"{folder / name}: {reason}" for name, reason in found.skipped.items()]
    if found.others:
        print(f"{folder}: {summary(found.others)}", file=sys.stderr)
    if not found.paths:
        raise BadData(f"{folder}: no image file ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return [folder / path for path in found.paths]
