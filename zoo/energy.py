"""How much energy a machine takes, where it counts it: RAPL for processors, NVML for NVIDIA's GPUs.

Nothing is guessed: on a machine without readable counters there is no number.
"""

from pathlib import Path
from typing import final

POWERCAP = Path("/sys/class/powercap")  # of Linux; usually only root may read the counters
PACKAGE = "intel-rapl:[0-9]*"  # AMD's, too; the parts of a package, intel-rapl:0:1, are in the package's count


@final
class EnergyMeter:
    """Joules since it was made, of all this machine does, plus those counted before.

    before: joules of earlier parts of the same work; None if they are not known, and then neither is the sum.
    """

    def __init__(self, before: float | None, *, powercap: Path = POWERCAP) -> None:
        self._powercap = powercap
        self._joules = before
        self._last = _counters(powercap)

    def joules(self) -> float | None:
        """None where there is no counter, or one has gone. Asked at least every quarter of an hour: counters wrap."""
        now, last = _counters(self._powercap), self._last
        if self._joules is None or not last or now.keys() != last.keys():
            self._joules = None
        else:
            steps = ((now[key][0] - last[key][0]) % now[key][1] for key in now)
            self._joules += sum(steps)
        self._last = now
        return self._joules


def _counters(powercap: Path) -> dict[str, tuple[float, float]]:
    """Each counter's value, and where it starts again from 0, in joules."""
    found = {}
    for folder in powercap.glob(PACKAGE):
        if folder.name.count(":") == 1:
            try:
                value, end = ((folder / name).read_text() for name in ("energy_uj", "max_energy_range_uj"))
            except OSError:  # not for us to read
                continue
            found[folder.name] = (int(value) / 1e6, (int(end) + 1) / 1e6)
    return found | _gpus()


def _gpus() -> dict[str, tuple[float, float]]:
    """The same of every GPU; its counter ends with the driver, and never wraps."""
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return {
            f"gpu {index}": (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, float("inf"))
            for index, handle in enumerate(handles)
        }
    except pynvml.NVMLError:  # no driver, or a GPU that does not count
        return {}
