import os
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from zoo.cli.main import main

HEAVY = (
    "torch",
    "timm",
    "torchvision",
    "safetensors",
    "datasets",
    "sklearn",
    "pyarrow",
    "huggingface_hub",
    "transformers",
)


def loaded_by(code: str) -> set[str]:
    """Which heavy packages are in sys.modules after `code`, in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_zoo_loads_none_of_its_heavy_packages():
    assert loaded_by("import zoo") == set()


def test_importing_zoo_loads_not_even_numpy_and_pillow():
    script = "import sys, zoo; print([name for name in ('numpy', 'PIL') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


@pytest.mark.parametrize("words", ["list", "list *cifar100", "info simco-r18-cifar100"])
def test_the_commands_that_only_look_load_neither_tyro_nor_numpy(words: str):
    code = f"import sys; sys.argv = ['zoo', *'{words}'.split()]; from zoo.cli.main import main; main()"
    script = f"{code}; print([name for name in ('tyro', 'numpy', 'PIL', 'torch') if name in sys.modules])"
    said = subprocess.check_output([sys.executable, "-c", script], text=True).splitlines()
    assert any("simco-r18-cifar100" in line for line in said)
    assert said[-1] == "[]"


def test_list_and_info_load_no_torch():
    code = (
        "import zoo, zoo.errors\nzoo.list()\ntry: zoo.info('simco-r20-digits-none')\nexcept zoo.errors.ZooError: pass"
    )
    assert loaded_by(code) == set()


@pytest.mark.parametrize(
    "module",
    ["errors", "names", "model.card", "images.pixels", "files", "hub.store", "model.backbone", "images.dataset"],
)
def test_floor_0_modules_load_no_torch(module: str):
    assert loaded_by(f"import zoo.{module}") == set()


def test_the_public_verbs_are_there():
    import zoo

    assert sorted(zoo.__all__) == ["info", "list", "load", "table"]
    assert all(callable(getattr(zoo, verb)) for verb in zoo.__all__)


def test_a_missing_extra_says_how_to_install_it():
    program = "import sys; sys.modules['timm'] = None; import zoo; zoo.load('simco-r20-digits')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith(
        'timm is not installed. In a clone of the repository of contrastive-zoo: pip install ".[core]"'
    )


def test_a_reader_that_has_seen_enough_is_no_error():
    words = f"{sys.executable} -m zoo.cli info simco-r18-cifar100-cpu | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


def test_zoo_embed_writes_one_row_an_image_and_names_what_it_leaves_out(
    encoder, tiny_run, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    pictures = [np.random.default_rng(seed).integers(0, 256, (9, 12, 3), np.uint8) for seed in range(3)]
    files = [tmp_path / "in" / name for name in ("a.png", "b.png", "deep/c.png")]
    for file, picture in zip(files, pictures, strict=True):
        Image.fromarray(picture).save(file)
    (tmp_path / "in" / "broken.jpg").write_bytes(b"no picture")
    (tmp_path / "in" / "notes.txt").write_text("no picture either, and none by its name")
    out = tmp_path / "out.parquet"
    monkeypatch.setattr("sys.argv", ["zoo", "embed", str(tiny_run), str(tmp_path / "in"), "-o", str(out)])
    monkeypatch.setattr("sys.argv", [*sys.argv, "--batch-size", "2", "--normalize"])
    main()
    table = pq.read_table(out).to_pydict()
    assert table["path"] == list(map(str, files))
    assert np.allclose(table["embedding"], encoder.embed(pictures, normalize=True), atol=1e-6)
    said = capsys.readouterr()
    assert said.out.endswith("3 embeddings of 64 numbers, 1 images left out\n")
    assert "broken.jpg" in said.err
    assert "notes.txt" not in said.err


def test_a_folder_without_one_readable_image_leaves_the_earlier_embeddings(tiny_run, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"no picture")
    os.mkfifo(tmp_path / "bad" / "pipe.png")
    (tmp_path / "out.parquet").write_bytes(b"earlier")
    words = [sys.executable, "-m", "zoo.cli", "embed", str(tiny_run), str(tmp_path / "bad"), "-o"]
    done = subprocess.run([*words, str(tmp_path / "out.parquet")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: none of 1 images could be embedded")
    assert (tmp_path / "out.parquet").read_bytes() == b"earlier"
