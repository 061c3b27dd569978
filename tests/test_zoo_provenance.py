"""What a number carries beside its value."""

import sys

from zoo.provenance import command


def test_a_command_keeps_its_words_and_drops_the_folders_of_this_machine(monkeypatch):
    words = [
        "runs/a",
        "--data",
        "cifar100=/home/me/my data/cifar100/",
        "--out",
        "/tmp/x",
        "timm:resnet18=/w/r.safetensors",
    ]
    monkeypatch.setattr(sys, "argv", ["train/pretrain.py", *words, "a/b"])
    expected = "runs/a --data cifar100=.../cifar100 --out .../x timm:resnet18=.../r.safetensors a/b"
    assert command().endswith(expected)


def test_a_command_without_flags_has_no_blank_at_its_end(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    assert command() == command().strip()


def test_a_command_has_the_precision_that_the_launcher_was_given(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setattr(sys, "argv", ["train/pretrain.py", "simco-r20-digits"])
    assert command().startswith("accelerate launch --mixed_precision bf16 ")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert command().startswith("accelerate launch ")
    assert "precision" not in command()
