"""What leaves this machine: published, bundled, verified models."""

from zoo.libraries import configure_libraries

configure_libraries()
