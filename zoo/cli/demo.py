"""The whole product on scikit-learn's digits: train, load, measure, export, serve, look. `make demo` runs it.

Every step is what a user would type; the commands are printed as they run. Arguments go to the training:
`zoo demo --epochs 5` is a quick look. Everything is written below `runs` in the working directory.
"""

import base64
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
from PIL import Image

import zoo
from eval.score import score
from eval.tables import markdown
from zoo.images.image_set import ImageSet
from zoo.images.opening import open_images
from zoo.model.embedding import unit_rows

NAME = "simco-r20-digits"
RUN = Path("runs", NAME)
FOLDER = Path("runs/demo")  # the pictures sent, the service's log, demo.png
QUERIES, NEIGHBOURS = 10, 6
TOLERANCE = 1e-4  # largest allowed |HTTP - torch| of an embedding's entries, relative to the largest entry


def main() -> None:
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # an exit that stops the server, too
    if any(word.startswith(("--out", "-h", "--help")) for word in sys.argv[1:]):
        sys.exit(f"{__doc__}\nThe run is in {RUN}; delete that folder to train anew, or with other numbers.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    run("zoo", "train", NAME, *sys.argv[1:])
    trained = time.monotonic()
    encoder = zoo.load(RUN)
    rows = score(RUN)
    run("zoo", "export", str(RUN))

    bank, queries = open_images("digits", "train"), open_images("digits", "test").sample(QUERIES, seed=3)
    pictures = [save_png(pixels, FOLDER / f"query-{i}.png") for i, pixels in enumerate(queries.pixels())]
    with service(RUN) as url:
        answered = embed_over_http(url, pictures)
    expected = encoder.embed(pictures)
    gap = np.abs(answered - expected).max()
    if not gap <= TOLERANCE * np.abs(expected).max():
        sys.exit(f"error: the endpoint differs from encoder.embed by {gap:.2e}")
    draw_neighbours(FOLDER / "demo.png", queries, answered, bank, encoder.embed_pixels(np.asarray(bank.pixels())))

    print(f"\n{markdown(rows)}\n")
    print("Pixels are hard to beat on 8x8 digits; the untrained network is the rival that counts.\n")
    print(f"{len(pictures)} PNGs over HTTP equal encoder.embed: largest difference {gap:.1e}")
    places = {"weights and card": RUN, "ONNX": RUN / "model.onnx", "neighbours": FOLDER / "demo.png"}
    for what, path in {**places, "log of the run": RUN / "log.jsonl", "TensorBoard": RUN / "tensorboard"}.items():
        print(f"{what:17} {path}")
    print(f"{'time':17} {trained - started:.0f} s training, {time.monotonic() - started:.0f} s in all")


def run(*words: str) -> None:
    """Print and run a command with this interpreter's programs; stop the demo if it fails."""
    print(f"$ {shlex.join(words)}", flush=True)
    if subprocess.run(words, env=environment()).returncode:
        sys.exit(f"error: {words[0]} failed, see above")


def environment() -> dict[str, str]:
    """Our environment with this interpreter's folder first on the path."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """A server of the model in `folder` on a free loopback port; stopped afterwards, whatever happens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["zoo", "serve", str(folder), "--port", str(port)]
    print(f"$ {shlex.join(words)}", flush=True)
    with (FOLDER / "service.log").open("w") as log:
        process = subprocess.Popen(words, env=environment(), stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until_ready(f"http://127.0.0.1:{port}/readyz", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], seconds: float = 90) -> None:
    """Ask until the service says it is ready. Exits if it died or takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"error: the service did not become ready; see {FOLDER / 'service.log'}")


def embed_over_http(url: str, pictures: list[Path]) -> np.ndarray:
    """POST the files to the service; (n, D) float32."""
    images = [base64.b64encode(path.read_bytes()).decode() for path in pictures]
    body = json.dumps({"images": images}).encode()
    request = urllib.request.Request(f"{url}/embed", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return np.asarray(json.load(answer)["embeddings"], np.float32)


def save_png(pixels: np.ndarray, path: Path) -> Path:
    Image.fromarray(pixels).save(path)
    return path


def draw_neighbours(path: Path, queries: ImageSet, embedded: np.ndarray, bank: ImageSet, features: np.ndarray) -> None:
    """One row a query: the picture sent, then its nearest training images with their labels."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    nearest = np.argsort(-unit_rows(embedded) @ unit_rows(features).T, axis=1)[:, :NEIGHBOURS]
    figure, axes = plt.subplots(
        QUERIES, NEIGHBOURS + 1, figsize=(NEIGHBOURS + 1.5, 1.25 * QUERIES), layout="constrained"
    )
    figure.suptitle(f"{NAME}: sent over HTTP, and the nearest training images")
    for row, (line, picks) in enumerate(zip(axes, nearest, strict=True)):
        label = queries.labels[row]
        show(line[0], queries.pixels()[row], f"query: {label}", "black")
        for axis, pick in zip(line[1:], picks, strict=True):
            found = bank.labels[pick]
            show(axis, bank.pixels()[pick], str(found), "tab:green" if found == label else "tab:red")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def show(axis: "mpl.axes.Axes", pixels: np.ndarray, title: str, colour: str) -> None:
    axis.imshow(pixels, interpolation="nearest")
    axis.set_title(title, color=colour, fontsize=9)
    axis.set_axis_off()
