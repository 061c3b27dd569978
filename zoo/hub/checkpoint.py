"""Reading the tensors of a checkpoint file: nothing in it is executed."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.errors import CorruptFile
from zoo.hub.layouts import some

Tensors = dict[str, Tensor]
WRAPPERS = r"^(module\.|_orig_mod\.)+"  # of DataParallel and torch.compile


def read_checkpoint(file: Path) -> Tensors:
    """The tensors of a `.pth`, `.pth.tar` or `.ckpt` by key, prefixes of wrappers dropped.

    They are searched for in the file itself, below `state_dict`, `model` or any other single entry, below `teacher` and
    `student` (keys keep that word as a prefix), and where VISSL puts them (`trunk.*`, `heads.*`).

    Raises:
        FileNotFoundError: No such file.
        CorruptFile: It is no checkpoint, holds more than tensors and plain values, or several state dicts.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file}: {'a folder, not a checkpoint' if file.is_dir() else 'no such file'}")
    _refuse_text(file)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the classes of a dozen libraries, for one fact
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptFile(
            f"{file}: not a checkpoint that can be read safely ({reason}). If you trust it, save "
            "its state_dict alone: torch.save(content['state_dict'], FILE)"
        ) from error
    return {key: value for key, value in _state(content, file).items() if isinstance(value, Tensor)}


def _refuse_text(file: Path) -> None:
    """Raises CorruptFile for a web page, a Git LFS pointer or another text in the place of a checkpoint."""
    with file.open("rb") as opened:
        start = opened.read(512).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<script")):
        what = "a web page, not a checkpoint: a login, an error or a download page was saved in its place"
    elif start.startswith(b"version https://git-lfs"):
        what = "a Git LFS pointer, not the checkpoint itself: fetch it with git lfs pull"
    elif start.startswith((b"{", b"[")):
        what = "JSON, not a checkpoint"
    else:
        return
    raise CorruptFile(f"{file}: {what}. It has {file.stat().st_size:,} bytes. Download the file itself")


def _state(content: Any, file: Path) -> dict[str, Any]:
    """The state dict in a checkpoint's content, its keys without wrappers' prefixes. Raises CorruptFile."""
    if not isinstance(content, dict):
        raise CorruptFile(f"{file}: no state_dict in it; its top level is a {type(content).__name__}")
    if "classy_state_dict" in content:
        return _vissl(content["classy_state_dict"], file)
    inner = [str(key) for key, value in content.items() if _holds_tensors(value)]
    if _holds_tensors(content):
        return _unwrapped(content, file)
    if set(inner) & {"teacher", "student"}:
        sides = [side for side in ("teacher", "student") if side in inner]
        return {f"{side}.{key}": value for side in sides for key, value in _unwrapped(content[side], file).items()}
    if len(inner) == 1:
        return _unwrapped(content[inner[0]], file)
    if inner:
        raise CorruptFile(
            f"{file}: several state dicts, {some(inner)}. Save the right one alone: torch.save(content[KEY], FILE)"
        )
    raise CorruptFile(f"{file}: no state_dict in it; its entries are {some(map(str, content)) or 'none'}")


def _vissl(classy: Any, file: Path) -> dict[str, Any]:
    """VISSL's trunk and heads under `trunk.` and `heads.`."""
    try:
        model = classy["base_model"]["model"]
        parts = {part: _unwrapped(model[part], file) for part in ("trunk", "heads")}
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{file}: its classy_state_dict lacks base_model, model, trunk or heads ({error})") from error
    return {f"{part}.{key}": value for part, state in parts.items() for key, value in state.items()}


def _unwrapped(state: dict[str, Any], file: Path) -> dict[str, Any]:
    """The state dict with its wrappers' prefixes dropped. Raises CorruptFile if two keys become one."""
    plain: dict[str, Any] = {}
    for key, value in state.items():
        name = re.sub(WRAPPERS, "", str(key))
        if name in plain:
            raise CorruptFile(f"{file}: two tensors are called {name}, but for a wrapper's prefix; which one counts?")
        plain[name] = value
    return plain


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(entry, Tensor) for entry in value.values())
