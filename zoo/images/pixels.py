"""From a picture to pixels: the one preprocessing of `embed`, evaluation and serving.

A picture is a path, encoded bytes, a PIL image or a uint8 array. Pixels are (H, W, 3) uint8 RGB, H = W = the
encoder's image size. Colour is settled here (orientation, alpha, palette, depth); mean and std are the encoder's.
"""

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from zoo.errors import BadImage, ImageFormatNotAllowed, ImageTooLarge
from zoo.images.walk import reads_heif

Picture = Any  # str | Path | bytes | PIL.Image.Image | numpy.ndarray

BACKGROUND = (255, 255, 255)  # what shows through transparent pixels
MAX_PIXELS = 25_000_000  # width times height, read from the header before anything is decoded
MAX_SIDE = 8192  # pixels
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0  # a TIFF's tag, and its value where 0 is white
TURNS = {  # what makes a picture upright, by EXIF's orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(name: str, picture: bytes | Path | np.ndarray) -> Image.Image:
    """As `read_rgb`; every error begins with `name`. Raises BadImage for no bytes at all, too."""
    if isinstance(picture, bytes) and not picture:
        raise BadImage(f"{name}: holds no bytes")
    return read_rgb(picture, name=name)


def read_rgb(
    picture: Picture,
    *,
    name: str = "",
    formats: Sequence[str] | None = None,
    max_pixels: int = MAX_PIXELS,
    max_side: int = MAX_SIDE,
) -> Image.Image:
    """An upright 8-bit RGB image of any size.

    picture: path, encoded bytes, PIL image, or uint8 array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4).
    name: in errors, by default the path or what came.
    formats: allowed encodings, in Pillow's words ("JPEG", "PNG"); None allows what Pillow reads, but EPS.
    Raises BadImage (undecodable, truncated, no 8-bit meaning), ImageTooLarge, ImageFormatNotAllowed, FileNotFoundError.
    """
    if isinstance(picture, np.ndarray):
        return _from_array(picture)
    if isinstance(picture, Image.Image):
        return _decoded(picture, "PIL image")
    if isinstance(picture, bytes):
        return _from_file(io.BytesIO(picture), name or f"{len(picture)} bytes", formats, max_pixels, max_side)
    if isinstance(picture, str | Path):
        if "\0" in str(picture):
            raise BadImage(f"{str(picture)[:80]!r} is not a path. Encoded pictures are given as bytes")
        with Path(picture).open("rb") as file:  # outside: "no such file" is the system's to say, not Pillow's
            return _from_file(file, name or str(picture), formats, max_pixels, max_side)
    raise BadImage(
        f"a picture is a path, bytes, a PIL image or a uint8 array; got {type(picture).__name__}. "
        "Tensors in [0, 1] go to encoder(x)"
    )


def preprocess(picture: Picture, *, image_size: int, crop: float = 1.0, **limits: Any) -> np.ndarray:
    """(image_size, image_size, 3) uint8: bicubic resize of the shorter side to image_size / crop, then centre crop.

    A picture that already has this size comes back bit for bit. limits: as for `read_rgb`.
    """
    return np.asarray(fit(read_rgb(picture, **limits), image_size=image_size, crop=crop))


def fit(image: Image.Image, *, image_size: int, crop: float = 1.0) -> Image.Image:
    """RGB image whose shorter side becomes image_size / crop (bicubic, antialiased), cut to its central square."""
    width, height = image.size
    side = min(width, height) * min(crop, 1.0)  # of the central square, in source pixels
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((image_size, image_size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))


def _from_array(array: np.ndarray) -> Image.Image:
    channels = 1 if array.ndim == 2 else array.shape[-1] if array.ndim == 3 else 0
    if array.dtype != np.uint8 or channels not in (1, 3, 4) or 0 in array.shape:
        raise BadImage(
            f"array of {array.dtype} with shape {array.shape}; allowed: uint8 (H, W), (H, W, 1), "
            "(H, W, 3) or (H, W, 4). Scale to 0..255 and cast, or give tensors in [0, 1] to encoder(x)"
        )
    return _as_rgb(
        Image.fromarray(np.ascontiguousarray(array if channels > 1 else array.reshape(array.shape[:2]))), "array"
    )


def _from_file(
    file: BinaryIO, label: str, formats: Sequence[str] | None, max_pixels: int, max_side: int
) -> Image.Image:
    if formats is None:
        _add_heif()
    try:
        image = Image.open(file, formats=None if formats is None else tuple(formats))
    except UnidentifiedImageError as error:
        allowed = "a format Pillow reads" if formats is None else ", ".join(formats)
        raise ImageFormatNotAllowed(f"{label}: not a picture in an allowed format ({allowed})") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # the latter under -W error
        raise ImageTooLarge(f"{label}: {error}; at most {max_pixels:,} pixels are read") from error
    except Exception as error:  # Pillow's header parsers raise anything at all on hostile bytes
        raise BadImage(f"{label}: cannot be decoded ({error})") from error
    if image.format == "EPS":
        raise ImageFormatNotAllowed(f"{label}: EPS is a program that Ghostscript would run. Convert it to PNG first")
    width, height = image.size
    if width * height > max_pixels or max(width, height) > max_side:
        raise ImageTooLarge(
            f"{label}: {width} x {height} pixels; at most {max_pixels:,} pixels and {max_side} a side. Resize first"
        )
    return _decoded(image, label)


@cache
def _add_heif() -> None:
    if reads_heif():
        from pillow_heif import register_heif_opener

        register_heif_opener()


def _decoded(image: Image.Image, label: str) -> Image.Image:
    try:
        return _as_rgb(image, label)
    except BadImage:
        raise
    except Exception as error:  # Pillow's decoders raise anything at all on hostile bytes
        raise BadImage(f"{label}: cannot be decoded ({error})") from error


def _upright(image: Image.Image) -> Image.Image:
    """As `ImageOps.exif_transpose`, which also writes all EXIF anew: 7 seconds of CPU and 1 GB for 10 MB of it."""
    image.load()
    turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def _is_negative(image: Image.Image) -> bool:
    """Whether 0 is white in a TIFF of 16 bits, which Pillow gives as it is stored; of 8 bits it turns them round."""
    tags = getattr(image, "tag_v2", {})
    return image.mode.startswith("I;16") and tags.get(PHOTOMETRIC) == WHITE_IS_ZERO


def _as_rgb(image: Image.Image, label: str) -> Image.Image:
    negative = _is_negative(image)
    image = _upright(image)
    mode = image.mode
    if mode in ("F", "I") or (mode.startswith("I;") and not mode.startswith("I;16")):
        raise BadImage(f"{label}: pixel mode {mode} has no agreed range; convert it to 8 or 16 bits first")
    if mode.startswith("I;16"):
        wide = np.asarray(image).astype(np.uint32)  # 0..65535
        wide = 65535 - wide if negative else wide
        grey = ((wide + 128) // 257).astype(np.uint8)
        grey[wide == image.info.get("transparency", -1)] = BACKGROUND[0]  # PNG's one transparent grey level
        image = Image.fromarray(grey)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        canvas = Image.new("RGBA", image.size, BACKGROUND)
        image = Image.alpha_composite(canvas, image)
    return image.convert("RGB")
