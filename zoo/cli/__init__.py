"""The `zoo` command."""

from zoo.libraries import configure_libraries

configure_libraries()
