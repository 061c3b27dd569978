"""An encoder in another precision than float32 still takes float32 pixels and gives float32 embeddings."""

import numpy as np
import pytest
import torch
from serve_model import noise

import zoo
from zoo.model.encoder import Encoder
from zoo.release.verify import gap

PICTURES = [noise(40, 40, 3), noise(30, 60, 3, seed=1)]
LOW = (torch.float16, torch.bfloat16)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("precision", LOW)
def test_a_trained_encoder_in_half_precision_embeds_as_in_float32(precision: torch.dtype):
    expected = zoo.load("simco-r20-cifar100").embed(PICTURES)
    found = zoo.load("simco-r20-cifar100").to(precision).embed(PICTURES)
    assert found.dtype == np.float32
    assert cosines(found, expected).min() > 0.999
    assert gap(found, expected) > 0  # it did compute in the lower precision


@pytest.mark.parametrize("precision", [*LOW, torch.float64])
def test_every_precision_of_the_pixels_is_taken_in_every_precision_of_the_encoder(
    encoder: Encoder, precision: torch.dtype
):
    x = torch.rand(2, 3, 8, 8)
    expected = encoder(x).detach()
    for kind in (torch.float32, precision):
        encoder.to(kind)
        for pixels in (x, x.to(precision)):
            found = encoder(pixels)
            assert found.dtype == kind
            assert torch.allclose(found.float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("precision", LOW)
def test_a_backbone_alone_in_half_precision_is_taken_too(encoder: Encoder, precision: torch.dtype):
    expected = encoder.embed(PICTURES)
    encoder.backbone.to(precision)
    assert encoder.dtype == precision
    assert encoder.mean.dtype == torch.float32
    assert cosines(encoder.embed(PICTURES), expected).min() > 0.999


def test_under_autocast_gradients_reach_the_pixels(encoder: Encoder):
    x = torch.rand(2, 3, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        encoder(x).float().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


def test_in_float32_nothing_is_converted(encoder: Encoder):
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(encoder(x), encoder.backbone((x - encoder.mean) / encoder.std))
