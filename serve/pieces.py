"""The pieces that an encoded picture is made of, counted before it is decoded.

Pillow walks them in Python, and libjpeg passes over all pixels for every scan, while a few bytes make a piece: 10 MiB
of them would hold up a decoder, and the interpreter, for seconds or hours.
"""

from collections.abc import Iterator
from itertools import islice

from serve.limits import MAX_CHUNKS, MAX_PROFILES, MAX_SCANS, MAX_SEGMENTS
from zoo.errors import ImageTooLarge

JPEG, SCAN = b"\xff\xd8", b"\xff\xda"  # how such a file, and each scan in it, starts
PNG = b"\x89PNG\r\n\x1a\n"
# the markers that tell a length
SIZED = {b"\xff%c" % kind for kind in (*range(0xC0, 0xC8), *range(0xC9, 0xD0), *range(0xDA, 0xF0), 0xFE)}


def check_pieces(picture: bytes) -> None:
    """Raises ImageTooLarge for an encoded picture of too many pieces."""
    if picture.startswith(JPEG):
        if (scans := picture.count(SCAN)) > MAX_SCANS:
            raise ImageTooLarge(f"a JPEG of {scans} scans; at most {MAX_SCANS} are read. Save it again")
        _check(segments(picture), MAX_SEGMENTS, "a JPEG of more than {} segments or bytes between them. Save it again")
    if picture.startswith(PNG):
        if (profiles := picture.count(b"iCCP")) > MAX_PROFILES:
            raise ImageTooLarge(f"a PNG of {profiles} colour profiles; at most {MAX_PROFILES} are read. Save it again")
        _check(chunks(picture), MAX_CHUNKS, "a PNG of more than {} chunks. Save it again")


def _check(pieces: Iterator[int], most: int, fault: str) -> None:
    if sum(1 for _ in islice(pieces, most + 1)) > most:
        raise ImageTooLarge(fault.format(most))


def segments(picture: bytes) -> Iterator[int]:
    """Where Pillow looks in a JPEG before its first scan: at every segment, and at every byte that belongs to none."""
    place = 2
    while place < len(picture):
        yield place
        marker = picture[place : place + 2]
        if marker == SCAN:
            return
        place += 2 + int.from_bytes(picture[place + 2 : place + 4]) if marker in SIZED else 1


def chunks(picture: bytes) -> Iterator[int]:
    """Where the chunks of a PNG start."""
    place = len(PNG)
    while place < len(picture):
        yield place
        if picture[place + 4 : place + 8] == b"IEND":
            return
        place += 12 + int.from_bytes(picture[place : place + 4])
