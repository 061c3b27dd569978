"""What serving costs, as ratios of one run: `python tests/bench/serve_bench.py`.

r18 at 32 and at 224 px with random weights, on real JPEG files. The server has the first core, its clients the last.
Costs are CPU seconds of the server's processes, which a busy machine disturbs less than the clock. The contenders of a
round follow one another, and the median of the rounds' ratios is the figure, with the least and the most.

--soak N measures another thing alone: the server's memory after N / 10 and after N requests.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import tyro
from bulk_bench import bulk_ratios
from loaded_server import CORES, Server, ask_all, clock, cpu, family, form, raw, server, stay_on

from serve.export import export
from serve.session import Session
from zoo.hub.store import ONNX
from zoo.model.card import Card
from zoo.model.encoder import new_encoder, save_encoder
from zoo.provenance import hardware, today, versions

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
CASES = {"simco-r18-cifar100": "rsscn7_64", "simco-r18-in100": "bccd/JPEGImages"}  # 32 px, 224 px; their pictures
CROWD = 16  # clients of the latency goal
CONCURRENCY = (1, 16, 64, 256)
GOALS = {
    "CPU an image, raw and npy / bare": "<= 1.25",
    "CPU an image, form and JSON / bare": "<= 1.6",
    "images per second, ours / torch eager": ">= 1.5",
    "p99 of 16 clients / the queue's time": "<= 1.5",
    "failed requests": "0",
    "bulk images per second / bare loop": ">= 0.9",
    "memory after all / after a tenth": "<= 1.05",
}
Found = dict[str, list[float]]  # ratio -> its value in every round


def bench(
    *,
    rounds: int = 5,
    requests: int = 200,
    data: Path = SHARED,
    out: Path = Path("runs/bench"),
    soak: int = 0,
) -> None:
    """Print the ratios and keep them in serve.json (soak.json), as soon as each is measured.

    Args:
        rounds: of which the median is the figure.
        requests: of each contender in a round; five times as many for the latency.
        data: folder with rsscn7_64 and bccd, whose JPEG files are sent.
        out: folder of the models and results.
        soak: so many requests to one server, and nothing else.
    """
    models = {name: pictures(data / folder) for name, folder in CASES.items()}
    facts = {"date": today(), "hardware": hardware(), "load": os.getloadavg()[0], "versions": versions(),
             "rounds": rounds, "requests": requests, "soak": soak, "goals": GOALS, "models": {}}  # fmt: skip
    print(f"{facts['hardware']}, load {facts['load']:.1f}, {today()}, n = {rounds} rounds of {requests} requests\n")
    for name, contents in models.items():
        run, median = make_run(out / name, name), statistics.median(map(len, contents)) / 1000
        print(f"{name}: {len(contents)} files, median {median:.1f} kB\n\n{HEAD}", flush=True)
        found: Found = {}
        parts = measures_of(run, contents, rounds=rounds, requests=requests)
        for new in [memory(run, contents, soak)] if soak else parts:
            found |= new
            print(rows(new), flush=True)
            facts["models"][name] = {"files": len(contents), "median_kB": median, "ratios": found}
            (out / ("soak.json" if soak else "serve.json")).write_text(json.dumps(facts, indent=1))
        print()
        if soak:
            return  # the small model: what grows by request shows soonest where most are answered


def measures_of(run: Path, contents: list[bytes], *, rounds: int, requests: int) -> Iterator[Found]:
    """Every part of a model's measurement, one after the other."""
    ours, eager = (
        ["-m", "zoo.cli", "serve", str(run), "--port"],
        [str(Path(__file__).with_name("eager_server.py"))],
    )
    with server(ours) as served:
        with server([*eager, str(run)]) as rival:
            yield from costs(Session(run / ONNX), contents, served, rival, rounds=rounds, requests=requests)
        yield latency(served, contents, rounds=rounds, requests=5 * requests)
        yield failures(served, contents)
    stay_on(CORES)  # Ray's own processes need a core besides the worker's
    yield bulk_ratios(run, contents, rounds=rounds)


