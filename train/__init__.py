"""Pretraining: one loop (`pretrain`), one file per paper (`methods`), the equations side by side (`losses`)."""

from zoo.libraries import configure_libraries

configure_libraries()
