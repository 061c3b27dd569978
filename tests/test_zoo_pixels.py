import io
import struct
import threading
import time
import warnings
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as tv

from zoo.errors import BadImage, ImageFormatNotAllowed, ImageTooLarge
from zoo.images.pixels import fit, preprocess, read_rgb

NOISE = np.random.default_rng(0).integers(0, 256, (24, 36, 3), dtype=np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *, depth: int, colour: int, raw: bytes, extra: bytes = b"") -> bytes:
    """A PNG file written by hand: what Pillow's own writer does not offer."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def pixels(picture: object) -> list[list[int]]:
    return np.asarray(read_rgb(picture)).reshape(-1, 3).tolist()


# --- colour -----------------------------------------------------------------------------------------------------------


def test_grey_is_repeated_into_three_channels():
    assert pixels(encoded(Image.fromarray(np.array([[0, 7, 255]], np.uint8)))) == [[0] * 3, [7] * 3, [255] * 3]


def test_palette_colours_are_looked_up():
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([2, 0, 1])
    assert pixels(encoded(image)) == [[70, 80, 90], [10, 20, 30], [40, 50, 60]]


def test_a_transparent_palette_entry_is_white():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    assert pixels(encoded(image, transparency=1)) == [[10, 20, 30], [255, 255, 255]]


def test_a_half_transparent_palette_entry_is_half_white():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 0, 0, 0])
    image.putdata([0, 1])
    assert pixels(encoded(image, transparency=bytes([255, 128]))) == [[10, 20, 30], [127, 127, 127]]


def test_transparent_gif_background_is_white():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    assert pixels(encoded(image, "GIF", transparency=0)) == [[255, 255, 255], [40, 50, 60]]


def test_alpha_is_composed_over_white():
    # 255 - alpha / 255 * (255 - colour): 255 - 0.2 * 155 = 224, 255 - 0.2 * 255 = 204
    rgba = np.array([[[100, 0, 255, 51], [100, 0, 255, 255], [1, 2, 3, 0]]], np.uint8)
    expected = [[224, 204, 255], [100, 0, 255], [255, 255, 255]]
    assert pixels(encoded(Image.fromarray(rgba))) == expected
    assert pixels(rgba) == expected
    assert pixels(Image.fromarray(rgba)) == expected


def test_grey_with_alpha_is_composed_over_white():
    image = Image.fromarray(np.array([[[100, 51], [100, 255], [100, 0]]], np.uint8))
    assert image.mode == "LA"
    assert pixels(encoded(image)) == [[224] * 3, [100] * 3, [255] * 3]


def test_16_bit_grey_is_rounded_to_8_bits():
    levels = np.array([[0, 128, 129, 257, 65406, 65407, 65535]], np.uint16)
    assert pixels(encoded(Image.fromarray(levels))) == [[v] * 3 for v in (0, 0, 1, 1, 254, 255, 255)]


def test_the_transparent_level_of_16_bit_grey_is_white():
    raw = b"\0" + struct.pack(">3H", 30000, 30001, 0)
    data = png(3, 1, depth=16, colour=0, raw=raw, extra=chunk(b"tRNS", struct.pack(">H", 30000)))
    assert pixels(data) == [[255] * 3, [117] * 3, [0] * 3]


def test_1_bit_is_black_and_white():
    image = Image.fromarray(np.array([[0, 255, 255, 0]], np.uint8)).convert("1")
    assert pixels(encoded(image)) == [[0] * 3, [255] * 3, [255] * 3, [0] * 3]


def test_cmyk_jpeg_is_read_as_its_colours():
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # magenta and yellow ink: red
    red = np.array(pixels(encoded(image, "JPEG", quality=100)), int)
    assert np.abs(red - [255, 0, 0]).max() <= 3


def test_the_first_frame_of_an_animation_is_read():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "green", "blue")]
    for kind in ("GIF", "WEBP", "PNG"):
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
        assert pixels(data) == [[255, 0, 0]] * 16, kind


@pytest.mark.parametrize("mode", ["I", "F"])
def test_modes_without_an_agreed_range_are_refused(mode: str):
    with pytest.raises(BadImage, match=f"mode {mode} has no agreed range"):
        read_rgb(Image.new(mode, (2, 2)))
    with pytest.raises(BadImage, match=f"mode {mode} has no agreed range"):
        read_rgb(encoded(Image.new(mode, (2, 2)), "TIFF"))


def test_a_mode_pillow_cannot_convert_is_a_bad_image():
    with pytest.raises(BadImage, match="PIL image: cannot be decoded"):
        read_rgb(Image.new("La", (2, 2)))


# --- orientation ------------------------------------------------------------------------------------------------------

UPRIGHT = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
STORED = {  # how a camera stores the upright picture under each EXIF orientation
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.T,
    6: np.rot90(UPRIGHT, 1),
    7: UPRIGHT[::-1, ::-1].T,
    8: np.rot90(UPRIGHT, -1),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_every_exif_orientation_comes_out_upright(orientation: int, kind: str):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation])).convert("RGB")
    data = encoded(stored, kind, exif=exif.tobytes(), **({"lossless": True} if kind == "WEBP" else {}))
    assert np.array_equal(np.asarray(read_rgb(data))[..., 0], UPRIGHT)


def test_jpeg_orientation_6_is_turned_clockwise():
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = Image.new("L", (32, 16), 255)
    stored.paste(0, (0, 0, 16, 16))  # black on the left as stored: on top after a turn clockwise
    upright = read_rgb(encoded(stored, "JPEG", exif=exif.tobytes()))
    assert upright.size == (16, 32)
    assert upright.getpixel((8, 4)) == (0, 0, 0)
    assert upright.getpixel((8, 28)) == (255, 255, 255)


def test_the_rest_of_a_turned_pictures_exif_costs_no_time():
    field = struct.Struct("<HHL")
    numbers = b"\1\0\0\0" * 1_000_000  # 500,000 fractions of some unknown tag
    turned = field.pack(0x0112, 3, 1) + b"\6\0\0\0"
    exif = b"II*\0\x08\0\0\0\2\0" + turned + field.pack(0x9999, 5, 500_000) + b"\x26\0\0\0" + bytes(4) + numbers
    stored = Image.fromarray(np.ascontiguousarray(STORED[6])).convert("RGB")
    data = encoded(stored, "WEBP", exif=exif, lossless=True)
    assert len(data) > len(numbers)
    start = time.process_time()
    assert np.array_equal(np.asarray(read_rgb(data))[..., 0], UPRIGHT)
    assert time.process_time() - start < 0.5


# --- what a picture may be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (2, 3, 3), (2, 3, 4), (1, 1), (1, 1, 1)])
def test_arrays_are_read_as_they_are(shape: tuple[int, ...]):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    if shape[-1] == 4 and len(shape) == 3:
        array[..., 3] = 255
    grey = array.reshape(shape[:2]) if array.size == shape[0] * shape[1] else None
    expected = array[..., :3] if grey is None else np.stack([grey] * 3, -1)
    assert np.array_equal(np.asarray(read_rgb(array)), expected)


def test_an_array_that_is_not_contiguous_is_read_in_its_own_order():
    assert np.array_equal(np.asarray(read_rgb(NOISE[::-2, ::-1])), NOISE[::-2, ::-1])


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((2, 2, 3), np.float32),
        ((2, 2, 3), np.int64),
        ((2, 2, 3), np.uint16),
        ((2, 2), bool),
        ((2, 2, 2), np.uint8),
        ((3, 2, 2), np.uint8),
        ((1, 2, 2, 3), np.uint8),
        ((4,), np.uint8),
        ((), np.uint8),
        ((0, 2, 3), np.uint8),
        ((2, 0), np.uint8),
        ((2, 2, 0), np.uint8),
        ((2, 2, 5), np.uint8),
    ],
)
def test_other_arrays_are_refused_with_what_is_allowed(shape: tuple[int, ...], kind: type):
    with pytest.raises(BadImage, match=r"allowed: uint8 \(H, W\), \(H, W, 1\), \(H, W, 3\) or \(H, W, 4\)"):
        read_rgb(np.zeros(shape, kind))


@pytest.mark.parametrize("thing", [None, 3, [1, 2], bytearray(b"x"), io.BytesIO(b"x"), torch.zeros(3, 2, 2)])
def test_things_that_are_no_pictures_are_told_what_a_picture_is(thing: object):
    with pytest.raises(BadImage, match=f"a picture is a path, bytes, .* got {type(thing).__name__}"):
        read_rgb(thing)


def test_a_path_may_be_a_string_or_a_path(tmp_path: Path):
    path = tmp_path / "noise.png"
    Image.fromarray(NOISE).save(path)
    for form in (path, str(path)):
        assert np.array_equal(np.asarray(read_rgb(form)), NOISE)


def test_the_content_decides_the_format_not_the_file_name(tmp_path: Path):
    path = tmp_path / "noise.jpg"
    path.write_bytes(encoded(Image.fromarray(NOISE), "PNG"))
    assert np.array_equal(np.asarray(read_rgb(path)), NOISE)


def test_a_missing_file_and_a_folder_are_the_systems_own_errors(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.png"):
        read_rgb(tmp_path / "nothing.png")
    with pytest.raises(IsADirectoryError):
        read_rgb(tmp_path)


def test_text_that_cannot_be_a_path_is_a_bad_image():
    with pytest.raises(BadImage, match="is not a path"):
        read_rgb("cat\0.png")


def test_a_pil_image_given_by_the_user_stays_as_it_was():
    image = Image.fromarray(NOISE).convert("RGBA")
    before = image.tobytes()
    read_rgb(image)
    assert (image.mode, image.tobytes()) == ("RGBA", before)


# --- hostile bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"GIF89a", b"not a picture at all", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"]
)
def test_garbage_is_a_bad_image_in_bytes_and_in_a_file(data: bytes, tmp_path: Path):
    (tmp_path / "garbage.png").write_bytes(data)
    with pytest.raises(BadImage, match=f"{len(data)} bytes: "):
        read_rgb(data)
    with pytest.raises(BadImage, match=r"garbage\.png: "):
        read_rgb(tmp_path / "garbage.png")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_a_truncated_file_is_a_bad_image(kind: str, share: float):
    data = encoded(Image.fromarray(NOISE), kind)
    with pytest.raises(BadImage):
        read_rgb(data[: int(len(data) * share)])


def test_a_truncated_picture_opened_by_the_user_is_a_bad_image():
    data = encoded(Image.fromarray(NOISE), "JPEG")
    with pytest.raises(BadImage, match="PIL image: cannot be decoded"):
        read_rgb(Image.open(io.BytesIO(data[: len(data) // 2])))


def bomb(kind: str, width: int, height: int) -> bytes:
    """A few bytes whose header promises width x height pixels and whose body holds none of them."""
    if kind == "PNG":
        return png(width, height, depth=8, colour=2, raw=b"")
    data = bytearray(encoded(Image.new("RGB", (8, 8)), kind, **({"lossless": True} if kind == "WEBP" else {})))
    if kind == "GIF":
        data[6:10] = struct.pack("<HH", width, height)
    elif kind == "WEBP":
        data[21:25] = struct.pack("<I", (width - 1) | ((height - 1) << 14))
    else:
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.parametrize(
    ("kind", "width", "height"),
    [
        ("PNG", 20_000, 10_000),
        ("PNG", 10_000, 10_000),
        ("PNG", 6_000, 6_000),
        ("PNG", 8_193, 1),
        ("PNG", 1, 2**31 - 1),
        ("JPEG", 65_000, 65_000),
        ("WEBP", 16_383, 16_383),
        ("GIF", 65_535, 65_535),
    ],
)
def test_a_header_that_promises_too_much_is_refused_before_decoding(kind: str, width: int, height: int, tmp_path: Path):
    data = bomb(kind, width, height)
    assert len(data) < 1000
    (tmp_path / "bomb").write_bytes(data)
    for picture in (data, tmp_path / "bomb"):
        with pytest.raises(ImageTooLarge, match="at most 25,000,000 pixels"):  # decoding would say "cannot be decoded"
            read_rgb(picture)


def test_the_limits_are_exact():
    data = encoded(Image.fromarray(NOISE))
    assert read_rgb(data, max_pixels=24 * 36, max_side=36).size == (36, 24)
    with pytest.raises(ImageTooLarge, match="36 x 24 pixels; at most 863 pixels"):
        read_rgb(data, max_pixels=24 * 36 - 1)
    with pytest.raises(ImageTooLarge, match="and 35 a side"):
        read_rgb(data, max_side=35)


def test_formats_outside_the_list_are_refused_with_the_list():
    data = encoded(Image.fromarray(NOISE), "BMP")
    assert np.array_equal(np.asarray(read_rgb(data, formats=("BMP",))), NOISE)
    with pytest.raises(ImageFormatNotAllowed, match=r"allowed format \(JPEG, PNG\)"):
        read_rgb(data, formats=("JPEG", "PNG"))


def test_postscript_is_never_run(tmp_path: Path):
    (tmp_path / "program.eps").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n{} loop\n%%EOF\n"
    )
    with pytest.raises(ImageFormatNotAllowed, match="EPS is a program"):
        read_rgb(tmp_path / "program.eps")


def test_reading_in_threads_leaves_the_warning_filters_alone():
    """`warnings.catch_warnings` in threads would: they end in another order than they began."""
    before, data = list(warnings.filters), encoded(Image.fromarray(NOISE))

    def read() -> None:
        for _ in range(100):
            read_rgb(data)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before


SEEDS = {
    kind: encoded(Image.fromarray(NOISE), kind, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0")
    for kind in ("PNG", "JPEG", "WEBP")
}


@given(
    kind=st.sampled_from(sorted(SEEDS)),
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
    early=st.booleans(),
    keep=st.floats(0, 1),
    truncate=st.booleans(),
    extra=st.binary(max_size=20),
)
@settings(max_examples=150, deadline=None)
@example(kind="WEBP", edits=[(0.3, 0)], early=True, keep=0.7, truncate=True, extra=b"")
@example(kind="PNG", edits=[], early=False, keep=0.001, truncate=True, extra=b"")
@example(kind="JPEG", edits=[], early=False, keep=0.01, truncate=True, extra=b"")
def test_mutated_files_give_an_image_or_a_bad_image(
    kind: str, edits: list[tuple[float, int]], early: bool, keep: float, truncate: bool, extra: bytes
):
    data = bytearray(SEEDS[kind])
    reach = min(len(data), 120) if early else len(data)  # headers are where parsers are weakest
    for where, value in edits:
        data[int(where * reach)] = value
    data = (data[: int(keep * len(data))] if truncate else data) + extra
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on broken metadata; an error would hide what follows
        try:
            image = read_rgb(bytes(data))
        except BadImage:
            return
    assert image.mode == "RGB"
    assert np.asarray(image).shape == (image.height, image.width, 3)


@given(data=st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_random_bytes_give_an_image_or_a_bad_image(data: bytes):
    with suppress(BadImage):
        assert read_rgb(data, formats=("JPEG", "PNG", "WEBP", "GIF", "BMP")).mode == "RGB"


# --- size -------------------------------------------------------------------------------------------------------------


def test_a_picture_of_the_size_comes_back_bit_for_bit():
    square = NOISE[:, :24]
    assert np.array_equal(preprocess(square, image_size=24), square)
    assert np.array_equal(preprocess(encoded(Image.fromarray(square)), image_size=24), square)


@pytest.mark.parametrize("size", [7, 8, 23, 32, 100])
def test_a_square_picture_is_resized_as_pillow_resizes(size: int):
    square = Image.fromarray(NOISE[:, :24])
    expected = np.asarray(square.resize((size, size), Image.Resampling.BICUBIC))
    assert np.array_equal(preprocess(square, image_size=size), expected)


def test_of_a_picture_that_is_not_square_the_centre_is_kept():
    assert np.array_equal(preprocess(NOISE, image_size=24), NOISE[:, 6:30])
    tall = NOISE.transpose(1, 0, 2)
    assert np.array_equal(preprocess(tall, image_size=24), tall[6:30])


def test_an_even_crop_keeps_the_central_pixels():
    assert np.array_equal(preprocess(NOISE[:, :24], image_size=12, crop=0.5), NOISE[6:18, 6:18])


@pytest.mark.parametrize("side", [224, 256, 300, 512, 77])
def test_crop_of_0_875_is_resize_256_and_centre_crop_224(side: int):
    """The usual ImageNet evaluation, in one resampling: the same up to 1 level of rounding."""
    rough = np.random.default_rng(side).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = Image.fromarray(rough).resize((side, side), Image.Resampling.BICUBIC)
    resized = tv.resize(image, 256, InterpolationMode.BICUBIC)
    expected = np.asarray(tv.center_crop(resized, [224, 224]), int)
    assert np.abs(preprocess(image, image_size=224, crop=0.875) - expected).max() <= 1


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (2, 8191), (1, 3)])
@pytest.mark.parametrize("crop", [1.0, 0.875])
def test_pictures_of_one_pixel_width_fill_the_square(shape: tuple[int, int], crop: float):
    out = preprocess(np.full(shape, 77, np.uint8), image_size=8, crop=crop)
    assert out.shape == (8, 8, 3)
    assert (out == 77).all()


@given(
    width=st.integers(1, 60),
    height=st.integers(1, 60),
    size=st.integers(1, 40),
    crop=st.floats(0.01, 1),
)
@settings(max_examples=150, deadline=None)
@example(width=3, height=49, size=8, crop=0.9999999999999999)
def test_any_size_and_crop_keep_a_flat_picture_flat(width: int, height: int, size: int, crop: float):
    out = fit(Image.new("RGB", (width, height), (9, 99, 199)), image_size=size, crop=crop)
    assert np.array_equal(np.asarray(out), np.broadcast_to(np.array([9, 99, 199], np.uint8), (size, size, 3)))


def test_fit_and_exif_are_applied_in_this_order():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.fromarray(NOISE), exif=exif.tobytes())
    turned = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))  # (36, 24)
    assert np.array_equal(preprocess(data, image_size=24), turned[6:30])
