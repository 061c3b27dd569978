"""What each paper's algorithm must hold, on a tiny encoder without batch normalisation."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from train.batchnorm import hashes
from train.ema import ema_copy, ema_update
from train.gradcache import cached_backward
from train.key_queue import KeyQueue
from train.method import Batch, Step, loss_of, map_tensors
from train.methods.memory_bank import MemoryBank
from train.methods.moco import MoCo
from train.methods.mocov3 import MoCoV3
from train.recipe import find_recipe, recipes
from zoo.errors import BadNumber
from zoo.model.encoder import Encoder
from zoo.names import parse_name

SMALL = {"queue_size": 12, "negatives": 12, "hidden": 16, "projection": 8}
METHODS = {parse_name(name).method: name for name in reversed(recipes())}
WITH_KEYS = ("mocov1", "mocov2", "mocov2plus", "mocov3", "simmoco", "simmocoplus")


class Rows(nn.Module):
    """A backbone of one layer."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 4 * 4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x.flatten(1)))


def without_norm(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        norm = isinstance(child, nn.modules.batchnorm._BatchNorm)
        setattr(module, name, nn.Identity() if norm else without_norm(child))
    return module


def build(method: str, **numbers):
    """The first recipe of `method` with a small queue and narrow heads, in float64, without batch normalisation."""
    torch.manual_seed(0)
    recipe = find_recipe(METHODS[method])
    recipe = replace(recipe, **{key: value for key, value in (SMALL | numbers).items() if getattr(recipe, key, 0)})
    method = recipe.method(Encoder(Rows(), mean=(0.5,) * 3, std=(0.2,) * 3, image_size=4))
    method.prepare(20)
    return without_norm(method).double()


def batch_of(views, progress: float = 0.5) -> Batch:
    """The images 3, 4, ... of the data set."""
    return Batch(tuple(views), torch.arange(3, 3 + len(views[0])), progress)


def step_of(method, views) -> Step:
    return loss_of(method, method.project(tuple(views)), batch_of(views))


@pytest.fixture
def views() -> torch.Tensor:
    return torch.rand(2, 8, 3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def parameters_of(method) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in method.parameters()])


# --- queue ------------------------------------------------------------------------------------------------------------


def test_the_queue_wraps_at_any_size():
    queue = KeyQueue(5, 2)
    queue.oldest.fill_(3)
    before = queue.keys.clone()
    keys = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [0.0, -4.0]])
    queue.enqueue(keys)
    assert queue.oldest.item() == 2
    assert torch.equal(queue.keys[[3, 4, 0, 1]], F.normalize(keys, dim=1))
    assert torch.equal(queue.keys[2], before[2])


@pytest.mark.parametrize(("size", "batch"), [(1, 1), (4, 4), (5, 3), (3, 7), (7, 3), (4, 9)])
def test_the_queue_holds_the_last_keys_in_the_order_they_came(size: int, batch: int):
    queue = KeyQueue(size, 3)
    stream = torch.randn(5 * batch, 3, generator=torch.Generator().manual_seed(0))
    for keys in stream.split(batch):
        queue.enqueue(keys)
    oldest_first = queue.keys.roll(-int(queue.oldest), dims=0)
    assert torch.allclose(oldest_first[-5 * batch :], F.normalize(stream, dim=1)[-size:])


def test_the_queue_starts_as_unit_rows_and_is_in_the_checkpoint():
    queue = KeyQueue(6, 4)
    assert torch.allclose(queue.keys.norm(dim=1), torch.ones(6))
    assert len({tuple(key.tolist()) for key in queue.keys}) == 6
    assert set(queue.state_dict()) == {"keys", "oldest"}
    with pytest.raises(ValueError, match="queue_size = 0; at least 1 key"):
        KeyQueue(0, 4)


