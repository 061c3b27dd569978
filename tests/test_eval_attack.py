"""Bad input, kills, full disks, two at once: one line that says what to do, nothing lost, nothing half-written."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from PIL import Image

import eval.cache
from eval.cache import cached_features
from eval.card_results import is_ours
from eval.compare import compare_files
from eval.features import RawPixels
from eval.protocols import PROTOCOLS
from eval.result import Result
from eval.results import Results, read_predictions
from eval.score import main, score
from zoo.command_line import in_one_line
from zoo.errors import BadData, CorruptFile, ZooError
from zoo.files import new_folder, zoo_home
from zoo.images.image_set import ImageSet, from_pixels

ROOT = Path(__file__).parents[1]
FEW = {"data": {"digits": None}, "max_train": 60, "max_test": 30}


def fails(monkeypatch, *words: str) -> str:
    """The one line that the command line ends with."""
    monkeypatch.setattr(sys, "argv", ["eval.score", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert "\n" not in str(ended.value)
    return str(ended.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pixels:8", "--data", "digits"], "pixels: stands alone"),
        (["timm:test_resnet=", "--data", "digits"], "no such file"),
        (["random:", "--data", "digits"], "unknown backbone ''"),
        (["pixels:", "--data", "digits", "digits"], "a data set stands there twice"),
        (
            ["pixels:", "--data", "digits", "--data", "cifar10=x"],
            "--data is given twice; give all its values after",
        ),
        (["pixels:", "--max-train", "9", "--data", "digits", "--max_train=8"], "--max-train is given twice"),
        (["pixels:", "--data", "=x"], "'' cannot be the name of a data set"),
        (["pixels:", "--data", "digits=/nowhere"], "/nowhere: no such folder or archive"),
        (["pixels:", "--data", "digits", "--protocol", "knn,"], "unknown protocol ''"),
        (["pixels:", "--data", "digits", "--max-test", "0"], "max_test = 0; at least 1"),
        (["random:r20", "--data", "digits", "--protocol", "finetune", "--finetune-steps", "0"], "finetune_steps = 0"),
        (["pixels:", "--data", "digits", "--max-train", "9", "--protocol", "finetune"], "finetune trains a network"),
        (["no-such-model"], "unknown backbone 'such'"),
        ([], "no model to measure"),
    ],
)
def test_what_cannot_be_measured_is_told_in_one_line(monkeypatch, words, told):
    assert told in fails(monkeypatch, *words)


def test_a_second_data_set_that_is_not_there_is_told_before_the_first_is_measured(tmp_path, monkeypatch):
    words = ["pixels:", "--data", "digits", f"cifar10={tmp_path / 'none'}", "--out", str(tmp_path / "out")]
    assert "no such folder or archive" in fails(monkeypatch, *words)
    assert list((tmp_path / "out" / "rows").iterdir()) == []


def test_one_test_image_and_as_few_train_images_as_a_protocol_can_do_with_give_finite_numbers(tmp_path):
    few = {"data": {"digits": None}, "max_train": 30, "max_test": 1, "out": tmp_path, "pictures": True}
    rows = score("random:r20", protocols=["knn", "linear", "linear-sgd", "ridge", "fewshot"], **few)
    rows += score("random:r20", protocols=["geometry"], **few | {"max_test": 2})
    assert all(np.isfinite(row.value) for row in rows)
    assert len(rows) == 4 + 4 + 6
    with pytest.raises(BadData, match="one test image has no geometry"):
        score("random:r20", protocols=["geometry"], **few)


@pytest.mark.parametrize(
    "protocol", ["knn", "linear", "linear-sgd", "ridge", "fewshot", "labels", "linear-augmented", "finetune"]
)
def test_a_single_train_image_is_one_class_and_refused(protocol):
    with pytest.raises(BadData, match="1 train images are of one class"):
        score("random:r20", data={"digits": None}, max_train=1, max_test=5, protocols=[protocol])


@contextmanager
def nobody():
    """A user who may write nowhere; root may write anywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_takes_no_file_is_told_before_anything_is_measured(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ZooError, match=r"cannot write .*file"):
        score("pixels:", out=tmp_path / "file", **FEW)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Results(Path(folder)).make_ready()
        with nobody(), pytest.raises(ZooError, match=r"cannot write into .*; give another folder with --out"):
            Results(Path(folder)).make_ready()


def test_the_card_in_a_folder_that_we_may_not_write_is_not_ours(tiny_run):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        assert is_ours(folder, Path(folder))
        with nobody():
            assert not is_ours(folder, Path(folder))


def test_what_was_measured_into_a_folder_before_stays_in_its_tables(tmp_path, monkeypatch, capsys):
    score("pixels:", out=tmp_path, **FEW)
    words = ["pixels:", "--data", "digits", "--max-train", "60", "--max-test", "30", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["eval.score", *words, "--protocol", "ridge"])
    main()
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [row["key"].split("/")[0] for row in rows] == ["ridge", "knn"]
    results = [Result.from_row(row, where="results.json") for row in rows]
    assert Results(tmp_path).with_earlier(results) == results
    assert "k-NN" in (tmp_path / "report.html").read_text()
    assert "k-NN" not in capsys.readouterr().out  # printed is what was asked for


