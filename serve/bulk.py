"""`python -m serve.bulk NAME INPUT -o OUT`: embeddings of very many images, with Ray Data on this machine or a cluster.

INPUT is a folder of images, a zip or tar archive, a Parquet file, or a folder of those; a path or a URL such as
s3://bucket/folder. It is cut into shards. Every shard becomes OUT/part-NNNNN.parquet (`id`, `embedding`), and images
that cannot be embedded stand in OUT/bad-NNNNN.jsonl with the reason: together exactly one row an image. A shard whose
part is there is done; so the same command goes on after a kill. OUT is a folder that all workers see.
"""

import json
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tyro
from pyarrow import fs

from serve.limits import MAX_IMAGE, SUFFIXES
from serve.session import Session, open_model
from zoo.errors import BadData, BadImage, ZooError
from zoo.files import new_file, write_bytes

ARCHIVES = {".zip", ".tar", ".tgz", ".gz"}
COLUMNS = ("image", "img", "bytes")  # of a Parquet file's images: bytes, or the Hub's struct of bytes and path
BATCH = 32  # images of one run
FILES = 1000  # image files of one shard

Encoded = tuple[str, bytes | None]  # id, file; None where a row holds none


class Shard(NamedTuple):
    """A part of the input that is embedded, and repeated after a kill, as one."""

    number: int
    files: list[str]  # image files, or one archive or Parquet file
    row_group: int | None = None  # of the Parquet file


def bulk(
    model: tyro.conf.Positional[str],
    source: tyro.conf.Positional[str],
    *,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    workers: int = 1,
    address: str | None = None,
) -> None:
    """Embed every image of a folder, archive, Parquet file or object store; run again, it goes on where it was.

    Args:
        model: a kept model's name, a run folder or an .onnx file.
        source: the images; a path or a URL.
        output: folder of the Parquet parts.
        workers: processes that embed, one core each.
        address: of a Ray cluster; by default Ray is started on this machine.
    """
    session = open_model(model)
    shards = shards_of(source)
    write_plan(output, session, source, shards)
    todo = [shard for shard in shards if not part(output, shard.number).is_file()]
    print(f"{len(shards)} shards, {len(shards) - len(todo)} done already")
    if todo:
        _run(todo, str(session.path.resolve()), source, output.resolve(), workers=workers, address=address)
    rows = sum(pq.read_metadata(part(output, shard.number)).num_rows for shard in shards)
    bad = sum(len(bad_file(output, shard.number).read_text().splitlines()) for shard in shards)
    print(f"{output}: {rows} embeddings of {session.dim} numbers, {bad} images left out, see {output}/bad-*.jsonl")


def part(output: Path, number: int) -> Path:
    return output / f"part-{number:05}.parquet"


def bad_file(output: Path, number: int) -> Path:
    return output / f"bad-{number:05}.jsonl"


def shards_of(source: str) -> list[Shard]:
    """The input, cut up; always in the same way. Raises BadData if it holds no image."""
    system, root = filesystem(source)
    info = system.get_file_info(root)
    if info.type == fs.FileType.NotFound:
        raise BadData(f"{source}: no such file or folder")
    found = (
        system.get_file_info(fs.FileSelector(root, recursive=True)) if info.type == fs.FileType.Directory else [info]
    )
    paths = sorted(each.path for each in found if each.type == fs.FileType.File)
    images = [path for path in paths if _suffix(path) in SUFFIXES]
    parts: list[tuple[list[str], int | None]] = [(images[n : n + FILES], None) for n in range(0, len(images), FILES)]
    parts += [([path], None) for path in paths if _suffix(path) in ARCHIVES]
    for path in paths:
        if _suffix(path) == ".parquet":
            groups = pq.ParquetFile(path, filesystem=system).num_row_groups
            parts += [([path], group) for group in range(groups)]
    if not parts:
        raise BadData(f"{source}: no {', '.join(sorted(SUFFIXES | ARCHIVES))} or .parquet file")
    return [Shard(number, files, group) for number, (files, group) in enumerate(parts)]


def write_plan(output: Path, session: Session, source: str, shards: list[Shard]) -> None:
    """Note what the parts are of. Raises ZooError if the folder holds parts of something else."""
    facts = {"model": session.name, "weights_sha256": session.weights_sha256, "source": source}
    plan = json.dumps(facts | {"shards": [shard._asdict() for shard in shards]}).encode()
    path = output / "plan.json"
    if path.is_file() and path.read_bytes() != plan:
        raise ZooError(f"{output} holds parts of another model or other images. Take another folder, or delete it")
    if not path.is_file():
        write_bytes(path, plan)


