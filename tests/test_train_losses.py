"""Losses against golden values, finite differences, and limits worked out by hand."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch

from train import losses
from train.losses import (
    anchor_entropy,
    dual_temperature,
    dual_temperature_range,
    in_batch_info_nce,
    info_nce,
    info_nce_range,
    mocov3,
    mocov3_range,
    nt_xent,
    nt_xent_range,
    pretext_accuracy,
    two_dictionaries,
)

GOLDEN = Path(__file__).parents[2] / "shared" / "reference" / "losses.json"
ROW, COLUMN = np.mgrid[1:5, 1:4].astype(float)
Q1 = np.sin(ROW + 2 * COLUMN)  # (4, 3), the worked example's inputs: no random numbers
Q2 = Q1 + 0.5 * np.cos(3 * ROW + COLUMN)
K1 = Q1 + 0.2 * np.sin(5 * ROW - 2 * COLUMN)
K2 = Q2 - 0.2 * np.cos(4 * ROW + 3 * COLUMN)
QUEUE = np.cos(0.7 * np.arange(1, 6)[:, None] * np.arange(1, 4))  # (5, 3)
TEXTBOOK = np.array([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in (0, 120, 30, 150)])  # (4, 2)


def grad_of(loss, *rows: np.ndarray, dtype=torch.float64, **numbers) -> tuple[float, list[np.ndarray]]:
    tensors = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in rows]
    value = loss(*tensors, **numbers)
    return value.item(), [g.numpy() for g in torch.autograd.grad(value, tensors)]


def simco(q: torch.Tensor, k: torch.Tensor, **taus: float) -> torch.Tensor:
    return (dual_temperature(q, k, **taus) + dual_temperature(k, q, **taus)) / 2


def simmoco_plus(q1: torch.Tensor, k1: torch.Tensor, q2: torch.Tensor, k2: torch.Tensor, **taus: float) -> torch.Tensor:
    return (dual_temperature(q1, k2, **taus) + dual_temperature(q2, k1, **taus)) / 2


def test_nt_xent_of_the_textbook_views_is_the_hand_computed_value():
    for tau, value in {0.5: 0.154374279211, 1.0: 0.437677173742, 0.1: 0.000087845501}.items():
        assert nt_xent(torch.tensor(TEXTBOOK), temperature=tau).item() == pytest.approx(value, abs=1e-12)
    _, (gradient,) = grad_of(nt_xent, TEXTBOOK, temperature=0.5)
    assert gradient[0] == pytest.approx([0, -0.008019769902], abs=1e-12)


def test_golden_values_of_the_worked_example():
    z = np.concatenate([Q1, Q2])
    assert nt_xent(torch.tensor(z), temperature=0.2).item() == pytest.approx(0.493938785925, abs=1e-11)
    taus = {"intra_temperature": 0.1, "inter_temperature": 1.0}
    q, k = torch.tensor(Q1), torch.tensor(Q2)
    assert simco(q, k, **taus).item() == pytest.approx(0.611821987649, abs=1e-11)
    q1, q2, k1, k2, queue = (torch.tensor(x) for x in (Q1, Q2, K1, K2, QUEUE))
    assert info_nce(q1, k2, queue, temperature=0.2).item() == pytest.approx(0.657953909293, abs=1e-11)
    assert mocov3(q1, k1, q2, k2, temperature=0.2).item() == pytest.approx(0.266398205613, abs=1e-11)
    assert dual_temperature(q1, k2, **taus).item() == pytest.approx(0.657509157812, abs=1e-11)
    assert simmoco_plus(q1, k1, q2, k2, **taus).item() == pytest.approx(0.654712951482, abs=1e-11)
    infinite = dual_temperature(q1, k2, intra_temperature=0.1, inter_temperature=math.inf)
    assert infinite.item() == pytest.approx(0.839776363739, abs=1e-9)


ONE, TWO = {"temperature": "tau"}, {"intra_temperature": "tau_a", "inter_temperature": "tau_b"}
BOTH_VIEWS = ("q1", "k1", "q2", "k2")
IN_THE_FILE = {  # loss, its rows, its numbers
    "nt_xent_textbook": (nt_xent, ("z",), ONE),
    "nt_xent": (nt_xent, ("z",), ONE),
    "moco": (info_nce, ("q", "k", "queue_rows"), ONE),
    "mocov3": (mocov3, BOTH_VIEWS, ONE),
    "simmoco": (dual_temperature, ("q", "k"), TWO),
    "simmoco_plus": (simmoco_plus, BOTH_VIEWS, TWO),
    "simco": (simco, ("q", "k"), TWO),
    "simco_textbook": (simco, ("q", "k"), TWO),
}


def golden(name: str) -> dict[str, Any]:
    if not GOLDEN.is_file():
        pytest.skip("the reference file is not on this machine; the worked example above covers the same equations")
    return json.loads(GOLDEN.read_text())[name]


def far(gradient: np.ndarray, expected: np.ndarray) -> float:
    """The distance of two gradients, as a share of the expected one."""
    return np.linalg.norm(gradient - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", IN_THE_FILE)
def test_losses_and_gradients_agree_with_the_reference_file(name: str, dtype: torch.dtype):
    case, (loss, rows, numbers) = golden(name), IN_THE_FILE[name]
    within, gradient_within = (1e-9, 1e-9) if dtype == torch.float64 else (1e-6, 5e-6)
    if name == "simco_textbook":  # the file's gradient subtracts 1 - p at p = 1 - 3e-8: good to 2e-9 (50 digits say)
        gradient_within = max(gradient_within, 1e-8)
    given = {number: case[key] for number, key in numbers.items()}
    value, gradients = grad_of(loss, *(np.array(case[row]) for row in rows), dtype=dtype, **given)
    assert value == pytest.approx(case["loss"], rel=within)
    expected = [case.get(f"grad_{row}") for row in rows]  # none of keys, which get no gradient
    known = [(mine, np.array(its)) for mine, its in zip(gradients, expected, strict=True) if its is not None]
    assert known
    assert all(far(mine, its) <= gradient_within for mine, its in known)


def test_the_gradient_of_simmoco_is_equation_7s_over_tau_alpha():
    case = golden("simmoco")
    taus = {"intra_temperature": case["tau_a"], "inter_temperature": case["tau_b"]}
    _, (gradient, _) = grad_of(dual_temperature, np.array(case["q"]), np.array(case["k"]), **taus)
    assert far(gradient, np.array(case["grad_q_eq7"]) / case["tau_a"]) <= 1e-9


def test_gradients_equal_finite_differences_in_float64():
    z = np.random.default_rng(0).normal(size=(10, 7))
    _, (gradient,) = grad_of(nt_xent, z, temperature=0.3)
    assert gradient == pytest.approx(reference.gradient(lambda x: reference.nt_xent(x, 0.3), z), abs=1e-8)

    q, k = z[:5], z[5:]
    _, gradients = grad_of(dual_temperature, q, k, intra_temperature=0.2, inter_temperature=0.9)
    frozen = reference.dual_temperature_weights(q, k, 0.2, 0.9)  # the stop-gradient of equation 9
    over_q = reference.gradient(lambda x: reference.dual_temperature(x, k, 0.2, 0.9, frozen), q)
    over_k = reference.gradient(lambda x: reference.dual_temperature(q, x, 0.2, 0.9, frozen), k)
    assert gradients[0] == pytest.approx(over_q, abs=1e-8)
    assert gradients[1] == pytest.approx(over_k, abs=1e-8)
    through_weights = reference.gradient(lambda x: reference.dual_temperature(x, k, 0.2, 0.9), q)
    assert np.abs(through_weights - over_q).max() > 1e-3  # so a forgotten stop-gradient would show

    queue = np.random.default_rng(1).normal(size=(6, 7))
    _, (gradient, *_) = grad_of(info_nce, q, k, queue, temperature=0.3)
    assert gradient == pytest.approx(reference.gradient(lambda x: reference.info_nce(x, k, queue, 0.3), q), abs=1e-8)
    _, (gradient, *_) = grad_of(mocov3, q, k, k, q, temperature=0.3)
    assert gradient == pytest.approx(reference.gradient(lambda x: reference.mocov3(x, k, k, q, 0.3), q), abs=1e-8)


def info_nce_by_torch(q: torch.Tensor, k: torch.Tensor, temperature: float) -> float:
    logits = torch.nn.functional.normalize(q, dim=1) @ torch.nn.functional.normalize(k, dim=1).T / temperature
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(q))).item()


def test_equal_temperatures_give_in_batch_info_nce_and_an_infinite_one_equal_weights():
    q, k = torch.tensor(Q1), torch.tensor(Q2)
    equal = dual_temperature(q, k, intra_temperature=0.1, inter_temperature=0.1).item()
    assert equal == pytest.approx(info_nce_by_torch(q, k, 0.1))
    _, dual = grad_of(dual_temperature, Q1, Q2, intra_temperature=0.1, inter_temperature=0.1)
    _, plain = grad_of(in_batch_info_nce, Q1, Q2, temperature=0.1)  # end-to-end keys: the gradient reaches both
    assert all(a == pytest.approx(b, abs=1e-12) and np.abs(a).max() > 0.01 for a, b in zip(dual, plain, strict=True))
    infinite = dual_temperature(q, k, intra_temperature=0.1, inter_temperature=math.inf).item()
    weights = (3 / 4) / (1 - reference.positive_probability(Q1, Q2, 0.1))  # W_beta = (N - 1) / N
    assert infinite == pytest.approx((-weights * np.log(reference.positive_probability(Q1, Q2, 0.1))).mean())
    huge = dual_temperature(q, k, intra_temperature=0.1, inter_temperature=1e9).item()
    assert infinite == pytest.approx(huge, rel=1e-6)
    assert in_batch_info_nce(q, k, temperature=0.1).item() == pytest.approx(info_nce_by_torch(q, k, 0.1))
    both = (infinite + dual_temperature(k, q, intra_temperature=0.1, inter_temperature=math.inf).item()) / 2
    assert both == pytest.approx(0.801744145451, abs=1e-9)


def test_collapsed_rows_stand_at_the_start_of_the_range():
    rows = torch.ones(6, 5, dtype=torch.float64)
    start, _ = nt_xent_range(3, temperature=0.2)
    assert nt_xent(rows, temperature=0.2).item() == pytest.approx(start)
    assert start == pytest.approx(math.log(5))
    start, _ = dual_temperature_range(6, intra_temperature=0.1, inter_temperature=1.0)
    assert dual_temperature(rows, rows, intra_temperature=0.1, inter_temperature=1.0).item() == pytest.approx(start)
    assert start == pytest.approx(math.log(6))
    start, _ = info_nce_range(9, temperature=0.2)
    assert info_nce(rows, rows, rows[[0] * 9], temperature=0.2).item() == pytest.approx(start)
    assert info_nce_range(65536, temperature=0.07)[0] == pytest.approx(11.09, abs=0.001)
    start, _ = mocov3_range(6, temperature=0.2)
    assert mocov3(rows, rows, rows, rows, temperature=0.2).item() == pytest.approx(start)
    assert mocov3_range(364, temperature=1.0)[0] == pytest.approx(23.589, abs=0.001)  # 4 tau log N


def test_a_simplex_stands_at_the_floor_of_the_range_and_nothing_below_it():
    simplex = torch.eye(4, dtype=torch.float64) - 0.25
    _, floor = nt_xent_range(4, temperature=0.5)
    assert floor == pytest.approx(0.348471885802, abs=1e-12)
    assert nt_xent(torch.cat([simplex, simplex]), temperature=0.5).item() == pytest.approx(floor)
    taus = {"intra_temperature": 0.1, "inter_temperature": 1.0}
    _, floor = dual_temperature_range(4, **taus)
    assert dual_temperature(simplex, simplex, **taus).item() == pytest.approx(floor)
    _, floor_v3 = mocov3_range(4, temperature=0.2)
    assert mocov3(simplex, simplex, simplex, simplex, temperature=0.2).item() == pytest.approx(floor_v3)
    _, floor_queue = info_nce_range(3, temperature=0.2)
    opposite = info_nce(simplex[:1], simplex[:1], -simplex[:1].repeat(3, 1), temperature=0.2)
    assert opposite.item() == pytest.approx(floor_queue)
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, 0.01, 0.1, 1.0):
        near = simplex + scale * torch.randn(4, 4, generator=generator, dtype=torch.float64)
        assert dual_temperature(near, near, **taus).item() >= floor - 1e-12
        assert mocov3(near, simplex, simplex, near, temperature=0.2).item() >= floor_v3 - 1e-12


def test_losses_ignore_scale_and_order_and_nt_xent_the_order_of_views():
    q, k = torch.tensor(Q1), torch.tensor(Q2)
    taus = {"intra_temperature": 0.1, "inter_temperature": 1.0}
    shuffled = [2, 0, 3, 1]
    value = dual_temperature(q, k, **taus).item()
    assert dual_temperature(7 * q, k / 3, **taus).item() == pytest.approx(value, rel=1e-12)
    assert dual_temperature(q[shuffled], k[shuffled], **taus).item() == pytest.approx(value, rel=1e-12)
    forth = nt_xent(torch.cat([q, k]), temperature=0.2).item()
    assert nt_xent(torch.cat([k, q]), temperature=0.2).item() == pytest.approx(forth, rel=1e-12)


def test_easy_anchors_keep_their_digits_in_float32():
    """At N = 256 and tau_alpha = 0.04 the textbook weight 1 - p rounds to 0 and the loss to NaN; log space does not."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(256, 128))
    k = q + 0.3 * rng.normal(size=q.shape)
    taus = {"intra_temperature": 0.04, "inter_temperature": 1.0}
    value, (gradient, _) = grad_of(dual_temperature, q, k, dtype=torch.float32, **taus)
    exact, (exact_gradient, _) = grad_of(dual_temperature, q, k, **taus)
    assert value == pytest.approx(exact, rel=1e-6)
    assert np.linalg.norm(gradient - exact_gradient) <= 1e-5 * np.linalg.norm(exact_gradient)


