import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from test_zoo_files import disk_full_beyond
from torch import nn

import zoo
from zoo.errors import BadImage, CorruptFile, UnknownName, ZooError
from zoo.files import sha256
from zoo.hub.load import load_encoder
from zoo.hub.store import CARD, WEIGHTS
from zoo.images.dataset import dataset_row
from zoo.images.opening import open_images
from zoo.images.pixels import preprocess
from zoo.model.backbone import BACKBONES
from zoo.model.card import Card, Weights
from zoo.model.embedding import unit_rows
from zoo.model.encoder import Encoder, build_backbone, new_encoder, save_encoder
from zoo.model.resnet import PadShortcut, resnet20_cifar


@pytest.fixture
def digits() -> np.ndarray:
    return open_images("digits", "test").pixels()[:10]


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def map_sizes(network: nn.Module, side: int) -> dict[str, tuple[int, ...]]:
    """(C, H, W) behind each stage for a square image."""
    sizes: dict[str, tuple[int, ...]] = {}
    for name, module in network.named_children():
        module.register_forward_hook(lambda _m, _x, y, name=name: sizes.update({name: tuple(y.shape[1:])}))
    with torch.inference_mode():
        network.eval()(torch.zeros(1, 3, side, side))
    return sizes


# --- backbones --------------------------------------------------------------------------------------------------------


def test_options_of_a_backbones_row_reach_the_network_whatever_its_stem_and_none_is_dropped(monkeypatch):
    """Of a ResNet with a CIFAR stem, one without, and a transformer; a network that takes no options says so."""
    for name, network, size in (("r18", "r18", 32), ("full", "r18", 32), ("vit", "vitt4", 32)):
        row = BACKBONES[network]
        options = {**row.options, "drop_rate": 0.25}
        changed = replace(row, options=options, small_stem_below=0 if name == "full" else row.small_stem_below)
        monkeypatch.setitem(BACKBONES, name, changed)
        built = build_backbone(name, image_size=size)
        assert (built.head_drop.p if name == "vit" else built.drop_rate) == 0.25, name
    monkeypatch.setitem(BACKBONES, "tiny", replace(BACKBONES["r20"], options={"drop_rate": 0.25}))
    with pytest.raises(TypeError, match="resnet20_cifar takes no options; got drop_rate"):
        build_backbone("tiny", image_size=32)


def test_resnet20_has_the_layers_and_parameters_of_he_et_al_table_6():
    """0.27 M parameters and 6n + 2 = 20 weighted layers; the classifier, 64 x 10 + 10 parameters, is not ours."""
    network = build_backbone("r20", image_size=32)
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) + 1 == 20
    assert not [module for module in network.modules() if isinstance(module, nn.Linear)]
    assert parameters(network) == 269_072
    assert round((parameters(network) + 650) / 1e6, 2) == 0.27
    assert all(conv.bias is None and conv.kernel_size == (3, 3) for conv in convolutions)


def test_resnet20_maps_are_32_16_8_with_16_32_64_channels():
    sizes = map_sizes(build_backbone("r20", image_size=32), 32)
    assert [sizes[f"layer{i}"] for i in (1, 2, 3)] == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


def test_the_option_a_shortcut_takes_every_second_pixel_and_adds_zero_channels():
    x = torch.arange(2 * 4 * 4.0).view(1, 2, 4, 4)
    expected = torch.zeros(1, 4, 2, 2)
    expected[0, 1] = torch.tensor([[0.0, 2.0], [8.0, 10.0]])
    expected[0, 2] = torch.tensor([[16.0, 18.0], [24.0, 26.0]])
    assert torch.equal(PadShortcut()(x), expected)
    assert parameters(PadShortcut()) == 0


@pytest.mark.parametrize("side", [7, 8, 9])
def test_resnet20_takes_odd_sides_too(side: int):
    assert build_backbone("r20", image_size=32).eval()(torch.zeros(1, 3, side, side)).shape == (1, 64)


