"""The code blocks of a published card, run as they are on photographs, in a process without this package."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from loopback_hub import elsewhere
from PIL import Image
from serve_model import card_of, noise
from test_zoo_transformers import TINY

import zoo
from zoo.model.backbone import BACKBONES, backbone_row
from zoo.model.encoder import Encoder, build_network, save_encoder
from zoo.release.publish import publish
from zoo.release.verify import gap

pytest_plugins = ["hub_fixtures"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PHOTOS = {"landscape": (480, 640), "portrait": (640, 480), "odd": (333, 517), "small": (9, 7)}  # height, width
SIDEWAYS = 6  # EXIF's orientation of the portrait


@dataclass(frozen=True)
class Case:
    name: str
    image_size: int
    crop: float = 1.0
    stem_padding: int = 1
    exact: bool = True  # the same network, and not one that computes the same in another order


CASES = [
    Case("simco-r20-digits", 8, exact=False),
    Case("simco-r18-cifar100-padded", 32, stem_padding=2, exact=False),
    Case("simclr-r18-in100", 96, crop=0.875),
    Case("mocov3-vitnano-cifar100", 32, crop=0.9),
    Case("mocov3-swinnano-cifar100", 64),
]


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Photographs with structure of every scale; one has to be turned by its EXIF entry."""
    paths = []
    for seed, (name, (height, width)) in enumerate(PHOTOS.items()):
        image = Image.fromarray(noise(height, width, 3, seed=seed))
        exif = image.getexif()
        exif[0x0112] = SIDEWAYS if name == "portrait" else 1
        paths.append(tmp_path / f"{name}.png")
        image.save(paths[-1], exif=exif)
    return paths


def make_run(folder: Path, case: Case) -> Path:
    torch.manual_seed(0)
    backbone = build_network(
        backbone_row(case.name.split("-")[1]), image_size=case.image_size, stem_padding=case.stem_padding
    )
    for module in backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    encoder = Encoder(backbone.eval(), mean=MEAN, std=STD, image_size=case.image_size, crop=case.crop)
    card = replace(card_of(encoder, case.name), mean=MEAN, std=STD, crop=case.crop, stem_padding=case.stem_padding)
    save_encoder(encoder, folder / case.name, card)
    return folder / case.name


def blocks(hub, repo: str) -> list[str]:
    """The Python blocks of a repository's card."""
    text = hub.repos[repo].commits[hub.repos[repo].tags["v1"]]["README.md"].decode()
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "cases",
    [[CASES[0], CASES[3]], pytest.param([CASES[1], CASES[2], CASES[4]], marks=pytest.mark.slow)],
    ids=["two small", "the others"],
)
def test_timm_and_transformers_give_embed_s_pixels_and_embeddings_of_photographs(
    cases: list[Case], photos: list[Path], hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, row in TINY.items():
        monkeypatch.setitem(BACKBONES, name, row)
    program = ["import sys; sys.modules['zoo'] = None; import numpy"]
    for case in cases:
        publish(make_run(tmp_path, case), repo=f"tester/{case.name}")
        for by, block in zip(("timm", "transformers"), blocks(hub, f"tester/{case.name}")[1:], strict=True):
            for photo in photos:
                program += [block.replace("cat.png", photo.name)] if photo is photos[0] else []
                file = f"{case.name}-{by}-{photo.stem}.npz"
                program.append(SAVE[by].format(photo=photo.name, file=file))
    done = elsewhere("\n".join(program), hub, tmp_path)
    assert done.returncode == 0, done.stderr
    for case in cases:
        encoder = zoo.load(tmp_path / case.name)
        assert done.stdout.count(f"torch.Size([1, {encoder.dim}])\n") >= 2
        for photo in photos:
            pixels = torch.from_numpy(encoder.pixels(photo).copy()).permute(2, 0, 1) / 255
            expected = (pixels - encoder.mean) / encoder.std
            embedded = encoder.embed([photo])
            for by in ("timm", "transformers"):
                found = np.load(tmp_path / f"{case.name}-{by}-{photo.stem}.npz")
                assert np.array_equal(plain(found["x"], case), expected.numpy()), (case, by, photo)
                if case.exact:
                    assert np.array_equal(found["features"], embedded), (case, by, photo)
                else:
                    assert gap(found["features"], embedded) < 1e-5, (case, by, photo)


def plain(x: np.ndarray, case: Case) -> np.ndarray:
    """The pixels without the repetition and the border that a small stem's published form wants."""
    if x.shape[-1] == case.image_size:
        return x
    border = case.stem_padding - 1
    assert x.shape[-1] == 4 * (case.image_size + 2 * border)
    inner = slice(border, border + case.image_size)
    assert np.array_equal(x, x[:, ::4, ::4].repeat(4, 1).repeat(4, 2))
    return x[:, ::4, ::4][:, inner, inner]


SAVE = {
    "timm": """
with torch.inference_mode():
    numpy.savez("{file}", x=pixels("{photo}"), features=model(pixels("{photo}")[None]))
""",
    "transformers": """
with torch.inference_mode():
    features = model(pixel_values=pixels("{photo}")[None]).pooler_output
    numpy.savez("{file}", x=pixels("{photo}"), features=features)
""",
}


def test_the_first_block_runs_with_this_package(photos: list[Path], hub, tmp_path: Path, capsys, monkeypatch):
    publish(make_run(tmp_path, CASES[0]), repo="tester/simco-r20-digits")
    monkeypatch.chdir(tmp_path)
    exec(blocks(hub, "tester/simco-r20-digits")[0].replace("cat.png", photos[0].name), {})
    assert "(1, 64)" in capsys.readouterr().out
