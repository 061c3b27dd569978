"""Transformers of timm, and the start that MoCo v3 gives them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import nn

from zoo.errors import BadNumber
from zoo.model.encoder import build_backbone
from zoo.model.vit import sincos_positions, start_as_mocov3

GOLDEN = Path(__file__).parents[2] / "shared" / "reference" / "losses.json"


@pytest.fixture
def vit() -> nn.Module:
    torch.manual_seed(0)
    vit = build_backbone("vitt4", image_size=16)
    start_as_mocov3(vit)
    return vit


def test_positions_agree_with_the_reference_file():
    if not GOLDEN.is_file():
        pytest.skip("the reference file is not on this machine; the next test covers the same table")
    golden = np.array(json.loads(GOLDEN.read_text())["sincos_3x3x8"])
    assert sincos_positions(3, 3, 8).numpy() == pytest.approx(golden, abs=1e-7)


def test_positions_are_sines_and_cosines_of_the_row_then_of_the_column():
    table = sincos_positions(2, 3, 8)
    row, column = 1, 2
    expected = [wave(place / scale) for place in (row, column) for wave in (math.sin, math.cos) for scale in (1, 100)]
    assert table[row * 3 + column].tolist() == pytest.approx(expected, abs=1e-7)
    with pytest.raises(ValueError, match="need a multiple of 4"):
        sincos_positions(2, 2, 6)


def test_a_vit_starts_as_in_the_release_of_mocov3(vit: nn.Module):
    d, patch = 192, 3 * 4 * 4
    bounds = {
        "patch_embed.proj.weight": math.sqrt(6 / (patch + d)),
        "blocks.3.attn.qkv.weight": math.sqrt(6 / (d + d)),
        "blocks.3.attn.proj.weight": math.sqrt(6 / (d + d)),
        "blocks.3.mlp.fc1.weight": math.sqrt(6 / (d + 4 * d)),
        "blocks.3.mlp.fc2.weight": math.sqrt(6 / (d + 4 * d)),
    }
    state = vit.state_dict()
    for name, bound in bounds.items():
        assert 0.99 * bound < state[name].abs().max().item() <= bound, name
        assert state[name].std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03), name
    assert all(not value.any() for name, value in state.items() if name.endswith("bias"))
    assert state["cls_token"].std().item() == pytest.approx(1e-6, rel=0.2)
    assert not state["pos_embed"][0, 0].any()
    assert torch.equal(state["pos_embed"][0, 1:], sincos_positions(4, 4, d))
    assert {m.eps for m in vit.modules() if isinstance(m, nn.LayerNorm)} == {1e-6}


def test_the_frozen_patches_and_positions_get_no_gradient_and_all_else_does(vit: nn.Module):
    vit(torch.rand(2, 3, 16, 16)).square().sum().backward()
    without = [name for name, p in vit.named_parameters() if p.grad is None]
    assert without == ["pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"]


def test_the_weights_open_in_plain_timm(vit: nn.Module):
    plain = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=16, patch_size=4)
    plain.load_state_dict(vit.state_dict())
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(plain.eval()(x), vit.eval()(x))


def test_the_heads_of_the_table():
    assert build_backbone("vits16", image_size=32).blocks[0].attn.num_heads == 12  # timm's own has 6
    assert build_backbone("vitt4", image_size=32).blocks[0].attn.num_heads == 3


def test_swin_has_windows_of_4_patches_below_64_px_and_of_7_from_there_on():
    with torch.device("meta"):
        for side, window in {32: 4, 224: 7}.items():
            assert build_backbone("swint", image_size=side).layers[0].blocks[0].window_size == (window, window)


def test_image_sizes_that_do_not_fit_the_patches_are_refused():
    with pytest.raises(BadNumber, match="takes images of a multiple of 16 px, not 8"):
        build_backbone("vits16", image_size=8)
    with pytest.raises(BadNumber, match="takes images of a multiple of 32 px, not 48"):
        build_backbone("swint", image_size=48)


@pytest.mark.parametrize(
    ("name", "millions"), [("rx50", 46), ("r50w2", 94), ("r50w4", 375)]
)  # He et al. 2020 (MoCo), table 1
def test_wide_resnets_have_the_parameters_of_their_papers(name: str, millions: int):
    with torch.device("meta"):
        network = build_backbone(name, image_size=224)
    assert round(sum(p.numel() for p in network.parameters()) / 1e6) == millions
