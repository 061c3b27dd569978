"""What an encoded image is made of (segments, scans, chunks, pixels), found before it is decoded.

Pillow walks the segments in Python, and libjpeg passes over all pixels for every scan, while a few bytes make a
segment: 10 MiB of them would occupy a decoder, and the interpreter, for seconds or hours.
"""

import io
import re
from collections.abc import Iterator
from itertools import islice

from PIL import Image

from serve.limits import FORMATS, MAX_CHUNKS, MAX_PROFILES, MAX_SCANS, MAX_SEGMENTS
from zoo.errors import ImageTooLarge
from zoo.images.pixels import MAX_PIXELS, MAX_SIDE

JPEG, SCAN, END = b"\xff\xd8", b"\xff\xda", b"\xff\xd9"  # how such a file, and each scan in it, starts; how it ends
# the markers that are followed by a length
SIZED = {b"\xff%c" % kind for kind in (*range(0xC0, 0xC8), *range(0xC9, 0xD0), *range(0xDA, 0xF0), 0xFE)}
AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # the next marker: not of the scan's own, such as restarts
PNG, PROFILE = b"\x89PNG\r\n\x1a\n", b"iCCP"


def check_structure(picture: bytes) -> None:
    """Raises ImageTooLarge for an encoded picture of too many parts."""
    if picture.startswith(JPEG):
        kinds = _few(segments(picture), MAX_SEGMENTS, "a JPEG of more than {} segments or bytes between them")
        if (scans := kinds.count(SCAN)) > MAX_SCANS:
            raise ImageTooLarge(f"a JPEG of {scans} scans; at most {MAX_SCANS} are read. Save it again")
    if picture.startswith(PNG):
        kinds = _few(chunks(picture), MAX_CHUNKS, "a PNG of more than {} chunks")
        if (profiles := kinds.count(PROFILE)) > MAX_PROFILES:
            raise ImageTooLarge(f"a PNG of {profiles} colour profiles; at most {MAX_PROFILES} are read. Save it again")


def header_pixels(picture: bytes) -> int:
    """Width times height as the header has it; 0 for what will not be decoded: unreadable, or over the limits."""
    try:
        check_structure(picture)
        with Image.open(io.BytesIO(picture), formats=FORMATS) as image:
            width, height = image.size
    except Exception:  # Pillow's header parsers raise anything at all; the decoder then names the fault
        return 0
    return width * height if width * height <= MAX_PIXELS and max(width, height) <= MAX_SIDE else 0


def _few(parts: Iterator[bytes], most: int, fault: str) -> list[bytes]:
    """The kinds of all parts. Raises ImageTooLarge for more than `most`."""
    kinds = list(islice(parts, most + 1))
    if len(kinds) > most:
        raise ImageTooLarge(f"{fault.format(most)}. Save it again")
    return kinds


def segments(picture: bytes) -> Iterator[bytes]:
    """The markers of a JPEG's segments; before the first scan, where Pillow looks at them, also bytes of no segment.

    It ends where the JPEG does: phones append a film, which may contain any bytes.
    """
    place, scanned = 2, False
    while place < len(picture):
        marker = picture[place : place + 2]
        yield marker
        scanned = scanned or marker == SCAN
        place += 2 + int.from_bytes(picture[place + 2 : place + 4]) if marker in SIZED else 1
        if scanned:
            found = AFTER_SCAN.search(picture, place)
            if found is None or found[0] == END:
                return
            place = found.start()


def chunks(picture: bytes) -> Iterator[bytes]:
    """The kinds of a PNG's chunks, to its end."""
    place = len(PNG)
    while place < len(picture):
        kind = picture[place + 4 : place + 8]
        yield kind
        if kind == b"IEND":
            return
        place += 12 + int.from_bytes(picture[place : place + 4])
