"""serve/form.py: the files of a form, byte for byte, or one plain word about what is wrong with it."""

import time
from contextlib import suppress

import httpx
import pytest

from serve.form import files_of
from serve.limits import MAX_BODY, MAX_HEAD, MAX_IMAGES
from serve.refusal import Refused

KIND = "multipart/form-data; boundary=xx"
HEAD = b'\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'


def form(*contents: bytes, head: bytes = HEAD) -> bytes:
    return b"".join(b"--xx" + head + content + b"\r\n" for content in contents) + b"--xx--\r\n"


TRICKY = [b"", b"\r\n", b"\r\n--x", b"a--xx--", b"\r\n\r\n--x", b"\n--xx\n", bytes(range(256)), b"-" * 99]


def test_the_files_come_out_byte_for_byte() -> None:
    assert files_of(form(*TRICKY), KIND) == TRICKY
    parts = [("images", (f'{number} 🙂".png', content)) for number, content in enumerate(TRICKY)]
    sent = httpx.Request("POST", "http://x", files=parts)
    assert files_of(sent.read(), sent.headers["content-type"]) == TRICKY
    assert files_of(form(), KIND) == []


@pytest.mark.parametrize(
    "body",
    [
        b"a preamble\r\n" + form(b"A", b"B"),
        form(b"A", b"B") + b"an epilogue --xx\r\n",
        form(b"A", b"B", head=b" \t" + HEAD),
        form(b"A", b"B", head=HEAD.replace(b": form-data;", b":form-data;\r\n  ")),
        form(b"A", b"B", head=b"\r\nContent-Type: image/png" + HEAD.replace(b'"', b"")),
    ],
)
def test_what_the_standard_allows_around_the_files_is_dropped(body: bytes) -> None:
    assert files_of(body, KIND) == [b"A", b"B"]
    assert files_of(body, 'Multipart/Form-Data; charset=undefined; Boundary="xx"') == [b"A", b"B"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "last boundary"),
        (b"nonsense", "last boundary"),
        (form(b"A", head=b""), "form part None|headers"),
        (form(b"A", head=HEAD.replace(b"images", b"pictures")), "form part 'pictures'"),
        (form(b"A", head=HEAD.replace(b"filename", b"size")), "form part 'images'; parts are files"),
        (form(b"A", head=HEAD.replace(b"name", b"n", 1)), "form part None"),
        (form(b"A", head=b"\r\nX: " + bytes(MAX_HEAD) + HEAD), f"headers within {MAX_HEAD} bytes"),
        (form(b"A", head=HEAD.replace(b"\r\n", b"\n")), "headers within"),
        (form(b"A\r\n--xxB"), "form part None|headers"),
    ],
)
def test_a_broken_form_is_told_what_is_wrong(body: bytes, says: str) -> None:
    with pytest.raises(Refused, match=says) as caught:
        files_of(body, KIND)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "told", ["", "; boundary=", f"; boundary={71 * 'x'}", "; boundary*=\0''xx", f'; a="{";" * 60_000}']
)
def test_a_form_without_a_boundary_is_told_at_once(told: str) -> None:
    start = time.process_time()
    with pytest.raises(Refused, match="boundary of 1 to 70 characters"):
        files_of(form(b"A"), f"multipart/form-data{told}")
    assert time.process_time() - start < 0.5


def test_more_parts_than_images_are_too_many() -> None:
    assert len(files_of(form(*[b"A"] * MAX_IMAGES), KIND)) == MAX_IMAGES
    with pytest.raises(Refused, match="more than 32 parts") as caught:
        files_of(form(*[b"A"] * (MAX_IMAGES + 1)), KIND)
    assert caught.value.status == 413


@pytest.mark.parametrize("filling", [b"\r\n--x", b"\r\n--xxZ", b"\r", b"\r\n", b"a:b\r\n"])
def test_near_misses_of_a_boundary_cost_no_time(filling: bytes) -> None:
    many = filling * (MAX_BODY // 4 // len(filling))
    start = time.monotonic()
    for body in (form(many), many + form(b"A"), form(b"A", head=many), form(b"A") + many):
        with suppress(Refused):
            files_of(body, KIND)
    assert time.monotonic() - start < 2
