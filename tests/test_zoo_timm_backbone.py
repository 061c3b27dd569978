"""Any network of timm's as a backbone: what is found by building it, what is refused, and what a card may carry."""

import json

import pytest
import torch

from zoo.errors import BadNumber, CorruptFile, UnknownName
from zoo.model.backbone import backbone_row
from zoo.model.card import Card, parse_card
from zoo.model.encoder import Encoder, build_network
from zoo.model.timm_backbone import timm_backbone

SIZE = 32


def card_of(network: dict) -> Card:
    return Card(
        name="simco-mine-birds", paper="", image_size=SIZE, mean=(0.5,) * 3, std=(0.2,) * 3, dim=64, expects="",
        network=network,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dim", "fixed_size", "multiple", "pool"),
    [
        ("test_convnext", 64, False, 1, "avg"),
        ("test_efficientnet", 256, False, 1, "avg"),
        ("timm:test_vit.r160_in1k", 64, True, 16, "token"),
        ("test_byobnet", 256, True, 1, "avg"),
    ],
)
def test_the_row_of_a_network_is_found_by_building_it(name, dim, fixed_size, multiple, pool):
    row = timm_backbone(name, image_size=SIZE)
    assert (row.dim, row.fixed_size, row.multiple, row.pool) == (dim, fixed_size, multiple, pool)
    assert build_network(row, image_size=SIZE).eval()(torch.zeros(1, 3, SIZE, SIZE)).shape == (1, dim)


def test_finding_a_row_leaves_the_random_numbers_of_a_run_alone():
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    timm_backbone("test_convnext", image_size=SIZE)
    assert torch.rand(1) == wanted


def test_a_resnet_of_timms_gets_the_same_stem_on_small_images_as_the_row_of_the_table():
    torch.manual_seed(0)
    mine = build_network(timm_backbone("resnet18", image_size=SIZE), image_size=SIZE)
    torch.manual_seed(0)
    ours = build_network(backbone_row("r18"), image_size=SIZE)
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), ours.parameters(), strict=True))


def test_options_reach_the_network():
    row = timm_backbone("test_vit", image_size=SIZE, options={"drop_rate": 0.25})
    assert build_network(row, image_size=SIZE).head_drop.p == 0.25


@pytest.mark.parametrize(
    ("name", "size", "error", "message"),
    [
        ("convnext_tinny", 64, UnknownName, "unknown network of timm 'convnext_tinny'; nearest: convnext_tiny"),
        ("test_vit", 40, BadNumber, r"test_vit cannot be trained on images of 40 px .*usual size is 160 px"),
        ("test_vit", 8, BadNumber, "cannot be trained on images of 8 px"),
        ("vgg11", 16, BadNumber, r"vgg11 cannot be trained on images of 16 px .*usual size is 224 px"),
    ],
)
def test_what_timm_does_not_have_or_cannot_train_at_a_size_is_refused_with_the_reason(name, size, error, message):
    with pytest.raises(error, match=message):
        timm_backbone(name, image_size=size)


def test_a_card_carries_the_row_and_opens_without_any_table():
    row = timm_backbone("test_convnext", image_size=SIZE)
    card = parse_card(card_of(row.to_json()).to_json(), where="card")
    assert card.backbone_row == row
    network = build_network(card.backbone_row, image_size=SIZE)
    encoder = Encoder(network, mean=card.mean, std=card.std, image_size=SIZE)
    assert encoder.dim == card.dim


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": "hf-hub:somebody/network"},
        {"architecture": "local-dir:/tmp/network"},
        {"options": {"pretrained": True, "checkpoint_path": "weights.pth"}},
        {"initial": {"pretrained_cfg": {"url": "file:///weights.pth"}}},
        {"weights": "unknown entry"},
    ],
    ids=str,
)
def test_a_card_whose_network_would_load_something_is_refused(change):
    text = json.dumps(json.loads(card_of(backbone_row("r18").to_json() | change).to_json()))
    with pytest.raises(CorruptFile, match="card: not a card"):
        parse_card(text, where="card")
