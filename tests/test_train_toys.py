"""Papers that the zoo does not hold, each written as one file would write it: the loop trains them as they are."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import zoo
from train.batches import batches
from train.checkpoint import last_checkpoint, read_checkpoint
from train.heads import mlp
from train.method import Batch, LossRange, Method, Pair, Step
from train.momentum import MomentumEncoder
from train.options import Options
from train.pretrain import pretrain
from train.recipe import Recipe, find_recipe
from train.run import Run
from train.run_log import read_log
from train.schedules import cosine_between
from train.views import ViewPolicy, Views
from zoo.images.opening import open_images
from zoo.model.encoder import Encoder

SHORT = {
    "name": "toy-r20-digits", "paper": "a toy", "source": "this test", "expects": "none published", "epochs": 3,
    "batch_size": 32, "optimizer": "sgd", "learning_rate": 0.2, "weight_decay": 1e-4, "warmup_epochs": 0,
}  # fmt: skip

# --- BYOL -------------------------------------------------------------------------------------------------------------


class BYOL(Method):
    """Grill et al. 2020, algorithm 1: predict the momentum encoder's projection of the other view; no negatives."""

    def __init__(self, encoder: Encoder, *, key_momentum: float) -> None:
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, 64, 32)
        self.target = MomentumEncoder(encoder, self.projector)
        self.predictor = mlp(32, 64, 32)
        self.key_momentum = key_momentum

    def project(self, views: tuple[Tensor, ...]) -> tuple[Pair, ...]:
        view1, view2 = views
        both = (view1, view2), (view2, view1)
        return tuple(Pair(self.predictor(self.projector(self.encoder(q))), self.target(k)) for q, k in both)

    def loss(self, pairs: tuple[Pair, ...], batch: Batch) -> Step:
        cosines = [F.cosine_similarity(query, key).mean() for query, key in pairs]
        return Step(2 - 2 * torch.stack(cosines).mean())

    def key_momentum_at(self, progress: float) -> float:
        return cosine_between(progress, start=self.key_momentum, end=1.0)

    def after_step(self, step: Step, progress: float) -> None:
        self.target.follow(momentum=self.key_momentum_at(progress))

    def loss_range(self, batch_size: int) -> LossRange:
        return LossRange(2.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class BYOLRecipe(Recipe):
    key_momentum: float = 0.99

    def method(self, encoder: Encoder) -> BYOL:
        return BYOL(encoder, key_momentum=self.key_momentum)


# --- DINO -------------------------------------------------------------------------------------------------------------


class DINO(Method):
    """Caron et al. 2021, algorithm 1: every view's output matches the teacher's of the two large views; the teacher's
    are centred by a running mean, and its temperature rises over the first half of the training."""

    centre: Tensor  # (P,)

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, 64, 32)
        self.teacher = MomentumEncoder(encoder, self.projector)
        self.register_buffer("centre", torch.zeros(32))

    def project(self, views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        students = [F.normalize(self.projector(self.encoder(view)), dim=1) for view in views]
        teachers = [F.normalize(self.teacher(view), dim=1) for view in views[:2]]
        return (*students, *teachers)

    def loss(self, projections: tuple[Tensor, ...], batch: Batch) -> Step:
        *students, teacher1, teacher2 = projections
        temperature = 0.04 + 0.03 * min(1.0, 2 * batch.progress)
        terms = [
            -(((teacher - self.centre) / temperature).softmax(-1) * (student / 0.1).log_softmax(-1)).sum(-1).mean()
            for nth, teacher in enumerate((teacher1, teacher2))
            for other, student in enumerate(students)
            if other != nth
        ]
        metrics = {"teacher_temperature": torch.tensor(temperature), "terms": torch.tensor(float(len(terms)))}
        return Step(torch.stack(terms).mean(), (torch.cat([teacher1, teacher2]),), metrics)

    def after_step(self, step: Step, progress: float) -> None:
        self.teacher.follow(momentum=0.99)
        self.centre.lerp_(step.keys[0].mean(0), 0.1)

    def loss_range(self, batch_size: int) -> LossRange:
        return LossRange(3.5, 0.0)


SMALL_CROP = ViewPolicy(crop_area=(0.1, 0.4))


@dataclass(frozen=True, kw_only=True)
class DINORecipe(Recipe):
    small_crops: int = 3

    @property
    def view_policies(self) -> tuple[ViewPolicy, ...]:
        return (self.view1, self.view2, *[SMALL_CROP] * self.small_crops)

    def sizes_at(self, epoch: float, image_size: int) -> tuple[int, ...]:
        return (image_size, image_size, *[image_size // 2] * self.small_crops)

    def method(self, encoder: Encoder) -> DINO:
        return DINO(encoder)


RECIPES = {"byol": BYOLRecipe(**SHORT), "dino": DINORecipe(**SHORT)}


def test_byol_in_one_file_trains_and_its_loss_falls(tmp_path):
    run = pretrain(RECIPES["byol"], out=tmp_path / "run", limit=128, knn_every=3)
    losses = [line["loss"] for line in read_log(run)]
    assert losses[-1] < losses[0] - 0.1
    assert (run / "report.html").is_file()
    assert zoo.load(run).card.training["steps"] == 12
    assert "method.target.network.1.0.weight" in read_checkpoint(last_checkpoint(run / "checkpoints")).tensors


def test_dino_in_one_file_trains_its_student_and_moves_its_teacher_and_centre(tmp_path):
    """Its loss rises at first: until the centre has moved, all teachers agree."""
    run = pretrain(RECIPES["dino"], out=tmp_path / "run", limit=128, knn_every=3)
    assert all(0 < line["loss"] < 3.6 for line in read_log(run))  # nats; log 32 = 3.47 where no output stands out
    assert (run / "report.html").is_file()
    state = read_checkpoint(last_checkpoint(run / "checkpoints")).tensors
    student, teacher = state["method.projector.0.weight"], state["method.teacher.network.1.0.weight"]
    start = Run(RECIPES["dino"], Options(out=tmp_path / "new", limit=128)).method.projector[0].weight
    assert 0 < (teacher - start).norm() < 0.2 * (student - start).norm()
    assert state["method.centre"].norm() > 0.1


def test_a_loss_sees_how_far_the_training_is_and_every_view_meets_both_teachers(tmp_path):
    run = pretrain(replace(RECIPES["dino"], epochs=1), out=tmp_path / "run", limit=128, knn_every=0)
    lines = read_log(run)
    assert lines[0]["teacher_temperature"] == pytest.approx(0.04 + 0.03 * 0.5)  # after 1 of 4 updates
    assert {line["terms"] for line in lines} == {8}  # 5 students by 2 teachers, less their own views


def test_views_of_several_sizes_in_chunks_have_the_gradient_of_the_whole_batch_and_resume(tmp_path):
    recipe, runs = replace(RECIPES["dino"], epochs=1), []
    for chunk in (0, 16):
        run = Run(recipe, Options(out=tmp_path / f"run-{chunk}", limit=64, chunk=chunk, knn_every=0))
        for norm in (module for module in run.method.modules() if isinstance(module, nn.BatchNorm2d)):
            norm.eval()
        with run.open():
            batch = next(run.batches())
            assert [tuple(view.shape) for view in batch.views] == [(32, 3, 8, 8)] * 2 + [(32, 3, 4, 4)] * 3
            run.backward(batch)
        runs.append({key: p.grad.clone() for key, p in run.method.named_parameters() if p.grad is not None})
    assert runs[0].keys() == runs[1].keys()
    for key, whole in runs[0].items():
        assert torch.allclose(runs[1][key], whole, atol=1e-5), key


def test_small_views_from_disk_are_those_of_memory(tmp_path):
    """Up to Pillow's rounding to grey levels after each of two passes."""
    split = open_images("digits", "train").sample(32)
    (tmp_path / "a").mkdir()
    for nth, pixels in enumerate(split.pixels()):
        Image.fromarray(pixels).save(tmp_path / "a" / f"{nth:02d}.png")
    streamed = open_images("digits", "train", f"folder:{tmp_path}", stream=True)
    plain = ViewPolicy(jitter=0, grey=0, interpolation="bilinear")
    views = Views(plain, plain, replace(plain, crop_area=(0.1, 0.4)), seed=0, sizes=lambda step: (8, 8, 4))
    found = next(batches(streamed, views, first=0, last=1, batch_size=32))
    assert [crops.shape for crops in found.pixels] == [(32, 3, 8, 8), (32, 3, 8, 8), (32, 3, 4, 4)]
    pixels = torch.from_numpy(split.pixels()[found.indices]).permute(0, 3, 1, 2)
    for ours, theirs in zip(views(found.pixels, 0), views(pixels, 0), strict=True):
        assert (ours - theirs).abs().max() < 2.5 / 255


def test_a_view_does_not_depend_on_how_many_others_there_are():
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    two = Views(ViewPolicy(), ViewPolicy(), size=16, seed=1)(images, 3)
    three = Views(ViewPolicy(), ViewPolicy(), SMALL_CROP, seed=1, sizes=lambda step: (16, 16, 8))(images, 3)
    assert all(map(torch.equal, two, three[:2]))
    assert three[2].shape == (8, 3, 8, 8)


def test_recipes_of_the_zoo_have_two_views_of_one_size():
    recipe = find_recipe("simco-r18-cifar100-cpu")
    assert recipe.view_policies == (recipe.view1, recipe.view2)
    assert [recipe.sizes_at(epoch, 32) for epoch in (0, 8, 11)] == [(16, 16), (24, 24), (32, 32)]
