"""Energy is what counters say, or nothing."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from train.checkpoint import Progress
from train.recipe import find_recipe
from train.run_folder import run_card
from zoo.energy import EnergyMeter
from zoo.release.model_card import model_card


def write(powercap: Path, package: str, microjoules: int) -> None:
    (powercap / package).mkdir(exist_ok=True)
    (powercap / package / "energy_uj").write_text(f"{microjoules}\n")
    (powercap / package / "max_energy_range_uj").write_text("9999999\n")


def test_the_packages_count_and_their_parts_do_not(tmp_path: Path):
    for package in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        write(tmp_path, package, 1_000_000)
    meter = EnergyMeter(0.5, powercap=tmp_path)
    for package in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        write(tmp_path, package, 3_000_000)
    assert meter.joules() == pytest.approx(0.5 + 2 + 2)
    assert meter.joules() == pytest.approx(4.5)


def test_a_counter_that_starts_again_from_0_goes_on(tmp_path: Path):
    write(tmp_path, "intel-rapl:0", 9_000_000)
    meter = EnergyMeter(0.0, powercap=tmp_path)
    write(tmp_path, "intel-rapl:0", 2_000_000)
    assert meter.joules() == pytest.approx(3)


@pytest.mark.parametrize("before", [0.0, None])
def test_without_counters_or_with_an_uncounted_part_nothing_is_said(tmp_path: Path, before: float | None):
    if before is None:
        write(tmp_path, "intel-rapl:0", 1)
    else:
        (tmp_path / "intel-rapl:0").mkdir()  # a package whose counter is not for us to read
    assert EnergyMeter(before, powercap=tmp_path).joules() is None


def test_a_counter_that_has_gone_ends_the_count(tmp_path: Path):
    write(tmp_path, "intel-rapl:0", 1_000_000)
    meter = EnergyMeter(0.0, powercap=tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert meter.joules() is None
    write(tmp_path, "intel-rapl:0", 2_000_000)
    assert meter.joules() is None


def test_the_card_tells_counted_energy_and_is_silent_else():
    from accelerate import Accelerator

    recipe = find_recipe("simco-r20-digits")
    progress = Progress(8, 60.0, {"images": 64, "data": "x"}, joules=7.2e6)
    card = run_card(recipe, progress, 2, Accelerator())
    assert card.training["energy_kwh"] == 2.0
    assert "| energy_kwh | 2.0 |" in (text := model_card(card, "a/b", []))
    assert "The energy is an estimate" in text
    silent = run_card(recipe, replace(progress, joules=None), 2, Accelerator())
    assert "energy" not in silent.training
    assert not re.search("energy_kwh|The energy", model_card(silent, "a/b", []))
