"""The files of the repository, in a git checkout and in an unpacked source distribution."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = {"__pycache__", ".venv", "build", "dist", "runs", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def repository_files() -> list[Path]:
    """Paths of all files of the repository, relative to its root."""
    if (ROOT / ".git").exists():
        words = ["git", "ls-files"]
        names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        return [Path(name) for name in names if (ROOT / name).is_file()]
    found = [path.relative_to(ROOT) for path in sorted(ROOT.rglob("*")) if path.is_file()]
    return [path for path in found if not GENERATED & set(path.parts) and ".egg-info" not in str(path)]
