"""ResNets for small images: the CIFAR ResNet of He et al. 2015, section 4.2, and the CIFAR stem of the others."""

import torch
import torch.nn.functional as F
from timm.models import register_model
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn


def cifar_stem(network: ResNet, *, padding: int = 1) -> ResNet:
    """Replace the ImageNet stem by a 3x3 convolution of stride 1, without pooling (SimCLR, appendix B.9).

    padding: pixels; solo-learn and the code built on it pad by 2, so that 32 px give maps of 34.
    """
    width = network.conv1.out_channels
    network.conv1 = nn.Conv2d(3, width, kernel_size=3, stride=1, padding=padding, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    return network


def zero_init_residual(network: nn.Module) -> None:
    """Start every residual branch of a ResNet at 0 (Goyal et al. 2017, section 5.1); others stay as they are."""
    for block in network.modules():
        if isinstance(block, BasicBlock | Bottleneck):
            block.zero_init_last()


class PadShortcut(nn.Module):
    """Option A of He et al., section 4.2: identity at stride 2, new channels zero. No parameters."""

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, 2C, H/2, W/2)
        new = x.shape[1]
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, new // 2, new - new // 2))


class CifarResNet(nn.Module):
    """3 stages of n blocks with 16, 32 and 64 channels on a 3x3 stem: 6n + 2 layers, 64 features."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.num_features = 64
        self.conv1 = nn.Conv2d(3, 16, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, n)
        self.layer2 = _stage(16, 32, n)
        self.layer3 = _stage(32, 64, n)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W) -> (B, 64)
        return self._maps(x)[-1].mean((2, 3))

    def _maps(self, x: Tensor) -> list[Tensor]:
        """The stem's and the stages' outputs, (B, C, h, w) each."""
        maps = [torch.relu(self.bn1(self.conv1(x)))]
        for stage in (self.layer1, self.layer2, self.layer3):
            maps.append(stage(maps[-1]))
        return maps

    def forward_intermediates(self, x: Tensor, indices: int | list[int], *, intermediates_only: bool) -> list[Tensor]:
        """As the method of timm's networks, for the maps alone."""
        maps = self._maps(x)
        if isinstance(indices, int):
            if not 1 <= indices <= len(maps):
                raise IndexError(f"it has {len(maps)}")
            return maps[-indices:]
        chosen = sorted(index + len(maps) if index < 0 else index for index in indices)
        if chosen and not 0 <= chosen[0] <= chosen[-1] < len(maps):
            raise IndexError(f"it has {len(maps)}")
        return [maps[index] for index in chosen]


def _stage(inside: int, outside: int, n: int) -> nn.Sequential:
    first = BasicBlock(
        inside, outside, stride=outside // inside, downsample=PadShortcut() if outside > inside else None
    )
    return nn.Sequential(first, *(BasicBlock(outside, outside) for _ in range(n - 1)))


@register_model
def resnet20_cifar(pretrained: bool = False, **options: object) -> CifarResNet:
    """ResNet-20 for CIFAR: 0.27 M parameters (He et al. 2015, table 6). No pretrained weights exist in timm.

    Raises TypeError for an option of `timm.create_model` that would change the network, as drop_rate.
    """
    if pretrained:
        raise ValueError("resnet20_cifar has no pretrained weights in timm; zoo.load gives trained ones")
    unused = options.keys() - {"num_classes", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"}
    if unused:
        raise TypeError(f"resnet20_cifar takes no options; got {', '.join(sorted(unused))}")
    return CifarResNet(n=3)
