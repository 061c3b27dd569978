"""The `zoo` command: list, info, embed, keep, serve, index."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro

import zoo
from zoo.errors import BadData, BadImage, UnknownName, ZooError
from zoo.store import catalogue, keep, kept

IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


def list_models(pattern: Annotated[str, tyro.conf.Positional] = "*") -> None:
    """Names of the catalogue and of kept models, with what their weights score.

    Args:
        pattern: As in a shell: "*cifar100".
    """
    names = zoo.list(pattern)
    if not names:
        raise UnknownName(f"no model matches {pattern!r}; `zoo list` alone shows all")
    here, known = kept(), catalogue()
    width = max(map(len, names))
    for name in names:
        card = here.get(name) or known[name]
        if card.weights is None:
            print(f"{name:{width}}  D {card.dim:4}  {card.image_size:3} px  no weights yet; expects {card.expects}")
            continue
        own = [row for row in card.results if row["encoder"] == name and row.get("unit", "share") == "share"]
        scores = "; ".join(
            f"{100 * row['value']:.2f} % {row['protocol'].split(',')[0]} on {row['dataset']}" for row in own
        )
        size = card.weights.bytes / 1e6
        print(f"{name:{width}}  D {card.dim:4}  {card.image_size:3} px  {size:.1f} MB  {scores or 'not measured yet'}")


def info(model: Annotated[str, tyro.conf.Positional]) -> None:
    """The card of a model, as JSON.

    Args:
        model: A name of the zoo, or a run folder.
    """
    print(json.dumps(asdict(zoo.info(model)), indent=1))


def embed(
    model: Annotated[str, tyro.conf.Positional],
    folder: Annotated[Path, tyro.conf.Positional],
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("embeddings.parquet"),
    normalize: bool = False,
    batch_size: int = 64,
) -> None:
    """Embed every image below a folder: one Parquet row an image, `path` and `embedding`.

    Args:
        model: A name of the zoo, or a run folder.
        folder: Searched through all its folders; one image file works too.
        output: Parquet file to write.
        normalize: Scale every embedding to unit L2 norm.
        batch_size: Images at a time.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from zoo.files import new_file

    paths = _images_below(folder)
    encoder = zoo.load(model)
    bad: list[str] = []
    schema = pa.schema([("path", pa.string()), ("embedding", pa.list_(pa.float32(), encoder.dim))])
    with new_file(output) as aside, pq.ParquetWriter(aside, schema) as writer:
        for start in range(0, len(paths), batch_size):
            names, rows = [], []
            for path in paths[start : start + batch_size]:
                try:
                    rows.append(encoder.pixels(path))
                    names.append(str(path))
                except (BadImage, OSError) as error:
                    bad.append(str(error))
            if rows:
                vectors = encoder.embed(rows, normalize=normalize)
                columns = [pa.array(names), pa.FixedSizeListArray.from_arrays(vectors.ravel(), encoder.dim)]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    for reason in bad:
        print(f"left out: {reason}", file=sys.stderr)
    print(f"{output}: {len(paths) - len(bad)} embeddings of {encoder.dim} numbers, {len(bad)} images left out")


def _images_below(folder: Path) -> list[Path]:
    if not folder.exists():
        raise FileNotFoundError(f"{folder}: no such file or folder")
    files = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    paths = [path for path in files if path.suffix.lower() in IMAGES]
    if not paths:
        raise BadData(f"{folder}: no image file ({', '.join(sorted(IMAGES))})")
    return paths


def keep_run(run: Annotated[Path, tyro.conf.Positional], force: bool = False) -> None:
    """Copy a trained run into the local store, so that `zoo.load` finds it by its name.

    Args:
        run: The run folder.
        force: Replace a kept model of the same name.
    """
    print(keep(run, force=force))


PROGRAMS = {"serve": "serve.launch", "index": "serve.index"}  # of a layer above: `zoo serve -h` is theirs to answer


def main() -> None:
    """Entry point; errors meant for the user are one line, without a traceback."""
    if sys.argv[1:2] and sys.argv[1] in PROGRAMS:
        os.execv(sys.executable, [sys.executable, "-m", PROGRAMS[sys.argv[1]], *sys.argv[2:]])
    commands: dict[str, Callable[..., Any]] = {"list": list_models, "info": info, "embed": embed, "keep": keep_run}
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="zoo", description=__doc__)
    except (ZooError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
