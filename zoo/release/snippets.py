"""The code blocks of a model card: with this package, with plain timm, with transformers.

The last two include the preprocessing of `Encoder.embed`, which neither library's own transform gives for photographs:
timm's for a small-image stem repeats pixels and never resizes, and its centre crop rounds to whole pixels.
"""

from zoo.model.card import Card
from zoo.model.timm_form import REPEAT, small_stem, stem_border

WITH_ZOO = """With contrastive-zoo, which checks every file's sha256:

```python
import zoo

encoder = zoo.load("hf://{repo}")
print(encoder.embed(["cat.png"]).shape)  # (1, {dim})
```"""

WITH_TIMM = """With timm alone:

```python
import numpy as np
import timm
import torch
from PIL import Image, ImageOps

model = timm.create_model("hf-hub:{repo}", pretrained=True).eval()
{preprocessing}

with torch.inference_mode():
    features = model(pixels("cat.png")[None])
print(features.shape)  # (1, {dim})
```"""

WITH_TRANSFORMERS = """With transformers:

```python
import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import AutoModel

model = AutoModel.from_pretrained("{repo}").eval()
{preprocessing}

with torch.inference_mode():
    features = model(pixel_values=pixels("cat.png")[None]).pooler_output
print(features.shape)  # (1, {dim})
```"""

PREPROCESSING = """MEAN, STD = {mean}, {std}


def pixels(path: str) -> torch.Tensor:
    \"\"\"(3, {side}, {side}): the central square, resized, normalised{repeated}.\"\"\"
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    side = {crop}min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    image = image.resize(({size}, {size}), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous() / 255
    x = (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    {last}"""

SMALL_STEM = """The network for plain timm and transformers expects every pixel repeated {repeat} x {repeat} times; its first layers undo that, so that it
computes what the encoder does on {size} x {size} pixels. It is for evaluation only: in training mode the layers that undo
the repetition would normalise. To fine-tune, load the model with `zoo.load`."""  # noqa: E501


def usage(card: Card, repo: str) -> str:
    """The section "Use" of the card of `repo`."""
    entries = {"repo": repo, "dim": card.dim, "preprocessing": _preprocessing(card)}
    blocks = [block.format(**entries) for block in (WITH_ZOO, WITH_TIMM, WITH_TRANSFORMERS)]
    if small_stem(card):
        blocks.append(" ".join(SMALL_STEM.format(repeat=REPEAT, size=card.image_size).splitlines()))
    return "\n\n".join(blocks)


def _preprocessing(card: Card) -> str:
    """A function `pixels(path)` in plain Pillow and PyTorch that equals `Encoder.pixels` and the normalisation."""
    border, repeat = stem_border(card), REPEAT if small_stem(card) else 1
    last = "return x"
    if border:
        last = f"x = torch.nn.functional.pad(x, ({border},) * 4)\n    return x"
    if repeat > 1:
        last = f"{last}.repeat_interleave({repeat}, 1).repeat_interleave({repeat}, 2)"
    return PREPROCESSING.format(
        mean=list(card.mean),
        std=list(card.std),
        side=repeat * (card.image_size + 2 * border),
        repeated=f", each pixel {repeat} x {repeat} times" if repeat > 1 else "",
        crop="" if card.crop == 1 else f"{card.crop} * ",
        size=card.image_size,
        last=last,
    )