def test_of_two_that_measure_the_same_at_once_the_rows_of_the_first_stand(tmp_path):
    rows, results = score("pixels:", **FEW), Results(tmp_path)
    later = [replace(row, value=0.0) for row in rows]
    results.make_ready()
    found = results.once(["key"], lambda: results.once(["key"], lambda: rows) and later)
    assert found == results.with_earlier([]) == rows


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_predictions_that_are_not_one_for_each_label_are_refused(tmp_path, shape):
    file = tmp_path / "a.npz"
    np.savez(file, predicted=np.zeros(shape, int), labels=np.zeros(shape[:1], int), data_sha256=np.array(["a", "b"]))
    with pytest.raises(CorruptFile, match=r"a.npz: not predictions of eval.score \(.* predictions and .* labels\)"):
        read_predictions(file)


def test_scores_that_are_not_finite_are_refused(tmp_path):
    file = tmp_path / "a.npz"
    np.savez(file, predicted=np.array([[np.nan]]), labels=np.ones((1, 1), int), data_sha256=np.array(["a", "b"]))
    with pytest.raises(CorruptFile, match=r"a.npz: not predictions of eval.score \(some are not finite\)"):
        read_predictions(file)


def test_predictions_with_other_labels_are_of_other_images(tmp_path):
    for name, labels in {"a": [0, 1], "b": [0, 0]}.items():
        np.savez(
            tmp_path / f"{name}.npz", predicted=np.array([0, 1]), labels=np.array(labels), data_sha256=np.array("x")
        )
    with pytest.raises(BadData, match="not made on the same images"):
        compare_files(tmp_path / "a.npz", tmp_path / "b.npz")


@pytest.mark.parametrize("cut", [0, 2, 100])
def test_damaged_predictions_are_told_which_file_to_delete(tmp_path, cut):
    (row,) = score("pixels:", out=tmp_path, **FEW)
    (file,) = (tmp_path / "predictions").iterdir()
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(CorruptFile, match=f"{file.name}: not predictions.*Delete it, and measure again"):
        Results(tmp_path).predictions(row)


class Slow(RawPixels):
    """Raw pixels that wait in the middle until they are told to go on."""

    def __init__(self, go_on: Event) -> None:
        super().__init__(4)
        self.asked, self.go_on = 0, go_on

    def embed_pixels(self, pixels):
        assert self.go_on.wait(20)
        self.asked += len(pixels)
        return super().embed_pixels(pixels)


@pytest.fixture
def split(monkeypatch) -> ImageSet:
    monkeypatch.setattr(eval.cache, "BLOCK_SECONDS", 0.0)
    rng = np.random.default_rng(0)
    return from_pixels(
        "digits", "train", rng.integers(0, 256, (50, 4, 4, 3), np.uint8), rng.integers(0, 3, 50), (), "a" * 64
    )


def test_two_evaluations_of_the_same_features_at_once_extract_them_once_and_both_have_them(split):
    go_on, found = Event(), []
    encoders = [Slow(go_on), Slow(go_on)]
    threads = [Thread(target=lambda e=e: found.append(cached_features(e, split, encoder_sha256="e"))) for e in encoders]
    for thread in threads:
        thread.start()
    time.sleep(0.2)  # one extracts, the other waits for it
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert sorted(encoder.asked for encoder in encoders) == [0, 50]
    assert np.array_equal(found[0].rows, found[1].rows)
    assert [path.suffix for path in (zoo_home() / "cache" / "features").iterdir()] == [""]


def test_a_damaged_block_is_told_deleted_and_made_again(split):
    go_on = Event()
    go_on.set()
    encoder = Slow(go_on)
    rows = cached_features(encoder, split, encoder_sha256="other").rows
    folder = zoo_home() / "cache" / "features"
    with pytest.raises(KeyboardInterrupt):
        cached_features(Interrupting(), split, encoder_sha256="e", batch_size=16)
    (block,) = folder.glob("*.blocks/0.npz")
    block.write_bytes(block.read_bytes()[:-40])
    with pytest.raises(CorruptFile, match=r"0.npz: damaged .* and deleted. The same command makes it again"):
        cached_features(encoder, split, encoder_sha256="e")
    assert np.array_equal(cached_features(encoder, split, encoder_sha256="e").rows, rows)


class Interrupting(RawPixels):
    """Stops after the first block."""

    def __init__(self) -> None:
        super().__init__(4)
        self.asked = 0

    def embed_pixels(self, pixels):
        self.asked += 1
        if self.asked > 1:
            raise KeyboardInterrupt
        return super().embed_pixels(pixels)


