"""Further names of served models."""

import re
from pathlib import Path


def split_alias(word: str) -> tuple[str, str]:
    """ALIAS=MODEL as its two parts; the alias is empty where there is none."""
    alias, equals, where = word.partition("=")
    return (alias, where) if equals and re.fullmatch(r"[\w.-]+", alias) and not Path(word).exists() else ("", word)
