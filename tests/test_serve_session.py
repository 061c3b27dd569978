"""serve/session.py: an ONNX file as a function of images, found by name, refused when it is not what it says."""

import asyncio
import shutil
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from safetensors.numpy import save_file
from serve_model import NAME, OTHER, encode, gap, make_run, noise, pictures

from serve.engine import Engine
from serve.file_structure import END, SCAN
from serve.limits import MAX_CHUNKS, MAX_PROFILES, MAX_SCANS, MAX_SEGMENTS
from serve.log import start_log
from serve.refusal import Refused
from serve.session import Session, models_from_environment, open_model
from zoo.errors import (
    BadImage,
    CorruptFile,
    ImageFormatNotAllowed,
    ImageTooLarge,
    NoWeights,
    UnknownName,
    VariantWarning,
    ZooError,
)
from zoo.hub.store import keep
from zoo.model.encoder import Encoder

pytest_plugins = ["serve_fixtures"]


@pytest.fixture(scope="module")
def session(exported: Path) -> Session:
    return Session(exported / "model.onnx")


@pytest.mark.parametrize("batch", [1, 2, 5, 8, 19])
def test_embeddings_equal_the_encoders(session: Session, torch_encoder: Encoder, batch: int) -> None:
    pixels = np.stack([noise(8, 8, 3, seed=seed) for seed in range(batch)])
    features = session.embed_pixels(pixels)
    assert features.dtype == np.float32
    assert gap(features, torch_encoder.embed_pixels(pixels)) < 1e-5


@pytest.mark.parametrize("name", pictures())
def test_a_file_becomes_the_pixels_and_the_embedding_of_the_encoder(
    session: Session, torch_encoder: Encoder, name: str
) -> None:
    picture = pictures()[name]
    pixels = session.preprocess(picture)
    assert np.array_equal(pixels, torch_encoder.pixels(picture))
    assert gap(session.embed_pixels(pixels[None]), torch_encoder.embed([picture])) < 1e-5


def test_the_session_knows_what_it_serves(session: Session) -> None:
    assert (session.name, session.dim, session.image_size, session.crop) == (NAME, 64, 8, 1.0)


def test_formats_and_sizes_outside_the_limits_are_refused(session: Session) -> None:
    image = Image.fromarray(noise(9, 9, 3))
    for kind in ("GIF", "BMP", "TIFF", "PPM"):
        with pytest.raises(ImageFormatNotAllowed):
            session.preprocess(encode(image, kind))
    with pytest.raises(ImageTooLarge, match="9000 x 1"):
        session.preprocess(encode(Image.new("L", (9000, 1)), "PNG"))
    with pytest.raises(ImageTooLarge, match="5001 x 5000"):
        session.preprocess(encode(Image.new("1", (5001, 5000)), "PNG"))
    with pytest.raises(BadImage):
        session.preprocess(encode(image, "PNG")[:-40])


def test_a_jpeg_of_endless_scans_is_refused_before_it_is_decoded(session: Session) -> None:
    usual = encode(Image.new("L", (64, 64), 128), "JPEG", progressive=True)
    scan, end = usual[usual.rindex(SCAN) : -2], usual[-2:]
    some, many = (usual[:-2] + (n - usual.count(SCAN)) * scan + end for n in (MAX_SCANS, MAX_SCANS + 1))
    assert np.array_equal(session.preprocess(some), session.preprocess(usual))
    with pytest.raises(ImageTooLarge, match=f"{MAX_SCANS + 1} scans; at most {MAX_SCANS}"):
        session.preprocess(many)
    hidden = (MAX_SCANS + 1) * (b"\xff\xfe\0\4" + END + scan)  # comments that look like the picture's end
    with pytest.raises(ImageTooLarge, match="scans"):
        session.preprocess(usual[:-2] + hidden + end)


def test_what_only_looks_like_a_scan_is_none(session: Session) -> None:
    image, looks = Image.fromarray(noise(160, 160, 3)), (MAX_SCANS + 1) * SCAN
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 1}):
        usual = encode(image, "JPEG", **options)
        small = usual[:2] + b"\xff\xe1" + (2 + len(looks)).to_bytes(2) + looks + usual[2:]  # as the one inside EXIF
        film = usual + looks  # as behind a telephone's picture
        assert [session.preprocess(each).tolist() for each in (small, film)] == [session.preprocess(usual).tolist()] * 2
    usual = encode(image, "PNG")
    assert np.array_equal(session.preprocess(usual + looks), session.preprocess(usual))