# --- MoCo -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mocov1", "mocov2", "mocov2plus"])
def test_the_positive_is_never_in_the_queue_and_keys_enter_once_after_the_loss(name: str, views: torch.Tensor):
    method: MoCo = build(name)
    before = [queue.keys.clone() for queue in method.queues]
    step = step_of(method, views)
    assert len(step.keys) == len(method.queues) == (2 if name == "mocov2plus" else 1)
    for queue, old in zip(method.queues, before, strict=True):
        assert torch.equal(queue.keys, old)  # both directions have been computed, nothing has moved
    for queue, keys in zip(method.queues, step.keys, strict=True):
        assert (F.normalize(keys, dim=1) @ queue.keys.T).max() < 1 - 1e-6
    method.after_step(step, 0.5)
    for queue, keys, old in zip(method.queues, step.keys, before, strict=True):
        assert torch.allclose(queue.keys[:8], F.normalize(keys, dim=1))
        assert torch.equal(queue.keys[8:], old[8:])
        assert queue.oldest.item() == 8


def test_mocov2plus_is_the_mean_of_both_directions_each_with_its_own_views_queue(views: torch.Tensor):
    method: MoCo = build("mocov2plus")
    torch.nn.init.normal_(next(method.key_encoder.parameters()))
    (q1, k2), (q2, k1) = pairs = method.project(tuple(views))
    directions = []
    for q, k, queue in ((q1, k2, method.queues[0]), (q2, k1, method.queues[1])):
        q, k = F.normalize(q, dim=1), F.normalize(k, dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.keys.T], dim=1) / method.temperature
        directions.append(F.cross_entropy(logits, torch.zeros(8, dtype=torch.int64)))
    assert method.loss(pairs, batch_of(views)).loss.item() == pytest.approx((sum(directions) / 2).item(), rel=1e-7)
    assert torch.equal(k1, method.key_encoder.network(views[0]))  # no batch normalization here: shuffling has no effect
    assert not torch.allclose(q1, k1)


def test_version_1_projects_by_one_linear_map_and_version_2_by_two():
    assert [type(module) for module in build("mocov1").projector] == [nn.Linear]
    assert [type(module) for module in build("mocov2").projector] == [nn.Linear, nn.ReLU, nn.Linear]


# --- momentum keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_KEYS)
def test_no_gradient_reaches_the_keys(name: str, views: torch.Tensor):
    method = build(name)
    pairs = method.project(tuple(views))
    assert {(pair.query.requires_grad, pair.key.requires_grad) for pair in pairs} == {(True, False)}
    method.loss(pairs, batch_of(views)).loss.backward()
    assert all(p.grad is None for p in method.key_encoder.parameters())
    assert all(p.grad is not None for p in [*method.encoder.parameters(), *method.projector.parameters()])


@pytest.mark.parametrize("name", WITH_KEYS)
def test_the_key_encoder_starts_as_the_query_encoder_and_follows_by_momentum(name: str, views: torch.Tensor):
    method = build(name)
    queries = [*method.encoder.parameters(), *method.projector.parameters()]
    keys = list(method.key_encoder.parameters())
    assert all(torch.equal(k, q) for k, q in zip(keys, queries, strict=True))
    with torch.no_grad():
        for q in queries:
            q += 1
    method.after_step(step_of(method, views), 0.0)
    start = getattr(find_recipe(METHODS[name]), "key_momentum")  # noqa: B009  (not every recipe has it)
    assert all(torch.allclose(k, q - start) for k, q in zip(keys, queries, strict=True))


def test_momentum_moves_parameters_and_leaves_buffers_alone():
    query = nn.BatchNorm1d(2)
    key = ema_copy(query)
    nn.init.constant_(query.weight, 3.0)
    query.running_mean.fill_(5.0)
    ema_update(key, query, 0.9)
    assert key.weight.tolist() == pytest.approx([1.2, 1.2])
    assert key.running_mean.tolist() == [0, 0]
    assert not any(p.requires_grad for p in key.parameters())
    assert all(p.requires_grad for p in query.parameters())


def test_the_momentum_of_mocov3_ends_at_one_where_keys_stand_still(views: torch.Tensor):
    method: MoCoV3 = build("mocov3")
    with torch.no_grad():
        for p in method.encoder.parameters():
            p += 1
    before = [k.clone() for k in method.key_encoder.parameters()]
    method.after_step(step_of(method, views), 1.0)
    assert all(torch.allclose(k, old) for k, old in zip(method.key_encoder.parameters(), before, strict=True))