def test_resnet18_has_the_cifar_stem_below_64_pixels():
    network = build_backbone("r18", image_size=32)
    assert parameters(network) == 11_168_832  # 11,176,512 of torchvision's without classifier, - 9,408 + 1,728
    assert (network.conv1.kernel_size, network.conv1.stride, network.conv1.padding) == ((3, 3), (1, 1), (1, 1))
    sizes = map_sizes(network, 32)
    assert sizes["conv1"] == sizes["maxpool"] == sizes["layer1"] == (64, 32, 32)
    assert sizes["layer4"] == (512, 4, 4)


@pytest.mark.parametrize("side", [64, 224])
def test_resnet18_has_the_imagenet_stem_from_64_pixels(side: int):
    network = build_backbone("r18", image_size=side)
    assert parameters(network) == 11_176_512
    assert (network.conv1.kernel_size, network.conv1.stride) == ((7, 7), (2, 2))
    assert map_sizes(network, 224)["layer1"] == (64, 56, 56)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_table_tells_the_length_of_the_features(name: str):
    with torch.device("meta"):  # shapes without numbers: the widest has 375 million
        encoder = Encoder(build_backbone(name, image_size=32), mean=[0] * 3, std=[1] * 3, image_size=32)
        features = encoder.eval()(torch.rand(1, 3, 32, 32))
    assert features.shape == (1, encoder.dim) == (1, BACKBONES[name].dim)


def test_residual_branches_are_not_zero_at_the_start():
    network = build_backbone("r18", image_size=32)
    assert all((m.weight == 1).all() for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def test_an_unknown_backbone_is_told_the_nearest():
    with pytest.raises(UnknownName, match="nearest: r18"):
        build_backbone("r118", image_size=32)


def test_no_pretrained_resnet20_is_promised():
    with pytest.raises(ValueError, match="no pretrained weights"):
        resnet20_cifar(pretrained=True)


def test_a_new_encoder_takes_the_rows_of_its_name():
    encoder = new_encoder("simco-r20-cifar100")
    row = dataset_row("cifar100")
    assert torch.equal(encoder.mean.flatten(), torch.tensor(row.mean))
    assert torch.equal(encoder.std.flatten(), torch.tensor(row.std))
    assert (encoder.image_size, encoder.dim, encoder.crop, encoder.card) == (32, 64, 1.0, None)


# --- forward ----------------------------------------------------------------------------------------------------------


def test_forward_is_the_normalisation_then_the_backbone(encoder: Encoder):
    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    mean, std = dataset_row("digits").mean, dataset_row("digits").std
    by_hand = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], 1)
    assert torch.allclose(encoder(x), encoder.backbone(by_hand), atol=1e-6)
    assert not torch.allclose(encoder(x), encoder.backbone(x), atol=1e-2)


def test_forward_is_differentiable_in_the_pixels(encoder: Encoder):
    encoder = encoder.double()
    x = torch.rand(1, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    encoder(x).sum().backward()
    assert x.grad is not None
    step = torch.zeros_like(x)
    step[0, 1, 3, 4] = 1e-6
    with torch.no_grad():
        slope = (encoder(x + step).sum() - encoder(x - step).sum()) / 2e-6
    assert slope.abs() > 1e-3
    assert torch.allclose(x.grad[0, 1, 3, 4], slope, rtol=1e-4)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(3, 8, 8),
        torch.zeros(2, 8, 8, 3),
        torch.zeros(1, 3, 8, 8, dtype=torch.uint8),
        torch.zeros(1, 1, 8, 8),
    ],
)
def test_forward_refuses_other_shapes_and_whole_numbers(encoder: Encoder, x: torch.Tensor):
    with pytest.raises(ValueError, match=r"expected float pixels \(B, 3, H, W\) in \[0, 1\], got .*embed\(\)"):
        encoder(x)