@pytest.mark.parametrize("piece", [b"\xff\xfe\0\2", b"\xff\xe1\0\x08Exif\0\0", b"\xff", b"\xff\xd0", b"\xff\0"])
def test_a_jpeg_of_endless_segments_is_refused_before_it_is_opened(session: Session, piece: bytes) -> None:
    usual = encode(Image.fromarray(noise(8, 8, 3)), "JPEG")
    some, many = (usual[:2] + n * piece + usual[2:] for n in (MAX_SEGMENTS // 3, MAX_SEGMENTS))
    assert np.array_equal(session.preprocess(some), session.preprocess(usual))
    with pytest.raises(ImageTooLarge, match=f"more than {MAX_SEGMENTS} segments"):
        session.preprocess(many)


@pytest.mark.parametrize("kind", [b"prIv", b"tEXt", b"IDAT"])
def test_a_png_of_endless_chunks_is_refused_before_it_is_opened(session: Session, kind: bytes) -> None:
    usual = encode(Image.fromarray(noise(8, 8, 3)), "PNG")
    piece = bytes(4) + kind + zlib.crc32(kind).to_bytes(4)
    some, many = (usual[:33] + n * piece + usual[33:] for n in (MAX_CHUNKS // 3, MAX_CHUNKS))
    assert np.array_equal(session.preprocess(some), session.preprocess(usual))
    with pytest.raises(ImageTooLarge, match=f"more than {MAX_CHUNKS} chunks"):
        session.preprocess(many)
    assert np.array_equal(session.preprocess(usual + many), session.preprocess(usual))  # its end is its end


def test_a_png_of_many_folded_profiles_is_refused_before_they_are_unfolded(session: Session) -> None:
    usual = encode(Image.fromarray(noise(8, 8, 3)), "PNG")
    body = b"iCCPa\0\0" + zlib.compress(bytes(2**20 - 64))
    piece = (len(body) - 4).to_bytes(4) + body + zlib.crc32(body).to_bytes(4)
    some, many = (usual[:33] + n * piece + usual[33:] for n in (MAX_PROFILES, MAX_PROFILES + 1))
    assert np.array_equal(session.preprocess(some), session.preprocess(usual))
    with pytest.raises(ImageTooLarge, match=f"{MAX_PROFILES + 1} colour profiles; at most {MAX_PROFILES}"):
        session.preprocess(many)


def test_a_picture_of_odd_tags_is_decoded_without_a_word_in_the_servers_log(session: Session) -> None:
    usual = Image.fromarray(noise(9, 9, 3))
    tags = b"".join(struct.pack("<HHLL", tag, 3, 0xFFFF, 0) for tag in range(1000, 1050))  # longer than all of it
    odd = encode(usual, "PNG", exif=b"II*\0\x08\0\0\0\x32\0" + tags + bytes(4))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        session.preprocess(odd)
        assert len(told) == 50  # Pillow's
        start_log()
        assert np.array_equal(session.preprocess(odd), session.preprocess(encode(usual, "PNG")))
    assert len(told) == 50


def test_a_missing_file_is_told_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(NoWeights, match=r"zoo export"):
        Session(tmp_path / "model.onnx")


@pytest.mark.parametrize("length", [0, 7, 5000, -1])
def test_a_truncated_file_is_corrupt(exported: Path, tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes((exported / "model.onnx").read_bytes()[:length])
    with pytest.raises(CorruptFile, match="Export it again"):
        Session(path)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("format", None, "format None"),
        ("format", "contrastive-zoo/2", "format 'contrastive-zoo/2'"),
        ("dim", None, "incomplete metadata"),
        ("dim", "sixty-four", "incomplete metadata"),
        ("dim", "65", "the graph is"),
        ("image_size", "32", "the graph is"),
    ],
)
def test_an_onnx_file_that_is_not_ours_is_corrupt(
    exported: Path, tmp_path: Path, key: str, value: str | None, says: str
) -> None:
    model = onnx.load(exported / "model.onnx")
    facts = {entry.key: entry.value for entry in model.metadata_props} | {key: value}
    model.ClearField("metadata_props")
    onnx.helper.set_model_props(model, {key: value for key, value in facts.items() if value is not None})
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(CorruptFile, match=says):
        Session(tmp_path / "model.onnx")


def test_a_model_is_found_by_folder_by_file_and_by_name(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOO_HOME", str(tmp_path))
    keep(exported)
    for where in (str(exported), str(exported / "model.onnx"), NAME):
        monkeypatch.setenv("ZOO_MODEL", where)
        assert [session.name for session in models_from_environment()] == [NAME]
    assert models_from_environment()[0].path.is_relative_to(tmp_path)


def test_what_cannot_be_found_is_told_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ZOO_MODEL", raising=False)
    with pytest.raises(ZooError, match="Set ZOO_MODEL"):
        models_from_environment()
    with pytest.raises(UnknownName):
        open_model("simco-r20")
    with pytest.raises(NoWeights, match=r"zoo export"):
        open_model(str(make_run(tmp_path / NAME, seed=0)))


def test_an_onnx_file_of_earlier_weights_is_refused(exported: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / NAME, seed=1)
    (folder / "model.onnx").write_bytes((exported / "model.onnx").read_bytes())
    with pytest.raises(CorruptFile, match="exported from other weights"):
        open_model(str(folder))


def with_golden(exported: Path, folder: Path, encoder: Encoder, **changes: np.ndarray) -> Path:
    """A copy of the run folder with eight golden embeddings, or with `changes` in their place."""
    shutil.copytree(exported, folder)
    inputs = np.stack([noise(8, 8, 3, seed=seed) for seed in range(8)])
    save_file({"pixels": inputs, "embeddings": encoder.embed_pixels(inputs)} | changes, folder / "golden.safetensors")
    return folder


def test_golden_embeddings_are_verified(exported: Path, torch_encoder: Encoder, tmp_path: Path) -> None:
    assert open_model(str(with_golden(exported, tmp_path / "a", torch_encoder))).name == NAME
    embeddings = torch_encoder.embed_pixels(np.stack([noise(8, 8, 3, seed=seed) for seed in range(8)]))
    embeddings[5, 7] += 1e-3 * np.abs(embeddings).max()
    with pytest.raises(CorruptFile, match=r"differs from the golden embeddings .* by 1\.0e-03"):
        open_model(str(with_golden(exported, tmp_path / "b", torch_encoder, embeddings=embeddings)))


@pytest.mark.parametrize(
    "changes",
    [
        {"pixels": np.zeros((8, 9, 9, 3), np.uint8)},
        {"embeddings": np.zeros((7, 64), np.float32)},
        {"embeddings": np.full((8, 64), np.nan, np.float32)},
    ],
)
def test_golden_embeddings_that_do_not_fit_are_corrupt(
    exported: Path, torch_encoder: Encoder, tmp_path: Path, changes: dict[str, np.ndarray]
) -> None:
    with pytest.raises(CorruptFile, match="golden"):
        open_model(str(with_golden(exported, tmp_path / "a", torch_encoder, **changes)))
    (tmp_path / "a" / "golden.safetensors").write_bytes(b"damaged")
    with pytest.raises(CorruptFile, match="not golden embeddings"):
        open_model(str(tmp_path / "a"))


def test_several_models_have_names_of_their_own(
    exported: Path, other_exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOO_MODEL", f"{exported}, {other_exported},")
    assert [session.name for session in models_from_environment()] == [NAME, OTHER]
    monkeypatch.setenv("ZOO_MODEL", f"{exported},{exported}")
    with pytest.raises(ZooError, match="2 times"):
        models_from_environment()


def test_the_server_imports_no_torch(exported: Path) -> None:
    program = (
        "import sys, asyncio, serve.service as s, serve.session as t\n"
        f"asyncio.run(s.engine.start([t.open_model({str(exported)!r})]))\n"
        "heavy = {'torch', 'timm', 'onnx', 'onnxscript', 'sklearn', 'datasets'} & sys.modules.keys()\n"
        "assert s.engine.ready and not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[1], timeout=60)


def test_a_model_answers_to_the_name_that_was_asked_for_and_to_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_MODEL", "simco-r18-cifar100, photos=simco-r20-cifar100")
    with pytest.warns(VariantWarning):
        variant, other = models_from_environment()
    assert (variant.name, variant.aliases) == ("simco-r18-cifar100-cpu", ["simco-r18-cifar100"])
    assert (other.name, other.aliases) == ("simco-r20-cifar100", ["photos"])

    async def scenario() -> list[str]:
        engine = Engine()
        await engine.start([variant, other])
        found = [engine.session(name).name for name in ("simco-r18-cifar100", "photos", "simco-r20-cifar100", "")]
        with pytest.raises(Refused, match="nearest: photos"):
            engine.session("photo")
        await engine.stop()
        return found

    assert asyncio.run(scenario()) == [variant.name, other.name, other.name, variant.name]
    monkeypatch.setenv("ZOO_MODEL", "a=simco-r20-cifar100,a=simclr-r20-cifar100")
    with pytest.raises(ZooError, match="a was asked for 2 times"):
        models_from_environment()