@final
class EmbedShard:
    """One worker: a model, and shards that become files. Ray makes it in a process of its own."""

    def __init__(self, model: str, source: str, output: str) -> None:
        self._session = Session(Path(model))
        self._source, self._output = source, Path(output)

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        """Embed one shard: write its side file, then its part."""
        shard = Shard(row["number"], list(row["files"]), None if row["row_group"] < 0 else row["row_group"])
        dim, reasons, rows = self._session.dim, list[dict[str, str]](), 0
        schema = pa.schema([("id", pa.string()), ("embedding", pa.list_(pa.float32(), dim))])
        facts = {"model": self._session.name, "weights_sha256": self._session.weights_sha256}
        path = part(self._output, shard.number)
        with new_file(path) as aside, pq.ParquetWriter(aside, schema.with_metadata(facts)) as writer:
            for names, pixels in self._batches(images_of(self._source, shard), reasons):
                vectors = pa.array(self._session.embed_pixels(np.stack(pixels)).ravel())
                columns = [pa.array(names), pa.FixedSizeListArray.from_arrays(vectors, dim)]
                writer.write_table(pa.Table.from_arrays(columns, schema=writer.schema))
                rows += len(names)
            lines = "".join(json.dumps(reason, ensure_ascii=False) + "\n" for reason in reasons)
            write_bytes(
                bad_file(self._output, shard.number), lines.encode()
            )  # before the part: a part says all is done
        return {"number": shard.number, "rows": rows, "bad": len(reasons)}

    def _batches(
        self, images: Iterator[Encoded], reasons: list[dict[str, str]]
    ) -> Iterator[tuple[list[str], list[np.ndarray]]]:
        """Ids and pixels of at most BATCH images; what cannot be decoded goes to `reasons`."""
        names: list[str] = []
        pixels: list[np.ndarray] = []
        for name, content in images:
            try:
                pixels.append(self._pixels(content))
                names.append(name)
            except BadImage as error:
                reasons.append({"id": name, "reason": str(error)})
            if len(names) == BATCH:
                yield names, pixels
                names, pixels = [], []
        if names:
            yield names, pixels

    def _pixels(self, content: bytes | None) -> np.ndarray:
        if not content or len(content) > MAX_IMAGE:
            raise BadImage(f"larger than {MAX_IMAGE:,} bytes" if content else "no bytes")
        return self._session.preprocess(content)


def images_of(source: str, shard: Shard) -> Iterator[Encoded]:
    """Every image of a shard, once; ids are paths below the input, with the place in an archive or Parquet file."""
    system, root = filesystem(source)
    for path in shard.files:
        name = PurePosixPath(path).relative_to(root).as_posix() if path != root else PurePosixPath(path).name
        if _suffix(path) in SUFFIXES:
            with system.open_input_stream(path) as stream:
                yield name, stream.read(MAX_IMAGE + 1)
        elif _suffix(path) == ".parquet":
            yield from _parquet_images(system, path, name, shard.row_group or 0)
        else:
            with system.open_input_file(path) as file:
                yield from _archived_images(file, name)


def _parquet_images(system: fs.FileSystem, path: str, name: str, group: int) -> Iterator[Encoded]:
    file = pq.ParquetFile(path, filesystem=system)
    column = next((each for each in COLUMNS if each in file.schema_arrow.names), None)
    if column is None:
        raise BadData(f"{name}: no column {' or '.join(COLUMNS)}; it has {', '.join(file.schema_arrow.names)}")
    first = sum(file.metadata.row_group(each).num_rows for each in range(group))
    for place, value in enumerate(file.read_row_group(group, columns=[column])[column].to_pylist(), first):
        yield f"{name}#{place}", value["bytes"] if isinstance(value, dict) else value


def _archived_images(file: IO[bytes], name: str) -> Iterator[Encoded]:
    """Raises BadData for a damaged archive."""
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                for info in archive.infolist():
                    if _suffix(info.filename) in SUFFIXES:
                        yield f"{name}/{info.filename}", archive.read(info) if info.file_size <= MAX_IMAGE else None
            return
        file.seek(0)
        with tarfile.open(fileobj=file) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() and _suffix(member.name) in SUFFIXES else None
                if content is not None:
                    yield f"{name}/{member.name}", content.read(MAX_IMAGE + 1)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise BadData(f"{name}: not a sound zip or tar archive ({error}). Make or fetch it again") from error


def filesystem(source: str) -> tuple[fs.FileSystem, str]:
    """Where a path or URL lies, and the path there."""
    if "://" in source:
        return fs.FileSystem.from_uri(source)
    return fs.LocalFileSystem(), str(Path(source).resolve())


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _run(todo: list[Shard], model: str, source: str, output: Path, *, workers: int, address: str | None) -> None:
    """Embed shards in Ray's worker processes; each is told when done."""
    import ray

    ray.init(address=address, include_dashboard=False, num_cpus=None if address else workers, logging_level="error")
    try:
        rows = [shard._asdict() | {"row_group": -1 if shard.row_group is None else shard.row_group} for shard in todo]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            EmbedShard,
            fn_constructor_args=(model, source, str(output)),
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
        )
        for done, row in enumerate(dataset.iter_rows(), 1):
            print(f"shard {row['number']}: {row['rows']} embeddings, {row['bad']} left out ({done} of {len(todo)})")
    finally:
        ray.shutdown()


def main() -> None:
    try:
        tyro.cli(bulk, prog="python -m serve.bulk")
    except (ZooError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