@pytest.mark.parametrize("tau", [0.1, 0.025, 0.022, 0.02, 0.005, 0.001])
def test_two_opposite_images_have_the_loss_and_gradient_of_the_limit_at_any_temperature_in_float32(tau):
    """q = k = (1, 0), (-1, 0): W_beta = sigmoid(-2 / tau_beta) = 0.1192, while exp(-2 / tau_alpha) underflows."""
    pair = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    loss = dual_temperature(pair, pair, intra_temperature=tau, inter_temperature=1.0)
    ratio = math.log1p(math.exp(-2 / tau)) * (1 + math.exp(2 / tau)) if tau > 0.01 else 1.0
    assert loss.item() == pytest.approx(ratio / (1 + math.exp(2)), rel=1e-6)
    q = (pair + torch.tensor([[0.0, 0.1], [0.0, 0.1]])).requires_grad_()
    dual_temperature(q, pair, intra_temperature=tau, inter_temperature=1.0).backward()
    assert q.grad.isfinite().all()
    assert q.grad.abs().max() > 1e-3


@pytest.mark.parametrize("tau", [0.022, 0.01, 0.001])
@pytest.mark.parametrize("inter", [1.0, 0.05, math.inf])
def test_small_temperatures_have_the_gradient_of_float64_in_float32(tau, inter):
    rng = np.random.default_rng(1)
    q = rng.normal(size=(32, 16))
    k, dictionary = q + 0.2 * rng.normal(size=q.shape), rng.normal(size=(24, 16))
    taus = {"intra_temperature": tau, "inter_temperature": inter}

    def two(q: torch.Tensor, k: torch.Tensor, vector: torch.Tensor, **taus: float) -> torch.Tensor:
        return two_dictionaries(q, k, vector, vector.detach(), **taus)

    for loss, rows in ((dual_temperature, (q, k)), (two, (q, k, dictionary))):
        value, (gradient, *_) = grad_of(loss, *rows, dtype=torch.float32, **taus)
        exact, (exact_gradient, *_) = grad_of(loss, *rows, **taus)
        assert value == pytest.approx(exact, rel=1e-4)
        assert np.linalg.norm(gradient - exact_gradient) <= 1e-3 * np.linalg.norm(exact_gradient)


