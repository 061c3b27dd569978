import json
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from serve_model import noise
from torch import nn

from zoo.errors import CorruptFile
from zoo.images.dataset import dataset_row
from zoo.model.backbone import backbone_row
from zoo.model.card import Card
from zoo.model.encoder import Encoder, build_backbone, build_network
from zoo.model.timm_form import from_timm, small_stem, timm_config, to_timm
from zoo.release.verify import gap

SMALL = ["simco-r20-digits", "simco-r20-cifar100", "simco-r18-cifar100", "simco-r50-cifar10"]


def trained_looking(name: str, *, image_size: int | None = None, stem_padding: int = 1) -> tuple[Encoder, Card]:
    """An encoder whose batch norms are no identities, so that a lost one shows."""
    _, backbone, dataset = name.split("-")
    row = dataset_row(dataset)
    size = image_size or row.image_size
    torch.manual_seed(0)
    network = build_network(backbone_row(backbone), image_size=size, stem_padding=stem_padding)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.2)
            nn.init.normal_(module.bias, std=0.1)
            module.num_batches_tracked.fill_(7)
    encoder = Encoder(network, mean=row.mean, std=row.std, image_size=size).eval()
    card = Card(
        name=name, paper="x", image_size=size, mean=row.mean, std=row.std, dim=encoder.dim, expects="none published",
        stem_padding=stem_padding,
    )  # fmt: skip
    return encoder, card


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    return {key: value.numpy() for key, value in module.state_dict().items()}


def plain_timm(card: Card, tensors: dict[str, np.ndarray]) -> nn.Module:
    config = json.loads(json.dumps(timm_config(card)))
    network = timm.create_model(config["architecture"], num_classes=0, **config["model_args"])
    network.load_state_dict({key: torch.from_numpy(value) for key, value in tensors.items()}, strict=True)
    return network.eval()


@pytest.mark.parametrize("name", SMALL)
def test_a_small_stem_computes_the_same_in_plain_timm_and_folds_back_bit_for_bit(name: str):
    encoder, card = trained_looking(name)
    native = arrays(encoder)
    published = to_timm(card, native)
    folded = from_timm(card, published)
    assert folded.keys() == native.keys()
    assert all(folded[key].tobytes() == native[key].tobytes() for key in native)
    x = (torch.rand(2, 3, card.image_size, card.image_size) - encoder.mean) / encoder.std
    large = nn.functional.interpolate(x, scale_factor=4, mode="nearest")
    with torch.inference_mode():
        ours, theirs = encoder.backbone(x).numpy(), plain_timm(card, published)(large).numpy()
    assert gap(theirs, ours) < 2e-6  # sums of the same numbers and zeros, in another order


@pytest.mark.parametrize("name", ["simco-r18-cifar100", "simco-r20-digits"])
def test_timms_own_transform_of_a_picture_gives_the_same_embedding(name: str):
    encoder, card = trained_looking(name)
    network = plain_timm(card, to_timm(card, arrays(encoder)))
    network.pretrained_cfg = timm_config(card)["pretrained_cfg"]
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network), is_training=False)
    pictures = [Image.fromarray(noise(card.image_size, card.image_size, 3, seed=seed)) for seed in range(3)]
    with torch.inference_mode():
        theirs = network(torch.stack([transform(picture) for picture in pictures])).numpy()
    assert gap(theirs, encoder.embed(pictures)) < 1e-5


def test_a_stem_of_padding_2_is_exact_when_the_mean_is_a_grey_of_8_bits():
    encoder, card = trained_looking("simco-r18-cifar100", stem_padding=2)
    grey = (128 / 255,) * 3
    encoder.mean.fill_(grey[0])
    card = replace(card, mean=grey)
    network = plain_timm(card, to_timm(card, arrays(encoder)))
    network.pretrained_cfg = timm_config(card)["pretrained_cfg"]
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network), is_training=False)
    picture = Image.fromarray(noise(32, 32, 3))
    assert transform(picture).shape == (3, 136, 136)
    with torch.inference_mode():
        theirs = network(transform(picture)[None]).numpy()
    assert gap(theirs, encoder.embed([picture])) < 1e-5
    padded_by_1 = Encoder(trained_looking(card.name)[0].backbone, mean=grey, std=card.std, image_size=32).eval()
    assert gap(theirs, padded_by_1.embed([picture])) > 1e-2


@pytest.mark.parametrize("name", ["mocov3-vitt4-cifar100", "simco-swint-cifar100"])
def test_a_transformer_opens_in_plain_timm_bit_for_bit(name: str):
    encoder, card = trained_looking(name)
    published = to_timm(card, arrays(encoder))
    network = plain_timm(card, published)
    x = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        ours, theirs = encoder(x), network((x - encoder.mean) / encoder.std)
    assert torch.equal(ours, theirs)
    config = timm_config(card)["pretrained_cfg"]
    assert network.get_submodule(config["first_conv"]).weight.shape[1] == 3
    assert config["classifier"] in network.default_cfg["classifier"]
    assert from_timm(card, published).keys() == arrays(encoder).keys()


def test_the_wider_groups_of_a_resnext_reach_plain_timm():
    encoder, card = trained_looking("mocov2-rx50-cifar100")
    assert timm_config(card)["model_args"] == {"base_width": 8, "replace_stem_pool": True}
    plain_timm(card, to_timm(card, arrays(encoder)))  # strict about every tensor


def test_an_imagenet_stem_only_loses_its_prefix():
    encoder, card = trained_looking("simco-r18-cifar100", image_size=64)
    native = arrays(encoder)
    published = to_timm(card, native)
    assert not small_stem(card)
    assert published.keys() == build_backbone("r18", image_size=64).state_dict().keys()
    assert timm_config(card)["model_args"] == {}
    assert timm_config(card)["pretrained_cfg"]["input_size"] == [3, 64, 64]
    folded = from_timm(card, published)
    assert all(folded[key].tobytes() == native[key].tobytes() for key in native)


@pytest.mark.parametrize("key", ["maxpool.0.weight", "maxpool.1.bias", "conv1.weight", "layer2.0.downsample.0.weight"])
def test_published_weights_that_were_trained_on_do_not_fold_back(key: str):
    encoder, card = trained_looking("simco-r20-digits")
    published = to_timm(card, arrays(encoder))
    published[key] = published[key] + np.float32(0.01)
    with pytest.raises(CorruptFile, match="not published weights of simco-r20-digits"):
        from_timm(card, published)


def test_a_missing_tensor_is_named():
    encoder, card = trained_looking("simco-r20-digits")
    published = to_timm(card, arrays(encoder))
    del published["conv1.weight"]
    with pytest.raises(CorruptFile, match=r"conv1\.weight"):
        from_timm(card, published)


def test_the_config_says_everything_and_never_the_number_of_classes_twice():
    _, card = trained_looking("simco-r18-cifar100")
    config = timm_config(card)
    assert config["num_classes"] == 0
    assert "num_classes" not in config["model_args"]
    assert config["pretrained_cfg"] == {
        "input_size": [3, 128, 128], "fixed_input_size": False, "interpolation": "nearest", "crop_pct": 1.0,
        "crop_mode": "center", "mean": list(card.mean), "std": list(card.std), "num_classes": 0,
        "first_conv": "conv1", "classifier": "fc", "license": "apache-2.0",
    }  # fmt: skip
