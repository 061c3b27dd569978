"""`python -m zoo.cli` is `zoo`."""

from zoo.cli.main import main

main()
