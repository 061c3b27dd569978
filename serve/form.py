"""The files of a multipart/form-data body (RFC 7578) that is here as a whole.

It is cut by `bytes.split`: parsers that are made for streams take a step in Python for every near miss of a boundary,
and 32 MiB of those would hold up all other requests for seconds.
"""

from email import message_from_string
from email.message import Message

from starlette.datastructures import Headers

from serve.limits import MAX_HEAD, MAX_IMAGES
from serve.refusal import Refused


def content_type(headers: Headers) -> str:
    """The media type of a body, without parameters; empty if there is none."""
    return headers.get("content-type", "").split(";")[0].strip().lower()


def files_of(body: bytes, content_type: str) -> list[bytes]:
    """The contents of all parts, which are files named `images`. Raises Refused (400, or 413 for too many)."""
    return [_file(part) for part in _parts(body, _boundary(content_type))]


def _boundary(content_type: str) -> bytes:
    """What stands between the parts: 1 to 70 characters."""
    head = Message()
    head["content-type"] = content_type[:MAX_HEAD]  # of a long one, `email` looks at all semicolons for each of them
    boundary = head.get_param("boundary")
    if not isinstance(boundary, str) or not 1 <= len(boundary) <= 70:  # no str: in the way of RFC 2231, of any charset
        raise Refused(400, "multipart/form-data without a boundary of 1 to 70 characters", param="images")
    return boundary.encode("latin-1", "replace")


def _parts(body: bytes, boundary: bytes) -> list[bytes]:
    """The parts, each from the end of its boundary on; what stands before the first and after the last is dropped."""
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_IMAGES + 1)
    last = next((place for place, part in enumerate(parts) if part.startswith(b"--")), None)
    if last is not None:
        return parts[:last]
    if len(parts) > MAX_IMAGES:
        raise Refused(413, f"a form of more than {MAX_IMAGES} parts. Split it", param="images")
    raise Refused(400, "the form ends before its last boundary. Send it again, whole", param="images")


def _file(part: bytes) -> bytes:
    """The content of one part, if it is a file named `images`."""
    head, end, content = part.lstrip(b" \t").removeprefix(b"\r\n").partition(b"\r\n\r\n")
    if not end or len(head) > MAX_HEAD:
        raise Refused(400, f"a part of the form has no end of its headers within {MAX_HEAD} bytes", param="images")
    disposition = message_from_string(head.decode(errors="replace"))
    name, file = (disposition.get_param(key, header="content-disposition") for key in ("name", "filename"))
    if name != "images" or file is None:
        said = name if name is None else str(name)[:100]
        raise Refused(400, f"form part {said!r}; parts are files named `images`", param=said)
    return content