def test_autocast_does_not_reach_the_loss():
    q, k = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)), torch.randn(16, 8)
    taus = {"intra_temperature": 0.1, "inter_temperature": 1.0}
    half = q.bfloat16()

    def losses():
        yield dual_temperature(q, k, **taus)
        yield nt_xent(torch.cat([q, k]), temperature=0.1)
        yield info_nce(q, k, k, temperature=0.1)
        yield mocov3(half, k, q, half, temperature=0.1)

    plain = list(losses())
    with torch.autocast("cpu", torch.bfloat16):
        cast = list(losses())
    assert all(torch.equal(a, b) and b.dtype == torch.float32 for a, b in zip(plain, cast, strict=True))


def test_batches_without_negatives_are_refused():
    with pytest.raises(ValueError, match="at least 2 rows are needed"):
        dual_temperature(torch.ones(1, 3), torch.ones(1, 3), intra_temperature=0.1, inter_temperature=1.0)
    with pytest.raises(ValueError, match="at least 2 rows are needed"):
        mocov3(*[torch.ones(1, 3)] * 4, temperature=0.1)
    for rows in (2, 5):
        with pytest.raises(ValueError, match="two views of at least 2 images"):
            nt_xent(torch.ones(rows, 3), temperature=0.1)


def test_ranges_of_tiny_temperatures_are_finite_and_meet_the_limit():
    """softplus / sigmoid tends to 1, so the floor tends to W_beta."""
    for tau in (0.001, 0.02, 0.0251):
        start, floor = dual_temperature_range(256, intra_temperature=tau, inter_temperature=1.0)
        assert start == pytest.approx(math.log(256))
        assert floor == pytest.approx(1 / (1 + math.exp(256 / 255 - math.log(255))), rel=1e-9)
    assert dual_temperature_range(256, intra_temperature=0.1, inter_temperature=0.001)[1] == pytest.approx(
        0, abs=1e-300
    )


