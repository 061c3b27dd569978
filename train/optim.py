"""Optimisers by name, with the weight-decay groups that the papers ask for."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

OptimizerName = Literal["sgd", "lars"]


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017), as SimCLR's release computes it.

    g' = g + wd w;  v = momentum v + lr (trust |w| / |g'|) g';  w = w - v. The ratio is 1 where either norm is 0.
    The learning rate stands inside the momentum buffer. Groups with `adapt=False` (biases and norms) get plain momentum
    SGD without decay.
    """

    def __init__(
        self, params: Any, *, lr: float, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": True}
        super().__init__(params, defaults)

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
                    self._update(weight, group)
        return loss

    def _update(self, weight: Tensor, group: dict[str, Any]) -> None:
        update = weight.grad
        if group["adapt"]:
            update = update + group["weight_decay"] * weight
            norm_w, norm_g = weight.norm(), update.norm()
            ratio = torch.where((norm_w > 0) & (norm_g > 0), group["trust"] * norm_w / norm_g, 1.0)
            update = ratio * update
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(update, alpha=group["lr"])
        weight.sub_(velocity)


def make_optimizer(
    name: OptimizerName, module: nn.Module, *, lr: float, momentum: float, weight_decay: float
) -> Optimizer:
    """The optimiser `name` over the trainable parameters of `module`.

    sgd: weight decay on all of them, as MoCo and the dual-temperature paper do. lars: biases and norms excluded.
    """
    trainable = [p for p in module.parameters() if p.requires_grad]
    if name == "sgd":
        fused = all(p.is_cuda for p in trainable)
        return SGD(trainable, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=fused)
    groups = [{"params": _of(trainable, matrices=True)}, {"params": _of(trainable, matrices=False), "adapt": False}]
    return LARS(groups, lr=lr, momentum=momentum, weight_decay=weight_decay)


def _of(parameters: Iterable[nn.Parameter], *, matrices: bool) -> list[nn.Parameter]:
    return [p for p in parameters if (p.ndim > 1) == matrices]
