"""serve/onnx_file.py and serve/resnet_graph.py: a ResNet is served without torch from its weights alone."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from timm.models.resnet import Bottleneck, ResNet
from torch import nn

from serve.onnx_file import make_onnx
from serve.resnet_graph import resnet_graph
from serve.session import Session, open_model
from zoo.errors import CorruptFile, NoWeights
from zoo.hub.load import load_encoder
from zoo.hub.store import BUNDLED, GOLDEN
from zoo.model.backbone import backbone_row
from zoo.model.encoder import Encoder, build_network

# ResNeXt's bottlenecks with groups behind the stem of ImageNet, as narrow as timm allows
NARROW = ResNet(Bottleneck, (1, 2, 1, 1), num_classes=0, cardinality=4, base_width=16, channels=(16, 32, 32, 64))
NAMES = sorted(folder.name for folder in BUNDLED.iterdir())


def lively(backbone: str, *, image_size: int, stem_padding: int) -> Encoder:
    """A random encoder whose batch norms are not identities."""
    torch.manual_seed(0)
    network: nn.Module = NARROW
    if backbone != "narrow":
        network = build_network(backbone_row(backbone), image_size=image_size, stem_padding=stem_padding)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return Encoder(network, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), image_size=image_size).eval()


def smooth(n: int, size: int) -> np.ndarray:
    """(n, size, size, 3) uint8."""
    coarse = np.random.default_rng(0).integers(0, 256, (n, 5, 5, 3), np.uint8)
    return np.stack([np.asarray(Image.fromarray(each).resize((size, size))) for each in coarse])


@pytest.mark.parametrize(
    ("backbone", "image_size", "stem_padding"), [("r20", 32, 1), ("r18", 32, 2), ("narrow", 64, 1)]
)
def test_a_graph_written_from_weights_equals_torch(backbone: str, image_size: int, stem_padding: int) -> None:
    encoder = lively(backbone, image_size=image_size, stem_padding=stem_padding)
    weights = {name: tensor.numpy() for name, tensor in encoder.state_dict().items()}
    model = resnet_graph(weights, image_size=image_size, stem_padding=stem_padding)
    pixels = smooth(3, image_size)
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"pixels": pixels})
    expected = encoder.embed_pixels(pixels)
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-5


def test_weights_without_a_place_are_refused() -> None:
    encoder = lively("r20", image_size=8, stem_padding=1)
    weights = {name: tensor.numpy() for name, tensor in encoder.state_dict().items()}
    with pytest.raises(CorruptFile, match=r"1 weights have no place in a ResNet, such as backbone\.fc\.weight"):
        resnet_graph(weights | {"backbone.fc.weight": np.zeros((2, 64), np.float32)}, image_size=8)
    del weights["backbone.layer2.1.bn2.bias"]
    with pytest.raises(CorruptFile, match=r"no 'backbone\.layer2\.1\.bn2\.bias'"):
        resnet_graph(weights, image_size=8)


@pytest.mark.parametrize("name", NAMES)
def test_every_bundled_model_is_served_as_torch_embeds_it(name: str) -> None:
    session = open_model(name)
    pixels = smooth(5, session.image_size)
    expected = load_encoder(name).embed_pixels(pixels)
    assert np.abs(session.embed_pixels(pixels) - expected).max() / np.abs(expected).max() < 1e-5


def test_no_torch_is_imported_for_a_first_start(home: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from serve.session import open_model\n"
        f"print(open_model({NAMES[-1]!r}).dim)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    file = home / "onnx" / NAMES[-1] / "model.onnx"
    assert (done.stdout, done.stderr) == ("64\n", f"{NAMES[-1]}: first start, writing {file}\n")
    assert file.is_file()


def test_a_graph_that_misses_the_golden_embeddings_is_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "simco-r20-cifar100"
    folder.mkdir()
    for path in (BUNDLED / "simco-r20-cifar100").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / GOLDEN).write_bytes((BUNDLED / "simclr-r20-cifar100" / GOLDEN).read_bytes())
    with pytest.raises(CorruptFile, match="differs from the golden embeddings"):
        make_onnx(folder)
    assert not (folder / "model.onnx").exists()
    (folder / GOLDEN).unlink()
    with pytest.raises(NoWeights, match=r"nothing to check it by\. Export it: zoo export"):
        make_onnx(folder)


def test_a_file_that_is_there_is_not_written_again() -> None:
    path = make_onnx(BUNDLED / "simco-r20-cifar100")
    before = path.stat().st_mtime_ns
    assert make_onnx(BUNDLED / "simco-r20-cifar100") == path
    assert path.stat().st_mtime_ns == before
    assert Session(path).name == "simco-r20-cifar100"