def test_mean_and_std_are_in_the_weights(encoder: Encoder):
    assert {"mean", "std"} <= encoder.state_dict().keys()


# --- embed ------------------------------------------------------------------------------------------------------------


def test_embed_is_forward_of_the_preprocessed_pixels(encoder: Encoder, tmp_path: Path):
    photo = np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    buffer = io.BytesIO()
    Image.fromarray(photo).save(buffer, "PNG")
    pictures = [photo, Image.fromarray(photo), buffer.getvalue(), tmp_path / "photo.png", str(tmp_path / "photo.png")]
    x = torch.from_numpy(preprocess(photo, image_size=8).copy()).permute(2, 0, 1)[None] / 255
    expected = encoder(x).detach().numpy()
    found = encoder.embed(pictures)
    assert found.dtype == np.float32
    assert np.allclose(found, np.repeat(expected, 5, 0), atol=1e-5)


def test_the_crop_of_the_encoder_is_applied(encoder: Encoder):
    photo = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    encoder.crop = 0.5
    assert np.allclose(encoder.embed([photo]), encoder.embed_pixels(preprocess(photo, image_size=8, crop=0.5)[None]))
    assert not np.allclose(encoder.embed([photo]), encoder.embed_pixels(preprocess(photo, image_size=8)[None]))


def test_embeddings_do_not_depend_on_the_batch_size(encoder: Encoder, digits: np.ndarray):
    whole = encoder.embed(list(digits))
    for batch_size in (1, 3, 10):
        assert np.abs(encoder.embed(list(digits), batch_size=batch_size) - whole).max() < 1e-5
    assert np.abs(encoder.embed_pixels(digits) - whole).max() < 1e-5
    assert np.abs(encoder.embed_pixels(digits[::-1])[::-1] - whole).max() < 1e-5


def test_embedding_in_training_mode_is_the_same_and_leaves_the_encoder_as_it_was(encoder: Encoder, digits: np.ndarray):
    expected = encoder.embed(list(digits))
    encoder.train()
    frozen = encoder.backbone.bn1.eval()  # as a fine-tuning freezes some layers
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    modes = [module.training for module in encoder.modules()]
    assert np.array_equal(encoder.embed(list(digits)), expected)
    assert [module.training for module in encoder.modules()] == modes
    assert encoder.training
    assert not frozen.training
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())


def test_an_error_while_embedding_leaves_the_mode_as_it_was(encoder: Encoder):
    encoder.train()
    encoder.backbone.conv1 = nn.Conv2d(5, 16, 3)
    with pytest.raises(RuntimeError):
        encoder.embed_pixels(np.zeros((1, 8, 8, 3), np.uint8))
    assert encoder.training


def test_normalize_gives_rows_of_unit_length(encoder: Encoder, digits: np.ndarray):
    plain, unit = encoder.embed(list(digits)), encoder.embed(list(digits), normalize=True)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert np.allclose(unit, plain / np.linalg.norm(plain, axis=1)[:, None], atol=1e-6)
    assert np.array_equal(unit_rows(np.array([[3, 4], [0, 0]], np.float32)), np.array([[0.6, 0.8], [0, 0]], np.float32))


@pytest.mark.parametrize("normalize", [False, True])
def test_no_pictures_give_no_rows(encoder: Encoder, normalize: bool):
    found = encoder.embed([], normalize=normalize)
    assert (found.shape, found.dtype) == ((0, 64), np.float32)


@pytest.mark.parametrize(
    "picture",
    ["one.png", b"bytes", Path("one.png"), Image.new("RGB", (8, 8)), np.zeros((8, 8, 3), np.uint8), np.zeros((8, 3))],
)
def test_one_picture_must_be_wrapped_in_a_list(encoder: Encoder, picture: object):
    """A (H, W, 3) array would otherwise be H grey pictures of W x 3, and embed without a word."""
    with pytest.raises(TypeError, match=r"embed takes a list of pictures; got one .*Write embed\(\[picture\]\)"):
        encoder.embed(picture)