def test_simmoco_sees_the_other_images_of_the_other_view_alone(views: torch.Tensor):
    """N - 1 negatives: the loss does not change with the keys of view 1, and N = 2 leaves one negative."""
    method = build("simmoco")
    ((q, k),) = method.project((views[0, :2], views[1, :2]))
    q, k = F.normalize(q, dim=1), F.normalize(k, dim=1)
    alpha, beta = 0.1, 1.0
    total = 0.0
    for i, j in ((0, 1), (1, 0)):
        gap = (q[i] @ k[j] - q[i] @ k[i]).item()
        weight = (1 - 1 / (1 + math.exp(gap / beta))) / (1 - 1 / (1 + math.exp(gap / alpha)))
        total += weight * math.log1p(math.exp(gap / alpha)) / 2
    assert step_of(method, views[:, :2]).loss.item() == pytest.approx(total, rel=1e-9)


def test_simmocoplus_is_the_mean_of_simmoco_forth_and_back(views: torch.Tensor):
    one, both = build("simmoco"), build("simmocoplus")
    forth, back = step_of(one, views).loss, step_of(one, views.flip(0)).loss
    assert step_of(both, views).loss.item() == pytest.approx(((forth + back) / 2).item(), rel=1e-12)


# --- MoCo v3 ----------------------------------------------------------------------------------------------------------


def test_the_heads_of_mocov3_differ_between_resnets_and_vits():
    recipe = replace(find_recipe("mocov3-vitt4-cifar10"), hidden=16, projection=8)
    from zoo.model.encoder import new_encoder

    resnet = replace(find_recipe("mocov3-r18-cifar10"), hidden=16, projection=8).method(new_encoder("simco-r20-digits"))
    vit = recipe.method(new_encoder("mocov3-vitt4-cifar10"))

    def shape(head: nn.Module) -> list[object]:
        return [m.out_features if isinstance(m, nn.Linear) else type(m).__name__[-9:] for m in head]

    norm = "BatchNorm"
    assert shape(resnet.projector) == [16, norm, "ReLU", 8, norm]
    assert shape(resnet.predictor) == [16, norm, "ReLU", 8]
    assert shape(vit.projector) == [16, norm, "ReLU", 16, norm, "ReLU", 8, norm]
    assert shape(vit.predictor) == [16, norm, "ReLU", 8, norm]
    for head in (resnet.projector, vit.projector, vit.predictor):
        assert head[-1].weight is None
        assert head[-1].bias is None
        assert all(m.bias is None for m in head if isinstance(m, nn.Linear))


def test_mocov3_freezes_the_patches_and_positions_of_a_vit_and_zeroes_the_branches_of_a_resnet():
    from timm.models.resnet import BasicBlock

    from zoo.model.encoder import new_encoder

    vit = replace(find_recipe("mocov3-vitt4-cifar10"), hidden=16).method(new_encoder("mocov3-vitt4-cifar10"))
    frozen = [name for name, p in vit.encoder.named_parameters() if not p.requires_grad]
    assert frozen == ["backbone.pos_embed", "backbone.patch_embed.proj.weight", "backbone.patch_embed.proj.bias"]
    for name, zero in {"mocov3-r50-in1k": True, "mocov3-r18-cifar10": False, "simclr-r18-cifar10": True}.items():
        recipe = find_recipe(name)
        method = replace(recipe, hidden=16).method(new_encoder("simco-r20-digits")) if hasattr(recipe, "hidden") else 0
        scales = [m.bn2.weight.abs().max().item() for m in method.encoder.modules() if isinstance(m, BasicBlock)]
        assert scales == [0.0 if zero else 1.0] * 9, name


# --- memory bank ------------------------------------------------------------------------------------------------------


def draws_without(method: MemoryBank, images: range) -> int:
    """The first draw in which none of `images` comes."""
    for draw in range(10_000):
        if not set((hashes(method.negatives, torch.tensor(draw)) % len(method.bank)).tolist()) & set(images):
            return draw
    raise AssertionError


