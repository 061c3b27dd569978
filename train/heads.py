"""Projectors and predictors: what stands between the features and the loss, and is thrown away afterwards."""

from torch import nn

from zoo.errors import BadNumber


def linear(inside: int, outside: int) -> nn.Sequential:
    """One linear map: the head of MoCo v1."""
    return nn.Sequential(nn.Linear(inside, outside))


def mlp(inside: int, hidden: int, outside: int) -> nn.Sequential:
    """Linear, ReLU, Linear, no normalisation: the head of MoCo v2 and of the dual-temperature paper."""
    _check(hidden)
    return nn.Sequential(nn.Linear(inside, hidden), nn.ReLU(), nn.Linear(hidden, outside))


def simclr_head(inside: int, outside: int, *, layers: int) -> nn.Sequential:
    """SimCLR's released head: `layers` linear maps without bias, batch normalisation after each, the last without beta.

    Hidden width is the input's. Weights start as N(0, 0.01).
    """
    modules: list[nn.Module] = []
    for index in range(layers):
        last = index == layers - 1
        width = outside if last else inside
        linear = nn.Linear(inside, width, bias=False)
        nn.init.normal_(linear.weight, std=0.01)
        norm = nn.BatchNorm1d(width)
        if last:
            norm.register_parameter("bias", None)
        modules += [linear, norm] if last else [linear, norm, nn.ReLU()]
    return nn.Sequential(*modules)


def mocov3_head(inside: int, hidden: int, outside: int, *, layers: int, last_norm: bool) -> nn.Sequential:
    """MoCo v3's released projector and predictor: `layers` linear maps without bias, batch normalisation and ReLU
    between them; last_norm: at the end a batch normalisation without gamma and beta."""
    _check(hidden)
    modules: list[nn.Module] = []
    for index in range(layers - 1):
        modules += [nn.Linear(hidden if index else inside, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()]
    modules.append(nn.Linear(hidden if layers > 1 else inside, outside, bias=False))
    return nn.Sequential(*modules, *[nn.BatchNorm1d(outside, affine=False)] * last_norm)


def _check(hidden: int) -> None:
    if hidden < 1:  # torch would build it, and every row would be the same
        raise BadNumber(f"hidden = {hidden}; at least 1 is needed")