def test_pretext_accuracy_is_the_share_of_positives_before_all_negatives_and_ties_lose():
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    k = torch.tensor([[2.0, 0.1], [0.0, 3.0], [0.0, 1.0]])  # the third query's own key is not nearer than the second's
    assert pretext_accuracy(q, k).item() == pytest.approx(1 / 3)  # the second's ties with the third image's key
    assert pretext_accuracy(q, k, torch.tensor([[0.5, 1.0]])).item() == 1
    assert pretext_accuracy(torch.ones(4, 3), torch.ones(4, 3)).item() == 0
    rows = torch.randn(2000, 16, generator=torch.Generator().manual_seed(0))
    others = torch.randn(2000 + 9, 16, generator=torch.Generator().manual_seed(1))
    assert pretext_accuracy(rows, others[:2000], others[2000:]).item() == pytest.approx(1 / 10, abs=0.03)  # chance


def with_scalar_keys(keys: np.ndarray, **temperatures: float):
    """`two_dictionaries` as a function of q, k and the vector's keys; no gradient ever reaches the scalar's."""
    return lambda q, k, vector: two_dictionaries(q, k, vector, torch.tensor(keys), **temperatures)


def test_two_equal_dictionaries_are_info_nce():
    equal = with_scalar_keys(QUEUE, intra_temperature=0.2, inter_temperature=0.2)
    value, (gradient, *_) = grad_of(equal, Q1, K2, QUEUE)
    expected, (theirs, *_) = grad_of(info_nce, Q1, K2, QUEUE, temperature=0.2)
    assert value == pytest.approx(expected, rel=1e-12)
    assert gradient == pytest.approx(theirs, abs=1e-12)


