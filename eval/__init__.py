"""Measuring encoders: features once, a file for each protocol, all of it into tables and the card (`score`)."""

from zoo.libraries import configure_libraries

configure_libraries()
