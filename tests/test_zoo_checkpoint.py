"""Checkpoint files as they come from the web: what is in them, and what somebody saved in their place."""

from pathlib import Path

import pytest
import torch
from checkpoint_files import mlp, resnet, saved, under

from zoo.errors import CorruptFile
from zoo.hub.checkpoint import read_checkpoint


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("touched-by-a-checkpoint"),))


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"x": torch.rand(1)}, "args": Evil()}, "evil.pth")
    with pytest.raises(CorruptFile, match="not a checkpoint that can be read safely"):
        read_checkpoint(Path("evil.pth"))
    assert not Path("touched-by-a-checkpoint").exists()


def test_a_file_without_tensors_and_no_file_are_told_apart(tmp_path: Path):
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    with pytest.raises(CorruptFile, match="no state_dict"):
        read_checkpoint(tmp_path / "empty.pth")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_checkpoint(tmp_path / "none.pth")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<!DOCTYPE html>\n<html><title>Sign in</title></html>", "a web page, not a checkpoint: a login"),
        (b"\n\n  <html lang=en>", "a web page, not a checkpoint"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "a web page, not a checkpoint"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "a Git LFS pointer, not the checkpoint itself"),
        (b'{"error": "rate limit"}', "JSON, not a checkpoint"),
        (b"", "not a checkpoint that can be read safely"),
        (b"PK\x03\x04 and no more", "not a checkpoint that can be read safely"),
    ],
)
def test_what_was_saved_in_the_place_of_a_checkpoint_is_named(content: bytes, said: str, tmp_path: Path):
    (tmp_path / "moco.pth.tar").write_bytes(content)
    with pytest.raises(CorruptFile, match=said):
        read_checkpoint(tmp_path / "moco.pth.tar")


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "net", "encoder"])
def test_a_state_dict_is_found_under_any_single_entry(key: str, tmp_path: Path):
    wanted = mlp(0)
    file = saved(
        {key: under("module.", wanted), "epoch": 3, "optimizer": {"state": {}, "param_groups": []}}, tmp_path / "x"
    )
    found = read_checkpoint(file)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_teacher_and_a_student_are_told_apart_by_a_prefix(tmp_path: Path):
    content = {"teacher": {"backbone.a": torch.tensor(1)}, "student": {"module.backbone.a": torch.tensor(2)}}
    assert read_checkpoint(saved(content, tmp_path / "x")) == {"teacher.backbone.a": 1, "student.backbone.a": 2}
    assert read_checkpoint(saved({"teacher": {"a": torch.tensor(3)}}, tmp_path / "y")) == {"teacher.a": 3}


@pytest.mark.parametrize(
    "keys", [("model", "model_ema"), ("state_dict", "state_dict_ema"), ("netA", "netB", "netC", "netD")]
)
def test_which_of_several_state_dicts_counts_is_not_guessed(keys: tuple[str, ...], tmp_path: Path):
    file = saved({key: mlp(0) for key in keys}, tmp_path / "x.pth")
    with pytest.raises(CorruptFile, match=rf"several state dicts, {', '.join(keys[:3])}.*Save the right one alone"):
        read_checkpoint(file)


def test_a_file_of_another_structure_is_told_its_entries(tmp_path: Path):
    with pytest.raises(CorruptFile, match="no state_dict in it; its entries are epoch, args, loss and 1 more"):
        read_checkpoint(saved({"epoch": 3, "args": {}, "loss": 0.1, "best": 2}, tmp_path / "x"))
    with pytest.raises(CorruptFile, match="its top level is a list"):
        read_checkpoint(saved([mlp(0)], tmp_path / "x"))
    with pytest.raises(CorruptFile, match="its classy_state_dict lacks base_model, model, trunk or heads"):
        read_checkpoint(saved({"classy_state_dict": {"base_model": {"model": {"trunk": resnet(224)}}}}, tmp_path / "x"))
    with pytest.raises(FileNotFoundError, match="a folder, not a checkpoint"):
        read_checkpoint(tmp_path)