def test_the_gradient_of_two_dictionaries_is_equation_7s_over_tau_alpha():
    loss = with_scalar_keys(QUEUE[1:], intra_temperature=0.1, inter_temperature=0.5)
    _, (gradient, *_) = grad_of(loss, Q1, K2, QUEUE[:2])
    at_unit_rows = reference.two_dictionaries(Q1, K2, QUEUE[:2], QUEUE[1:], 0.1, 0.5)
    q, length = reference.unit(Q1), np.linalg.norm(Q1, axis=1, keepdims=True)
    tangent = (at_unit_rows - (at_unit_rows * q).sum(1, keepdims=True) * q) / length  # through the normalisation
    assert gradient == pytest.approx(tangent, abs=1e-12)


def test_the_weight_of_a_dictionary_at_infinite_temperature_is_k_of_k_plus_1():
    value, _ = grad_of(with_scalar_keys(QUEUE[:3], intra_temperature=0.1, inter_temperature=math.inf), Q1, K2, QUEUE)
    p = [reference.info_nce(Q1[i : i + 1], K2[i : i + 1], QUEUE, 0.1) for i in range(4)]  # -log p_+
    assert value == pytest.approx(sum(3 / 4 / (1 - math.exp(-x)) * x for x in p) / 4, rel=1e-9)