def test_the_positive_of_the_memory_bank_is_the_images_own_row_and_its_negatives_are_drawn_rows(views: torch.Tensor):
    method: MemoryBank = build("membank")
    (q,) = method.project(tuple(views))
    drawn = (hashes(12, torch.tensor(0)) % 20).tolist()
    q, bank = F.normalize(q, dim=1), method.bank
    logits = torch.stack([torch.stack([q[i] @ bank[3 + i], *(q[i] @ bank[j] for j in drawn)]) for i in range(8)])
    expected = F.cross_entropy(logits / method.temperature, torch.zeros(8, dtype=torch.int64))
    assert step_of(method, views).loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_row_of_the_memory_bank_follows_its_image_after_the_loss_and_other_rows_stay(views: torch.Tensor):
    method: MemoryBank = build("membank")
    before = method.bank.clone()
    step = step_of(method, views)
    assert torch.equal(method.bank, before)
    assert not step.keys[0].requires_grad
    method.after_step(step, 0.5)
    expected = F.normalize(before[3:11] + F.normalize(step.keys[0], dim=1), dim=1)  # m = 0.5
    assert torch.allclose(method.bank[3:11], expected)
    assert torch.equal(method.bank[:3], before[:3])
    assert torch.equal(method.bank[11:], before[11:])
    assert method.draws.item() == 1


def test_negatives_of_the_memory_bank_are_spread_evenly_and_differ_from_step_to_step():
    counts = torch.zeros(20)
    seen = set()
    for draw in range(1000):
        drawn = hashes(12, torch.tensor(draw)) % 20
        seen.add(tuple(drawn.tolist()))
        counts += torch.bincount(drawn, minlength=20)
    assert len(seen) == 1000
    assert ((counts - 600).square() / 600).sum().item() < 43.8  # chi-square, 19 degrees: 99.9 % of fair draws pass


def test_hashes_of_a_bank_on_any_scale_stay_in_range():
    drawn = hashes(65536, torch.tensor(10**6)) % 1_281_167
    assert 0 <= drawn.min() < 1000
    assert 1_280_000 < drawn.max() < 1_281_167


# --- every method -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_gradients_in_chunks_are_those_of_the_whole_batch(name: str, views: torch.Tensor):
    method = build(name)
    loss = step_of(method, views).loss
    loss.backward()
    whole = {key: p.grad.clone() for key, p in method.named_parameters() if p.requires_grad}
    for chunk in (1, 2, 4, 8):
        method.zero_grad()
        if getattr(getattr(method, "key_encoder", None), "shuffle", None):
            method.key_encoder.shuffle.calls.zero_()
        step = cached_backward(method, batch_of(views), chunk=chunk)
        assert step.loss.item() == pytest.approx(loss.item(), rel=1e-12)
        assert not step.loss.requires_grad
        for key, p in method.named_parameters():
            if p.requires_grad:
                assert torch.allclose(p.grad, whole[key], atol=1e-12), (key, chunk)
            else:
                assert p.grad is None
    with pytest.raises(BadNumber, match="chunk = 3 does not divide the 8 images"):
        cached_backward(method, batch_of(views), chunk=3)