def test_an_array_of_pictures_is_a_list_of_pictures(encoder: Encoder, digits: np.ndarray):
    assert np.array_equal(encoder.embed(digits), encoder.embed(list(digits)))


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_holds_at_least_one_picture(encoder: Encoder, batch_size: int):
    with pytest.raises(ValueError, match="at least 1"):
        encoder.embed([np.zeros((8, 8), np.uint8)], batch_size=batch_size)


def test_bad_pictures_are_told_as_such(encoder: Encoder):
    with pytest.raises(BadImage, match="4 bytes"):
        encoder.embed([b"junk"])
    with pytest.raises(FileNotFoundError):
        encoder.embed(["none.png"])
    with pytest.raises(BadImage, match=r"go to encoder\(x\)"):
        encoder.embed([torch.zeros(3, 8, 8)])


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((1, 8, 8, 3), np.float32),
        np.zeros((1, 8, 8, 3), np.int64),
        np.zeros((8, 8, 3), np.uint8),
        np.zeros((1, 3, 8, 8), np.uint8),
    ],
)
def test_embed_pixels_takes_uint8_only(encoder: Encoder, pixels: np.ndarray):
    """Floats in [0, 1] would otherwise be divided by 255 a second time."""
    with pytest.raises(ValueError, match=r"expected uint8 pixels \(B, H, W, 3\), got"):
        encoder.embed_pixels(pixels)


# --- save and load ----------------------------------------------------------------------------------------------------


