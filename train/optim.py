"""Optimisers by name, with the weight-decay groups that the papers ask for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

OptimizerName = Literal["sgd", "adamw", "lars", "lars_mocov3", "lars_solo"]


@dataclass(frozen=True)
class LARSVariant:
    """In what the released implementations of LARS differ. Their weights part at the first step or the second."""

    trust: float = 0.001  # eta
    sum_of_norms: bool = False  # eta |w| / (|g| + wd |w|), as You et al. write it; else eta |w| / |g + wd w|
    rate_in_buffer: bool = False  # v = momentum v + lr g', w -= v; else v = momentum v + g', w -= lr v
    clip: bool = False  # the learning rate of a tensor is at most the trust ratio


LARS_VARIANTS = {
    "lars": LARSVariant(rate_in_buffer=True),  # SimCLR's release
    "lars_mocov3": LARSVariant(),  # MoCo v3's release
    "lars_solo": LARSVariant(trust=0.02, sum_of_norms=True, clip=True),  # solo-learn, as its CIFAR scripts set it
}


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017): g' = ratio (g + wd w), then momentum SGD.

    The ratio is 1 where either norm is 0. Groups with `adapt=False` (biases and norms) get plain momentum SGD without
    decay.
    """

    def __init__(
        self, params: Any, *, lr: float, momentum: float = 0.9, weight_decay: float = 0.0, variant: LARSVariant
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "adapt": True})
        self.variant = variant

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)
        return loss

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        update = self._adapted(weight, gradient, group) if group["adapt"] else gradient
        inside, outside = (group["lr"], 1.0) if self.variant.rate_in_buffer else (1.0, group["lr"])
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(update, alpha=inside)
        weight.sub_(velocity, alpha=outside)

    def _adapted(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """The gradient with weight decay, times the trust ratio."""
        variant, decay = self.variant, group["weight_decay"]
        update = gradient + decay * weight
        norm_w = weight.norm()
        norm_g = gradient.norm() + decay * norm_w if variant.sum_of_norms else update.norm()
        ratio = torch.where((norm_w > 0) & (norm_g > 0), variant.trust * norm_w / norm_g, 1.0)
        if variant.clip and group["lr"] > 0:
            ratio = (ratio / group["lr"]).clamp(max=1)
        return ratio * update


def make_optimizer(
    name: OptimizerName,
    module: nn.Module,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    backbone_rate: float = 1.0,
) -> Optimizer:
    """The optimizer `name` over the trainable parameters of `module`.

    backbone_rate: factor of the learning rate for `module.encoder`; groups carry it as `rate`.

    sgd, adamw: weight decay on all of them, as MoCo v1 to v3 and the dual-temperature paper have it; momentum is
    adamw's first beta, its second is 0.999. lars and its variants: biases and norms excluded.
    """
    trainable = [p for p in module.parameters() if p.requires_grad]
    fused = all(p.is_cuda for p in trainable)
    groups: list[dict[str, Any]] = [{"params": trainable}]
    if name not in ("sgd", "adamw"):
        groups = [{"params": _of(trainable, matrices=True)}, {"params": _of(trainable, matrices=False), "adapt": False}]
    if backbone_rate != 1:
        encoder = set(module.get_submodule("encoder").parameters())
        groups = [part for group in groups for part in _split(group, encoder, backbone_rate)]
    if name == "sgd":
        return SGD(groups, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=fused)
    if name == "adamw":
        return AdamW(groups, lr=lr, betas=(momentum, 0.999), weight_decay=weight_decay, fused=fused)
    return LARS(groups, lr=lr, momentum=momentum, weight_decay=weight_decay, variant=LARS_VARIANTS[name])


def _split(group: dict[str, Any], encoder: set[nn.Parameter], rate: float) -> list[dict[str, Any]]:
    """The group's parameters of the encoder, at `rate` times the learning rate, and the others."""
    inside = [p for p in group["params"] if p in encoder]
    outside = [p for p in group["params"] if p not in encoder]
    return [group | {"params": inside, "rate": rate}, group | {"params": outside, "rate": 1.0}]


def _of(parameters: Iterable[nn.Parameter], *, matrices: bool) -> list[nn.Parameter]:
    return [p for p in parameters if (p.ndim > 1) == matrices]
