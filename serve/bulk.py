"""`python -m serve.bulk NAME INPUT -o OUT`: embeddings of very many images, with Ray Data on this machine or a cluster.

INPUT is a folder of images, a zip or tar archive, a Parquet file, or a folder of those; a path or a URL such as
s3://bucket/folder. It is cut into shards. Every shard becomes OUT/part-NNNNN.parquet (`id`, `embedding`), and images
that cannot be embedded stand in OUT/bad-NNNNN.jsonl with the reason: together exactly one row an image. A shard whose
part is there is done; so the same command goes on after a kill, or after a damaged archive, which holds up its own
shard alone, was mended. OUT is a folder that all workers see.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np
import tyro

from zoo.command_line import parse_and_call, run_command
from zoo.errors import BadData, BadImage, ZooError, needs

if __name__ == "__main__":
    run_command("serve.bulk", extra="bulk")

import onnxruntime  # noqa: F401  (serve.session's)
import pyarrow as pa
import pyarrow.parquet as pq

from serve.inputs import Encoded, Shard, images_of, shards_of
from serve.limits import MAX_IMAGE
from serve.session import Session, open_model
from zoo.files import new_file, write_bytes

BATCH = 32  # images of one run


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
    if workers < 1:
        raise ZooError(f"--workers {workers}; at least 1")
    session = open_model(model)
    source = source if "://" in source else str(Path(source).resolve())  # workers of a cluster stand elsewhere
    if output.resolve().is_relative_to(source.removeprefix("file://")):
        raise ZooError(f"-o {output} lies in the input, so its parts would be input, too. Take a folder outside")
    shards = shards_of(source)
    write_plan(output, session, source, shards)
    remove_unfinished(output)
    todo = [shard for shard in shards if not part(output, shard.number).is_file()]
    print(f"{len(shards)} shards, {len(shards) - len(todo)} done already")
    if todo:
        _run(todo, str(session.path.resolve()), source, output.resolve(), workers=workers, address=address)
    rows = sum(rows_of(part(output, shard.number)) for shard in shards)
    bad = sum(bad_file(output, shard.number).read_bytes().count(b"\n") for shard in shards)
    print(f"{output}: {rows} embeddings of {session.dim} numbers, {bad} images left out, see {output}/bad-*.jsonl")


def remove_unfinished(output: Path) -> None:
    """Delete what killed runs had half written."""
    for pattern in (".part-*", ".bad-*", ".plan.json.*"):
        for path in output.glob(pattern):
            path.unlink()


def part(output: Path, number: int) -> Path:
    return output / f"part-{number:05}.parquet"


def rows_of(path: Path) -> int:
    """How many embeddings a part holds. Raises BadData for one that was damaged after it was written."""
    try:
        return pq.read_metadata(path).num_rows
    except pa.ArrowInvalid as error:
        raise BadData(f"{path}: not a sound part ({error}). Delete it; the same command makes it again") from error


def bad_file(output: Path, number: int) -> Path:
    return output / f"bad-{number:05}.jsonl"


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

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Embed one shard: how many rows it gave, how many images were bad, or the `error` that left it undone."""
        shard = Shard(row["number"], list(row["files"]), row["row_group"])
        try:
            rows, bad = self._embed(shard)
        except (ZooError, OSError, pa.ArrowException) as error:  # of this shard alone; the others go on
            return {"number": shard.number, "rows": 0, "bad": 0, "error": str(error)}
        return {"number": shard.number, "rows": rows, "bad": bad, "error": ""}

    def _embed(self, shard: Shard) -> tuple[int, int]:
        """Write a shard's side file, then its part; how many rows each has. Raises what reading the shard raises."""
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
            # before the part appears: a part says all is done
            write_bytes(bad_file(self._output, shard.number), lines.encode())
        return rows, len(reasons)

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
        return self._session.preprocess(content, formats=None)


def _run(todo: list[Shard], model: str, source: str, output: Path, *, workers: int, address: str | None) -> None:
    """Embed shards in Ray's worker processes; each is told when done. Raises BadData if one of them cannot be read."""
    with needs("bulk"):
        import ray

    errors = []
    ray.init(address=address, include_dashboard=False, num_cpus=None if address else workers, logging_level="error")
    try:
        rows = [shard._asdict() for shard in todo]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            EmbedShard,
            fn_constructor_args=(model, source, str(output)),
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
        )
        for done, row in enumerate(dataset.iter_rows(), 1):
            said = row["error"] or f"{row['rows']} embeddings, {row['bad']} left out"
            print(f"shard {row['number']}: {said} ({done} of {len(todo)})")
            errors += [row["error"]] if row["error"] else []
    finally:
        ray.shutdown()
    if errors:
        raise BadData(f"{len(errors)} of {len(todo)} shards are not done, the others are. {errors[0]}")


def main() -> None:
    """Command line of `zoo bulk`."""
    parse_and_call(bulk, prog="zoo bulk", stopped="the same command goes on after the last whole shard")
