"""One file per paper: its source in the docstring, its algorithm as a class, its recipes as values in `RECIPES`."""
