"""`python -m zoo.cli` is `zoo`, as `accelerate launch -m zoo.cli train RECIPE` needs it."""

import sys
from pathlib import Path

from zoo.cli.main import main

PACKAGES = Path(__file__).parents[2]

if __name__ == "__main__":
    if not sys.flags.safe_path and Path(sys.path[0]).resolve() not in (PACKAGES, Path(__file__).parent):
        del sys.path[0]
    main()