def test_a_loaded_encoder_is_bit_equal_to_the_saved_one(
    encoder: Encoder, card: Card, tmp_path: Path, digits: np.ndarray
):
    encoder.crop = 0.875
    card = replace(card, crop=0.875)
    written = save_encoder(encoder.train(), tmp_path, card)
    loaded = zoo.load(tmp_path)
    assert loaded.card == written
    assert not loaded.training
    assert (loaded.crop, loaded.image_size) == (0.875, 8)
    for (key, mine), (other, theirs) in zip(encoder.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert key == other
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    assert np.array_equal(loaded.embed(list(digits)), encoder.embed(list(digits)))


def test_the_card_holds_the_hash_and_size_of_the_weights(encoder: Encoder, card: Card, tmp_path: Path):
    written = save_encoder(encoder, tmp_path, card)
    path = tmp_path / WEIGHTS
    assert written.weights == Weights(file=WEIGHTS, sha256=sha256(path), bytes=path.stat().st_size)
    assert json.loads((tmp_path / CARD).read_text())["weights"]["sha256"] == sha256(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [CARD, WEIGHTS]


def test_the_same_weights_make_the_same_file(encoder: Encoder, card: Card, tmp_path: Path):
    for name in ("a", "b"):
        save_encoder(encoder, tmp_path / name, card)
    assert sha256(tmp_path / "a" / WEIGHTS) == sha256(tmp_path / "b" / WEIGHTS)


def test_the_image_size_of_the_card_decides_the_stem(card: Card, tmp_path: Path):
    """A model trained at another size than its data set's row loads as it was trained."""
    row = dataset_row("cifar10")
    wide = Encoder(build_backbone("r18", image_size=96), mean=row.mean, std=row.std, image_size=96)
    save_encoder(
        wide,
        tmp_path,
        replace(card, name="simco-r18-cifar10", image_size=96, mean=row.mean, std=row.std, dim=512),
    )
    loaded = load_encoder(tmp_path)
    assert loaded.image_size == 96
    assert loaded.backbone.conv1.kernel_size == (7, 7)


@pytest.mark.parametrize(
    ("entry", "value"),
    [("mean", (0.5,) * 3), ("std", (0.5,) * 3), ("image_size", 16), ("crop", 0.5), ("dim", 65)],
)
def test_a_card_that_contradicts_the_encoder_is_not_written(
    encoder: Encoder, card: Card, tmp_path: Path, entry: str, value: object
):
    with pytest.raises(ValueError, match=f"card of simco-r20-digits says something else than the encoder in: {entry}$"):
        save_encoder(encoder, tmp_path, replace(card, **{entry: value}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("entry", "value"), [("mean", [0.3055, 0.3055, 0.3056]), ("std", [0.3754, 0.4, 0.3754]), ("dim", 65)]
)
def test_a_card_that_contradicts_its_weights_is_not_loaded(
    encoder: Encoder, card: Card, tmp_path: Path, entry: str, value: object
):
    save_encoder(encoder, tmp_path, card)
    values = json.loads((tmp_path / CARD).read_text())
    (tmp_path / CARD).write_text(json.dumps(values | {entry: value}))
    with pytest.raises(CorruptFile, match=rf"card\.json says something else than model\.safetensors in: {entry}$"):
        load_encoder(tmp_path)


def test_a_card_that_cannot_be_written_leaves_the_earlier_model_whole(encoder: Encoder, card: Card, tmp_path: Path):
    save_encoder(encoder, tmp_path, card)
    before = encoder.embed([np.zeros((8, 8), np.uint8)])
    with torch.no_grad():
        encoder.backbone.conv1.weight.add_(1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_encoder(encoder, tmp_path, replace(card, training={"loss": float("nan")}))
    assert np.array_equal(load_encoder(tmp_path).embed([np.zeros((8, 8), np.uint8)]), before)


def test_a_full_disk_leaves_the_earlier_model_whole_and_says_so(encoder: Encoder, card: Card, tmp_path: Path):
    save_encoder(encoder, tmp_path, card)
    with torch.no_grad():
        encoder.backbone.conv1.weight.add_(1)
    with disk_full_beyond(100_000), pytest.raises(ZooError, match=r"cannot write .*model\.safetensors: .*too large"):
        save_encoder(encoder, tmp_path, card)
    load_encoder(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [CARD, WEIGHTS]


def rehash(folder: Path) -> None:
    """Makes the card agree with the weights file as it is now, as an attacker would."""
    values = json.loads((folder / CARD).read_text())
    path = folder / WEIGHTS
    values["weights"] |= {"sha256": sha256(path), "bytes": path.stat().st_size}
    (folder / CARD).write_text(json.dumps(values))


def test_weights_of_another_network_are_a_corrupt_file(encoder: Encoder, card: Card, tmp_path: Path):
    save_encoder(encoder, tmp_path, card)
    tensors = load_file(tmp_path / WEIGHTS)
    for change in ({"surplus": torch.zeros(1)}, {"mean": torch.zeros(4, 1, 1)}):
        save_file(tensors | change, tmp_path / WEIGHTS)
        rehash(tmp_path)
        with pytest.raises(CorruptFile, match=r"does not hold the weights of simco-r20-digits"):
            load_encoder(tmp_path)


@pytest.mark.parametrize("content", [b"junk", b"\x80\x04pickle", bytes(100), b"\xff" * 100])
def test_a_file_that_is_no_safetensors_is_a_corrupt_file(encoder: Encoder, card: Card, tmp_path: Path, content: bytes):
    save_encoder(encoder, tmp_path, card)
    (tmp_path / WEIGHTS).write_bytes(content)
    rehash(tmp_path)
    with pytest.raises(CorruptFile, match=r"does not hold the weights of simco-r20-digits"):
        load_encoder(tmp_path)


def test_weights_that_are_not_finite_are_not_saved_over_good_ones(encoder: Encoder, card: Card, tmp_path: Path):
    save_encoder(encoder, tmp_path, card)
    before = sha256(tmp_path / WEIGHTS)
    with torch.no_grad():
        encoder.backbone.conv1.weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(ZooError, match=r"backbone\.conv1\.weight of simco-r20-digits is not finite"):
        save_encoder(encoder, tmp_path, card)
    assert sha256(tmp_path / WEIGHTS) == before