def make_run(folder: Path, name: str) -> Path:
    """A run folder with an exported encoder of random weights; the time of an image does not depend on them."""
    if (folder / ONNX).is_file():
        return folder
    encoder = new_encoder(name).eval()
    mean, std = (tuple(values.flatten().tolist()) for values in (encoder.mean, encoder.std))
    size = encoder.image_size
    card = Card(name=name, paper="none", image_size=size, mean=mean, std=std, dim=encoder.dim, expects="none")
    save_encoder(encoder, folder, card)
    export(str(folder))
    return folder


def pictures(folder: Path, n: int = 64) -> list[bytes]:
    """The first n JPEG files below a folder, in an order of their names that mixes the folders."""
    paths = sorted(folder.rglob("*.jpg"), key=lambda path: path.name[::-1])[:n]
    if not paths:
        sys.exit(f"error: no .jpg file in {folder}. --data names the folder that holds {', '.join(CASES.values())}")
    return [path.read_bytes() for path in paths]


def costs(
    session: Session, contents: list[bytes], served: Server, rival: Server, *, rounds: int, requests: int
) -> Iterator[Found]:
    """CPU time an image over decode and bare session, and throughput over torch eager, of the same requests."""
    bodies = [contents[number % len(contents)] for number in range(requests)]
    me = Server("", psutil.Process())
    found: Found = {name: [] for name in list(GOALS)[:3]}
    for asked, ask in ((served, raw), (served, form), (rival, raw)):
        ask_all(asked.url, bodies[:8], ask, at_once=8)  # the first requests cost more
    for _ in range(rounds):
        bare = cpu(me, lambda: [session.embed_pixels(session.preprocess(body)[None]) for body in bodies])
        plain = cpu(served, lambda: ask_all(served.url, bodies, raw, at_once=8))
        rich = cpu(served, lambda: ask_all(served.url, bodies, form, at_once=8))
        theirs, mine = (clock(lambda at=at: ask_all(at, bodies, raw, at_once=8)) for at in (rival.url, served.url))
        for ratios, value in zip(found.values(), (plain / bare, rich / bare, theirs / mine), strict=True):
            ratios.append(value)
    yield found


def latency(served: Server, contents: list[bytes], *, rounds: int, requests: int) -> Found:
    """p99 over what the queue explains: each of 16 clients waits for the others' images, and its own, once."""
    bodies, ratios = [contents[number % len(contents)] for number in range(requests)], []
    for _ in range(rounds):
        start = time.perf_counter()
        answers = ask_all(served.url, bodies, raw, at_once=CROWD)
        queue = CROWD * (time.perf_counter() - start) / requests
        ratios.append(float(np.percentile([seconds for seconds, _ in answers], 99)) / queue)
    return {"p99 of 16 clients / the queue's time": ratios}


def failures(served: Server, contents: list[bytes]) -> Found:
    """How many of 2 requests a client (at least 64) were not answered with 200, at each concurrency."""
    failed = []
    for at_once in CONCURRENCY:
        bodies = [contents[number % len(contents)] for number in range(max(64, 2 * at_once))]
        failed.append(float(sum(status != 200 for _, status in ask_all(served.url, bodies, raw, at_once=at_once))))
    return {"failed requests": failed}


def memory(run: Path, contents: list[bytes], n: int) -> Found:
    """Resident memory of all processes of a server after n requests of one image over that after n / 10."""
    sizes = []
    with server(["-m", "zoo.cli", "serve", str(run), "--port"]) as served:
        for count in (n // 10, n - n // 10):
            bodies = [contents[number % len(contents)] for number in range(count)]
            assert all(status == 200 for _, status in ask_all(served.url, bodies, raw, at_once=CROWD))
            sizes.append(sum(each.memory_info().rss for each in family(served.process)))
    print(f"resident: {sizes[0] / 1e6:.1f} MB after {n // 10}, {sizes[1] / 1e6:.1f} MB after {n} requests")
    return {"memory after all / after a tenth": [sizes[1] / sizes[0]]}


HEAD = "| ratio | goal | median | least .. most | n |\n|---|---|---|---|---|"


def rows(found: Found) -> str:
    """The table's rows."""
    return "\n".join(
        f"| {name} | {GOALS[name]} | {statistics.median(x):.2f} | {min(x):.2f} .. {max(x):.2f} | {len(x)} |"
        for name, x in found.items()
    )


if __name__ == "__main__":
    tyro.cli(bench)