def test_the_entropy_of_equal_anchors_is_log_n_and_of_one_hard_among_easy_ones_near_0():
    alike = torch.ones(8, 3)
    assert anchor_entropy(alike, alike, alike, temperature=0.1).item() == pytest.approx(math.log(8))
    q = torch.eye(3).double()
    k = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, -1]]).double()  # the third anchor's positive is opposite
    weights = [5 / (5 + math.exp(1 / 0.1)), 5 / (5 + math.exp(1 / 0.1)), 5 / (5 + math.exp(-1 / 0.1))]
    shares = [w / sum(weights) for w in weights]
    negatives = torch.tensor([[0.0, 0, 0]] * 5).double()  # at right angles to all
    value = anchor_entropy(q, k, negatives, temperature=0.1).item()
    assert value == pytest.approx(-sum(r * math.log(r) for r in shares), rel=1e-9)
    assert value < 0.01


@pytest.mark.parametrize("rows", [7, 16, 40])
def test_a_batch_in_blocks_has_the_loss_and_the_gradient_of_the_whole_one(rows, monkeypatch):
    q, k = np.random.default_rng(0).standard_normal((2, 40, 5))
    taus = {"intra_temperature": 0.1, "inter_temperature": 1.0}
    cases = [(nt_xent, (q,), {"temperature": 0.2}), (dual_temperature, (q, k), taus),
             (in_batch_info_nce, (q, k), {"temperature": 0.2})]  # fmt: skip
    whole = [grad_of(loss, *given, **numbers) for loss, given, numbers in cases]
    monkeypatch.setattr(losses, "BLOCK", rows)
    for (loss, given, numbers), (value, gradients) in zip(cases, whole, strict=True):
        again, block_gradients = grad_of(loss, *given, **numbers)
        assert again == pytest.approx(value, abs=1e-13)
        for mine, expected in zip(block_gradients, gradients, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-13)


COPIES = """
import resource, sys, torch
from train import losses

def run(n):
    rows = torch.randn(2, n, 128, generator=torch.Generator().manual_seed(0)).requires_grad_()
    taus = {"intra_temperature": 0.1, "inter_temperature": 1.0}
    loss = losses.nt_xent(rows.flatten(0, 1), temperature=0.1) if side == 2 else losses.dual_temperature(*rows, **taus)
    loss.backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

side, batch = int(sys.argv[1]), int(sys.argv[2])
before = run(losses.BLOCK + 1)  # all code is loaded
print((run(batch) - before) / (4 * (side * batch) ** 2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("side", [1, 2], ids=["dual temperature", "NT-Xent"])
def test_at_8192_images_the_loss_and_its_gradient_need_less_than_3_copies_of_the_logits(side):
    """Peak resident memory of a process, in matrices of (8192, 8192), or (16384, 16384) for NT-Xent's 2B rows."""
    words = [sys.executable, "-c", COPIES, str(side), "8192"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    assert float(done.stdout) < 1.5  # less than half of what is allowed
