"""Optimisers, schedules and heads against values computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from torch import nn

from train.heads import mlp, simclr_head
from train.optim import LARS, LARS_VARIANTS, make_optimizer
from train.schedules import cosine_between, warmup_cosine, warmup_step

W, G = [[3.0, 0.0], [0.0, 4.0]], [[0.0, 0.6], [0.8, 0.0]]


def two_steps(optimizer: torch.optim.Optimizer, weight: nn.Parameter, gradient: torch.Tensor, second_lr: float):
    """The weight after each of two updates with the same gradient and a new learning rate for the second."""
    states = []
    for lr in (optimizer.param_groups[0]["lr"], second_lr):
        for group in optimizer.param_groups:
            group["lr"] = lr
        weight.grad = gradient.clone()
        optimizer.step()
        states.append(weight.detach().numpy().copy())
    return states


def test_lars_makes_the_known_two_steps_with_the_rate_inside_the_buffer():
    weight = nn.Parameter(torch.tensor(W, dtype=torch.float64))
    optimizer = LARS([weight], lr=4.8, momentum=0.9, weight_decay=0.1, variant=LARS_VARIANTS["lars"])
    first, second = two_steps(optimizer, weight, torch.tensor(G, dtype=torch.float64), 2.4)
    assert first == pytest.approx(np.array([[2.9935601242, -0.0128797516], [-0.0171730021, 3.9914134990]]), abs=1e-9)
    assert second == pytest.approx(np.array([[2.9845511804, -0.0308976392], [-0.0411968523, 3.9794015739]]), abs=1e-9)
    w, v = np.array(W), np.zeros((2, 2))
    for lr in (4.8, 2.4):
        w, v = reference.lars_step(w, np.array(G), v, lr=lr, momentum=0.9, decay=0.1, trust=0.001)
    assert second == pytest.approx(w, abs=1e-14)


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("lars_mocov3", [[2.9874491245, -0.025101751], [-0.0334690013, 3.9832654993]]),
        ("lars_solo", [[2.9906463891, -0.0187072219], [-0.0249429625, 3.9875285188]]),
    ],
)
def test_the_other_released_variants_of_lars_part_at_the_second_step(name: str, second: list[list[float]]):
    weight = nn.Parameter(torch.tensor(W, dtype=torch.float64))
    variant = replace(LARS_VARIANTS[name], trust=0.001, clip=False)  # the numbers of the known steps
    optimizer = LARS([weight], lr=4.8, momentum=0.9, weight_decay=0.1, variant=variant)
    assert two_steps(optimizer, weight, torch.tensor(G, dtype=torch.float64), 2.4)[1] == pytest.approx(
        np.array(second), abs=1e-9
    )


def test_solo_learns_lars_never_moves_a_tensor_faster_than_the_learning_rate():
    """Trust 0.02 and clipping: the rate is min(lr, 0.02 |w| / |g|)."""
    for lr, moved in {0.5: 0.02 * 5 / 1, 0.05: 0.05}.items():
        weight = nn.Parameter(torch.tensor(W, dtype=torch.float64))
        weight.grad = torch.tensor(G, dtype=torch.float64)
        LARS([weight], lr=lr, variant=LARS_VARIANTS["lars_solo"]).step()
        assert (torch.tensor(W) - weight.detach()).norm().item() == pytest.approx(moved)


def test_adamw_decays_every_parameter_apart_from_the_gradient():
    module = nn.Linear(1, 1).double()
    module.weight.data.fill_(2.0), module.bias.data.fill_(-1.0)
    optimizer = make_optimizer("adamw", module, lr=0.1, momentum=0.9, weight_decay=0.5)
    module.weight.grad, module.bias.grad = torch.full((1, 1), 3.0).double(), torch.full((1,), -7.0).double()
    optimizer.step()  # the first step of Adam is lr times the sign of the gradient
    assert module.weight.item() == pytest.approx(2.0 * (1 - 0.05) - 0.1)
    assert module.bias.item() == pytest.approx(-1.0 * (1 - 0.05) + 0.1)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_lars_moves_biases_by_plain_momentum_without_decay():
    module = nn.Linear(2, 2).double()
    module.weight.data, module.bias.data = torch.tensor(W).double(), torch.tensor([1.0, 2.0]).double()
    optimizer = make_optimizer("lars", module, lr=4.8, momentum=0.9, weight_decay=0.1)
    module.weight.grad, module.bias.grad = torch.tensor(G).double(), torch.tensor([0.5, -0.5]).double()
    optimizer.step()
    assert module.bias.detach().numpy() == pytest.approx([-1.4, 4.4])
    assert module.weight[0, 0].item() == pytest.approx(2.9935601242, abs=1e-9)


def test_lars_takes_the_plain_step_where_a_norm_is_zero():
    weight = nn.Parameter(torch.zeros(2, 2))
    optimizer = LARS([weight], lr=0.5, variant=LARS_VARIANTS["lars"])
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.full((2, 2), -0.5))
    weight.grad = torch.zeros(2, 2)
    optimizer.param_groups[0]["momentum"] = 0.0
    optimizer.step()
    assert torch.isfinite(weight).all()


def test_sgd_decays_every_parameter_and_leaves_frozen_ones_alone():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    module[0].bias.requires_grad = False
    optimizer = make_optimizer("sgd", module, lr=0.1, momentum=0.9, weight_decay=0.5)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5]
    assert sum(p.numel() for p in optimizer.param_groups[0]["params"]) == 4 + 2 + 2


def test_warmup_and_cosine_pass_through_the_known_points():
    known = {0: 0.0, 5: 0.015, 10: 0.03, 105: 0.015, 200: 0.0}
    for epoch, rate in known.items():
        assert warmup_cosine(epoch, peak=0.03, epochs=200, warmup_epochs=10) == pytest.approx(rate, abs=1e-17)
    for epoch in np.linspace(0, 199.9, 37):
        here = warmup_cosine(epoch, peak=0.4, epochs=200, warmup_epochs=10)
        assert here == pytest.approx(reference.warmup_cosine(epoch, 0.4, 10, 200), abs=1e-15)
    assert warmup_cosine(0, peak=0.3, epochs=1, warmup_epochs=0) == 0.3


def test_the_stepped_schedule_drops_at_120_and_160_of_200_epochs():
    known = {0: 0.03, 119.99: 0.03, 120: 0.003, 159.99: 0.003, 160: 0.0003, 199.99: 0.0003}
    for epoch, rate in known.items():
        assert warmup_step(epoch, peak=0.03, epochs=200, warmup_epochs=0) == pytest.approx(rate)
    assert warmup_step(2.5, peak=0.03, epochs=200, warmup_epochs=10) == pytest.approx(0.0075)


def test_the_key_momentum_goes_to_its_end_on_a_cosine():
    known = {0: 0.99, 0.25: 0.9914644661, 0.5: 0.995, 0.75: 0.9985355339, 1: 1.0}
    for progress, momentum in known.items():
        assert cosine_between(progress, start=0.99, end=1.0) == pytest.approx(momentum, abs=1e-10)
        assert cosine_between(progress, start=0.999, end=0.999) == pytest.approx(0.999, abs=1e-15)


def test_the_moco_head_has_one_hidden_layer_and_no_normalisation():
    head = mlp(512, 128, 128)
    assert [type(module) for module in head] == [nn.Linear, nn.ReLU, nn.Linear]
    assert [tuple(p.shape) for p in head.parameters()] == [(128, 512), (128,), (128, 128), (128,)]


def test_the_simclr_head_normalises_after_every_layer_and_the_last_has_gamma_only():
    torch.manual_seed(0)
    head = simclr_head(512, 128, layers=3)
    kinds = [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear, nn.BatchNorm1d]
    assert [type(module) for module in head] == kinds
    assert all(module.bias is None for module in head if isinstance(module, nn.Linear))
    assert [module.bias is None for module in head if isinstance(module, nn.BatchNorm1d)] == [False, False, True]
    assert head[0].weight.std().item() == pytest.approx(0.01, rel=0.01)
    rows = head(torch.randn(64, 512))
    assert rows.mean(0).abs().max().item() < 1e-5
    assert rows.var(0, unbiased=False).mean().item() == pytest.approx(1, abs=1e-2)