def test_features_that_are_cached_are_read_from_a_home_that_takes_no_file(split, monkeypatch):
    go_on = Event()
    go_on.set()
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("ZOO_HOME", folder)
        rows = cached_features(Slow(go_on), split, encoder_sha256="e").rows
        subprocess.run(["chmod", "-R", "a=rX", folder], check=True)
        with nobody():
            assert np.array_equal(cached_features(Slow(go_on), split, encoder_sha256="e").rows, rows)
            with pytest.raises(ZooError, match=r"cannot write .*Permission denied"):
                cached_features(Slow(go_on), split, encoder_sha256="new")
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)


def started(tmp_path: Path, *words: str, **more) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "eval.score", *words]
    return subprocess.Popen(line, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, **more)


def test_ctrl_c_is_one_line_and_what_was_measured_is_not_measured_again(tmp_path, monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setitem(PROTOCOLS, "ridge", replace(PROTOCOLS["ridge"], measure=interrupt))
    words = ["pixels:", "--data", "digits", "--max-train", "60", "--max-test", "30", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["eval.score", *words, "--protocol", "knn,ridge"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err.endswith("stopped; with --out FOLDER, the same command goes on from there\n")
    monkeypatch.setitem(PROTOCOLS, "knn", replace(PROTOCOLS["knn"], measure=interrupt))
    assert len(score("pixels:", out=tmp_path, **FEW)) == 1


def test_a_job_that_is_ended_takes_along_what_is_half_written(tmp_path):
    with pytest.raises(SystemExit) as ended, in_one_line(), new_folder(tmp_path / "features"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_what_a_user_can_mend_is_one_line_and_no_other_error_is_hidden(capsys):
    with pytest.raises(SystemExit, match=r"^error: out of memory \(.*llocat.*\)\. Give fewer images"), in_one_line():
        np.empty(2**58)
    with pytest.raises(SystemExit, match=r"^error: first second$"), in_one_line():
        raise ZooError("first\nsecond")
    with pytest.raises(RuntimeError, match=r"^other$"), in_one_line():
        raise RuntimeError("other")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_measurement_that_is_stopped_or_killed_goes_on_where_it_was(tmp_path, kind):
    words = ["random:r20", "--data", "digits", "--protocol", "knn,linear-moco", "--max-train", "900", "--out", "out"]
    process = started(
        tmp_path, *words, stdout=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )  # the tests may run in the background, where Ctrl-C is ignored
    rows, end = tmp_path / "out" / "rows", time.monotonic() + 60
    while time.monotonic() < end and not list(rows.glob("*.json")):
        time.sleep(0.05)
    process.send_signal(kind)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == (-signal.SIGKILL if kind == signal.SIGKILL else 128 + kind)
    assert "Traceback" not in told
    assert kind != signal.SIGINT or "stopped; with --out FOLDER, the same command goes on from there" in told
    (first,) = rows.glob("*.json")
    before = first.read_bytes()
    measured = score("random:r20", data={"digits": None}, max_train=900, protocols=["knn"], out=tmp_path / "out")
    assert (first.read_bytes(), len(measured)) == (before, 1)


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["closed pipe", "/dev/full"])
def test_output_that_nobody_takes_ends_without_a_traceback_and_the_files_are_there(tmp_path, sink):
    words = ["pixels:", "--data", "digits", "--max-train", "60", "--max-test", "30", "--out", "out"]
    if sink == "closed pipe":
        process = started(tmp_path, *words, stdout=subprocess.PIPE)
        process.stdout.close()
    else:
        with Path(sink).open("w") as full:
            process = started(tmp_path, *words, stdout=full)
    told = process.stderr.read()
    process.stderr.close()
    process.wait(60)
    assert "Traceback" not in told
    assert "Exception ignored" not in told
    assert (process.returncode, "No space left" in told) == ((0, False) if sink == "closed pipe" else (1, True))
    assert (tmp_path / "out" / "results.md").is_file()


@pytest.mark.slow
def test_a_disk_that_is_full_while_pictures_are_drawn_costs_no_row(tmp_path):
    score("pixels:", out=tmp_path, **FEW)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        with pytest.raises(ZooError, match=r"cannot write .*png"):
            score("pixels:", out=tmp_path, pictures=True, **FEW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(list((tmp_path / "rows").glob("*.json"))) == 1
    assert list((tmp_path / "plots").iterdir()) == []


def test_images_of_odd_sizes_and_a_truncated_one_are_measured_and_counted(tmp_path):
    rng = np.random.default_rng(0)
    for split, n in {"train": 6, "test": 2}.items():
        for label in "ab":
            (tmp_path / split / label).mkdir(parents=True)
            for i in range(n):
                height, width = rng.integers(1, 40, 2)
                picture = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
                picture.convert(("L", "RGB", "RGBA", "P")[i % 4]).save(tmp_path / split / label / f"{i} é.png")
    broken = tmp_path / "train" / "a" / "0 é.png"
    broken.write_bytes(broken.read_bytes()[:60])
    (row,) = score("pixels:", data={"digits": tmp_path})
    assert (row.data.n_train, row.data.n_test, row.data.skipped) == (11, 4, 1)