def test_chunks_move_running_statistics_once_and_normalise_each_chunk():
    torch.manual_seed(0)
    recipe = replace(find_recipe("simclr-r18-cifar10"), projection=8)
    encoder = Encoder(Rows(), mean=(0.5,) * 3, std=(0.2,) * 3, image_size=4)
    method = recipe.method(encoder)
    views = torch.rand(2, 8, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    cached_backward(method, batch_of(views), chunk=4)
    norm = method.projector[1]
    assert norm.num_batches_tracked.item() == 2
    means = [
        method.projector[0](encoder(torch.cat([views[0, part], views[1, part]]))).mean(0)
        for part in (slice(0, 4), slice(4, 8))
    ]
    assert torch.allclose(norm.running_mean, 0.09 * means[0] + 0.1 * means[1], atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_collapsed_rows_stand_at_the_start_of_the_range_and_no_rows_below_its_floor(name: str, views: torch.Tensor):
    method = build(name)
    start, floor = method.loss_range(8)
    projections = method.project(tuple(views))
    dictionaries = [queue.keys for queue in getattr(method, "queues", ())] + [getattr(method, "bank", torch.ones(0))]
    for dictionary in dictionaries:
        dictionary.fill_(1 / math.sqrt(8))
    ones = torch.ones(8, 8, dtype=torch.float64)
    collapsed = map_tensors(lambda _: ones, projections)
    assert method.loss(collapsed, batch_of(views)).loss.item() == pytest.approx(start, rel=1e-9)
    for dictionary in dictionaries:
        dictionary.fill_(-1 / math.sqrt(8))
    if name == "membank":
        method.bank[3:11] *= -1  # the positives
        method.draws.fill_(draws_without(method, range(3, 11)))
    simplex = torch.eye(8, dtype=torch.float64) - 1 / 8
    dictionary = hasattr(method, "queues") or name == "membank"
    best = map_tensors(lambda _: ones if dictionary else simplex, projections)
    assert method.loss(best, batch_of(views)).loss.item() == pytest.approx(floor, rel=1e-9)
    assert floor < step_of(method, views).loss.item() < 2 * start


@pytest.mark.parametrize("name", METHODS)
def test_every_step_learns_and_the_state_says_all(name: str, views: torch.Tensor):
    """Two methods with the same state take the same step: whatever training changes is in the state."""

    def step(method) -> None:
        outcome = step_of(method, views)
        outcome.loss.backward()
        with torch.no_grad():
            for p in method.parameters():
                if p.grad is not None:
                    p -= 0.1 * p.grad
        method.zero_grad()
        method.after_step(outcome, 0.5)

    one = build(name)
    before = parameters_of(one)
    step(one)
    other = build(name)
    other.load_state_dict(one.state_dict())
    step(one)
    step(other)
    assert not torch.equal(parameters_of(one), before)
    for key, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


def test_every_recipe_states_its_paper_its_source_and_a_result_or_why_there_is_none():
    for name, recipe in recipes().items():
        assert recipe.paper, name
        assert recipe.source, name
        none = recipe.expects.startswith("none published") or recipe.expects.endswith("not available as text")
        assert "%" in recipe.expects or none, name


def test_learning_rates_peak_where_their_sources_say_and_one_comparison_shares_its_numbers():
    peaks = {"mocov1-r50-in1k": 0.03, "mocov1-r18-cifar10": 0.06, "simclr-r18-cifar10": 2.0, "simclr-r50-in1k": 4.8,
             "mocov3-r50-in1k": 9.6, "mocov3-vits16-in1k": 2.4e-3, "mocov2plus-r18-cifar10": 0.3,
             "mocov2plus-r18-cifar10-lightly": 0.06, "mocov2plus-r50-in1k": 0.15, "simco-r18-in1k": 0.03}  # fmt: skip
    for name, peak in peaks.items():
        assert find_recipe(name).peak_learning_rate == pytest.approx(peak), name
    shared = ("epochs", "batch_size", "optimizer", "learning_rate", "weight_decay", "warmup_epochs", "view1", "view2")
    one_comparison = [
        find_recipe(f"{method}-r18-cifar100").hyperparameters() for method in ("mocov2", "simmoco", "simco")
    ]
    assert len({str([numbers[key] for key in shared]) for numbers in one_comparison}) == 1


def test_views_are_resized_as_their_sources_do():
    """Torchvision's default is bilinear, which the code of MoCo v1 to v3 and of lightly keeps."""
    bilinear = {name for name, recipe in recipes().items() if recipe.view1.interpolation == "bilinear"}
    in1k = {name for name in recipes() if name.startswith(("moco", "simco", "simmoco", "membank")) and "in1k" in name}
    demo = {name for name in recipes() if name.startswith(("mocov1", "membank"))} | {"mocov2plus-r18-cifar10-lightly"}
    assert bilinear == (in1k | demo) - {"mocov2plus-r50-in1k"}  # solo-learn's are bicubic
    assert all(recipe.view1.interpolation == recipe.view2.interpolation for recipe in recipes().values())
