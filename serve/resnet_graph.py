"""A ResNet's ONNX graph written from its weights alone: what `serve.export` does, without torch.

The weights say what the network is: a 3x3 stem is CIFAR's, a `downsample` is a projection, and a stage that grows
without one has the shortcut of He et al. 2015, option A. Strides are those of every ResNet here: 2 at the start of each
stage but the first.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from serve.onnx_file import INPUT, OUTPUT
from zoo.errors import CorruptFile

OPSET = 20
EPSILON = 1e-5  # of every batch norm


def resnet_graph(weights: Mapping[str, np.ndarray], *, image_size: int, stem_padding: int = 1) -> onnx.ModelProto:
    """The graph (B, S, S, 3) uint8 -> (B, D) float32 of an encoder's weights file, without metadata.

    Args:
        weights: By the names in the file: `mean`, `std` and `backbone.*`; float16 is expanded to float32.
        image_size: S, pixels.
        stem_padding: Pixels around the image in a 3x3 stem.

    Raises:
        CorruptFile: The weights are not those of a ResNet, or some of them have no place in it.
    """
    builder = _Builder(weights)
    try:
        features, dim = builder.network(stem_padding)
    except KeyError as error:
        raise CorruptFile(f"the weights have no {error}: not a ResNet that can be exported without torch") from error
    builder.node("Identity", [features], output=OUTPUT)
    if left := builder.unused():
        raise CorruptFile(f"{len(left)} weights have no place in a ResNet, such as {left[0]}")
    pixels = helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["batch", image_size, image_size, 3])
    embedding = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", dim])
    graph = helper.make_graph(builder.nodes, "encoder", [pixels], [embedding], builder.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="contrastive-zoo")
    model.ir_version = 10  # of opset 20: readable by every onnxruntime that the package allows
    onnx.checker.check_model(model, full_check=True)
    return model


class _Builder:
    """Nodes and initializers of a graph, in the order in which they run. Values go by name."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self._weights = weights
        self._used: set[str] = set()
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def network(self, stem_padding: int) -> tuple[str, int]:
        """The name of the pooled features, and how many there are."""
        x = self.stem(self.normalized(), stem_padding)
        channels = len(self._weights["backbone.conv1.weight"])
        stage = 1
        while f"backbone.layer{stage}.0.conv1.weight" in self._weights:
            block = 0
            while f"backbone.layer{stage}.{block}.conv1.weight" in self._weights:
                stride = 2 if stage > 1 and block == 0 else 1
                x, channels = self.block(x, f"backbone.layer{stage}.{block}", channels, stride)
                block += 1
            stage += 1
        return self.node("Flatten", [self.node("GlobalAveragePool", [x])]), channels

    def normalized(self) -> str:
        """Pixels as the network takes them: (B, 3, S, S) float32, mean 0 and standard deviation 1."""
        x = self.node("Transpose", [self.node("Cast", [INPUT], to=TensorProto.FLOAT)], perm=[0, 3, 1, 2])
        x = self.node("Div", [x, self.constant(np.float32(255))])
        return self.node("Div", [self.node("Sub", [x, self.weight("mean")]), self.weight("std")])

    def stem(self, x: str, padding: int) -> str:
        small = self._weights["backbone.conv1.weight"].shape[-1] == 3  # CIFAR's
        x = self.conv(x, "backbone.conv1", 3, stride=1 if small else 2, padding=padding if small else 3)
        x = self.node("Relu", [self.norm(x, "backbone.bn1")])
        return x if small else self.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def block(self, x: str, name: str, channels: int, stride: int) -> tuple[str, int]:
        """A basic block (two convolutions) or a bottleneck (three, the second with the stride); its channels."""
        deep = f"{name}.conv3.weight" in self._weights
        width = len(self._weights[f"{name}.conv1.weight"])
        y = self.conv(x, f"{name}.conv1", channels, stride=1 if deep else stride)
        y = self.node("Relu", [self.norm(y, f"{name}.bn1")])
        y = self.conv(y, f"{name}.conv2", width, stride=stride if deep else 1)
        y = self.norm(y, f"{name}.bn2")
        if deep:
            y = self.norm(self.conv(self.node("Relu", [y]), f"{name}.conv3", width), f"{name}.bn3")
        grown = len(self._weights[f"{name}.conv{3 if deep else 2}.weight"])
        if f"{name}.downsample.0.weight" in self._weights:
            x = self.norm(self.conv(x, f"{name}.downsample.0", channels, stride=stride), f"{name}.downsample.1")
        elif grown != channels:
            x = self.padded_shortcut(x, grown - channels)
        return self.node("Relu", [self.node("Add", [y, x])]), grown

    def padded_shortcut(self, x: str, new: int) -> str:
        """Option A: every second pixel, and new channels of zeros on both sides."""
        numbers = [np.array(values, np.int64) for values in ([0, 0], [2**31, 2**31], [2, 3], [2, 2])]
        x = self.node("Slice", [x, *map(self.constant, numbers)])
        pads = np.array([0, new // 2, 0, 0, 0, new - new // 2, 0, 0], np.int64)
        return self.node("Pad", [x, self.constant(pads)])

    def conv(self, x: str, name: str, inputs: int, *, stride: int = 1, padding: int | None = None) -> str:
        """A convolution without bias of `inputs` channels, from which its groups follow; padded to keep the size."""
        shape = self._weights[f"{name}.weight"].shape
        pad = shape[-1] // 2 if padding is None else padding
        attributes: dict[str, Any] = {"kernel_shape": list(shape[2:]), "strides": [stride] * 2, "pads": [pad] * 4}
        return self.node("Conv", [x, self.weight(f"{name}.weight")], group=inputs // shape[1], **attributes)

    def norm(self, x: str, name: str) -> str:
        self._used.add(f"{name}.num_batches_tracked")
        parts = [self.weight(f"{name}.{part}") for part in ("weight", "bias", "running_mean", "running_var")]
        return self.node("BatchNormalization", [x, *parts], epsilon=EPSILON)

    def weight(self, name: str) -> str:
        if name not in self._used:
            self._used.add(name)
            self.initializers.append(numpy_helper.from_array(self._weights[name].astype(np.float32), name))
        return name

    def constant(self, value: np.ndarray | np.float32) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, operator: str, inputs: list[str], *, output: str = "", **attributes: Any) -> str:
        """Append a node; the name of its output."""
        output = output or f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def unused(self) -> list[str]:
        return sorted(self._weights.keys() - self._used)
