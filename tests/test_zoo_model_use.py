"""What a user does with a loaded encoder: transforms, layers, heads, other sizes, many kinds of pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from serve_model import card_of, noise
from test_zoo_transformers import TINY
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

import zoo
from train.heads import mlp, mocov3_head, simclr_head
from zoo.errors import BadData, BadNumber, CorruptFile, NoWeights
from zoo.hub.store import CARD
from zoo.model.backbone import BACKBONES
from zoo.model.encoder import Encoder, new_encoder, save_encoder, save_head

PICTURES = [noise(40, 60, 3), noise(60, 40, 3, seed=1), noise(9, 7, 3, seed=2)]


@pytest.fixture(params=["r20", *TINY])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Encoder:
    """A ResNet, a ViT and a Swin on 32 px."""
    for name, row in TINY.items():
        monkeypatch.setitem(BACKBONES, name, row)
    torch.manual_seed(0)
    return new_encoder(f"mocov3-{request.param}-cifar100").eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


# --- transforms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crop", [1.0, 0.75])
def test_the_transform_is_what_embed_does(encoder: Encoder, crop: float):
    encoder.crop = crop
    pil = [Image.fromarray(picture) for picture in PICTURES]
    pil[1].getexif()[0x0112] = 6
    pil += [pil[0].convert("L"), pil[2].convert("RGBA")]
    batch = torch.stack([encoder.transform(picture) for picture in pil])
    assert batch.dtype == torch.float32
    assert np.array_equal(encoder(batch).detach().numpy(), encoder.embed(pil))
    tensor = torch.from_numpy(PICTURES[0]).permute(2, 0, 1)
    assert torch.equal(encoder.transform(tensor), batch[0])


def test_a_data_loader_with_workers_takes_both_transforms_and_leaves_the_labels(encoder: Encoder, fake_cifar: Path):
    for transform in (encoder.transform, encoder.transform(train=True)):
        loader = DataLoader(ImageFolder(fake_cifar / "train", transform), batch_size=24, num_workers=1)
        images, labels = next(iter(loader))
        assert images.shape == (24, 3, 8, 8)
        assert (images.min() >= 0, images.max() <= 1, labels.tolist()) == (True, True, [0] * 8 + [1] * 8 + [2] * 8)


def test_the_transform_for_training_is_random_and_of_the_same_size(encoder: Encoder):
    transform, picture = encoder.transform(train=True), Image.fromarray(PICTURES[0])
    first, second = transform(picture), transform(picture)
    assert first.shape == (3, 8, 8)
    assert not torch.equal(first, second)
    assert transform((picture, 7))[1] == 7


# --- layers -----------------------------------------------------------------------------------------------------------


def test_the_last_map_pooled_is_the_embedding_of_a_resnet_and_gradients_flow(encoder: Encoder):
    x = torch.rand(2, 3, 8, 8, requires_grad=True)
    maps = encoder.features(x, layers=[0, 1, 2, 3])
    assert [tuple(one.shape[1:]) for one in maps] == [(16, 8, 8), (16, 8, 8), (32, 4, 4), (64, 2, 2)]
    assert torch.allclose(maps[-1].mean((2, 3)), encoder(x))
    maps[1].sum().backward()
    assert x.grad.abs().sum() > 0


def test_layers_are_counted_from_both_ends(network: Encoder, x: torch.Tensor):
    last_two = network.features(x, layers=2)
    assert len(last_two) == 2
    assert all(torch.equal(a, b) for a, b in zip(last_two, network.features(x, layers=[-2, -1]), strict=True))
    with pytest.raises(BadNumber, match="no such layer"):
        network.features(x, layers=[40])


def test_patch_tokens_average_to_what_a_swin_gives_and_are_the_grid_of_a_vit(network: Encoder, x: torch.Tensor):
    if not hasattr(network.backbone, "patch_embed"):
        with pytest.raises(BadNumber, match="has no patches"):
            network.patch_tokens(x)
        return
    tokens = network.patch_tokens(x)
    if hasattr(network.backbone, "layers"):
        assert tokens.shape == (2, 1, 64)
        assert torch.allclose(tokens.mean(1), network(x), atol=1e-6)
    else:
        assert tokens.shape == (2, 64, 32)
        whole = network.backbone.forward_features((x - network.mean) / network.std)
        assert torch.equal(tokens, whole[:, 1:])


# --- heads ------------------------------------------------------------------------------------------------------------

HEADS = {
    "mlp": lambda: mlp(64, 32, 16),
    "simclr": lambda: simclr_head(64, 16, layers=2),
    "mocov3": lambda: mocov3_head(64, 32, 16, layers=3, last_norm=True),
}


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_the_projector_comes_back_as_it_was_trained(make, encoder: Encoder, tmp_path: Path):
    torch.manual_seed(0)
    method = torch.nn.Module()
    method.projector = make()
    method.projector(torch.randn(64, 64))  # batch norm gets statistics
    card = save_encoder(encoder, tmp_path, card_of(encoder))
    save_head(method, tmp_path, card)
    loaded = zoo.load(tmp_path, head=True)
    features = torch.randn(5, 64)
    assert torch.equal(loaded.projector(features), method.projector.eval()(features))
    assert not hasattr(zoo.load(tmp_path), "projector")


def test_a_missing_projector_and_one_of_other_weights_are_refused(encoder: Encoder, tmp_path: Path):
    card = save_encoder(encoder, tmp_path, card_of(encoder))
    with pytest.raises(NoWeights, match=r"came without its projector .* load it without head=True"):
        zoo.load(tmp_path, head=True)
    method = torch.nn.Module()
    method.projector = mlp(64, 32, 16)
    save_head(method, tmp_path, card)
    with torch.no_grad():
        encoder.backbone.conv1.weight.mul_(2)
    save_encoder(encoder, tmp_path, card_of(encoder))
    with pytest.raises(CorruptFile, match="belongs to other weights"):
        zoo.load(tmp_path, head=True)
    assert (tmp_path / CARD).is_file()


def test_a_classifier_starts_at_zero_and_trains_the_encoder_too(encoder: Encoder):
    model = encoder.classifier(10)
    assert model.training
    x, y = torch.rand(8, 3, 8, 8), torch.arange(8)
    assert torch.equal(model(x), torch.zeros(8, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = encoder.backbone.conv1.weight.clone()
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1.0  # ln 10 = 2.3 at the start
    assert not torch.equal(encoder.backbone.conv1.weight, before)


# --- other sizes ------------------------------------------------------------------------------------------------------


def test_another_size_is_a_copy_that_takes_it(network: Encoder, x: torch.Tensor):
    expected = network(x)
    larger = network.at(64)
    assert (larger.image_size, network.image_size) == (64, 32)
    assert larger.embed(PICTURES).shape == (3, network.dim)
    assert np.isfinite(larger.embed(PICTURES)).all()
    assert torch.equal(network(x), expected)
    assert torch.allclose(network.at(32)(x), expected, atol=1e-5)


@pytest.mark.parametrize("size", [0, -4, 33])
def test_a_size_that_no_patches_fill_is_refused(network: Encoder, size: int):
    if size > 0 and not hasattr(network.backbone, "patch_embed"):
        assert network.at(size).embed(PICTURES).shape == (3, 64)
        return
    with pytest.raises(BadNumber, match="image_size"):
        network.at(size)


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_lists_generators_arrays_tensors_and_folders_give_the_same_rows(encoder: Encoder, tmp_path: Path):
    square = np.stack([noise(20, 20, 3, seed=seed) for seed in range(5)])
    expected = encoder.embed(list(square), batch_size=2)
    for index, picture in enumerate(square):
        (tmp_path / "ab"[index % 2]).mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / "ab"[index % 2] / f"{index}.png")
    channels_first = torch.from_numpy(square).permute(0, 3, 1, 2)
    for given in (square, iter(square), (p for p in square), channels_first, channels_first / 255):
        assert np.array_equal(encoder.embed(given, batch_size=2), expected)
    for folder in (tmp_path, str(tmp_path)):
        assert np.allclose(encoder.embed(folder), expected[[0, 2, 4, 1, 3]], atol=1e-5)


def test_a_generator_is_drawn_as_it_is_needed(encoder: Encoder):
    drawn = []

    def pictures():
        for index in range(5):
            drawn.append(index)
            yield PICTURES[0] if index < 4 else b"no picture"

    with pytest.raises(ValueError, match="not a picture"):
        encoder.embed(pictures(), batch_size=2)
    assert drawn == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (torch.rand(3, 8, 8), TypeError, r"picture\[None\]"),
        (torch.randn(2, 3, 8, 8), BadData, "not normalised"),
        (torch.full((1, 3, 8, 8), torch.nan), BadData, "not normalised"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), BadData, "torch.int64"),
        (7, TypeError, "embed takes a list of pictures"),
    ],
)
def test_what_is_no_pictures_is_refused(encoder: Encoder, given: object, error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        encoder.embed(given)


def test_a_folder_without_images_is_refused(encoder: Encoder, tmp_path: Path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(BadData, match="no image file"):
        encoder.embed(tmp_path)


def test_embed_computes_in_the_precision_asked_for(encoder: Encoder):
    expected, found = encoder.embed(PICTURES), encoder.embed(PICTURES, precision=torch.bfloat16)
    assert found.dtype == np.float32
    assert 0 < np.abs(found - expected).max() / np.abs(expected).max() < 0.05
    assert encoder.dtype == torch.float32
