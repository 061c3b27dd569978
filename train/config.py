"""A run's recipe and options as one YAML file: every run folder holds the one that repeats it."""

from pathlib import Path
from typing import Any

import yaml

from train.options import Options
from train.recipe import Recipe
from zoo.errors import BadData
from zoo.files import write_bytes

CONFIG = "run.yaml"


def write_config(folder: Path, recipe: Recipe, options: Options) -> None:
    """Write `run.yaml`: all flags of a run but its folder."""
    chosen = {key: value for key, value in vars(options).items() if key not in ("out", "remarks") and value is not None}
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in chosen.items()}
    text = yaml.safe_dump({"recipe": recipe.name} | recipe.hyperparameters() | plain, sort_keys=False)
    head = f"# Repeats this run: zoo train --config {CONFIG} --out FOLDER; flags on the command line win.\n"
    write_bytes(folder / CONFIG, (head + text).encode())


def arguments(words: list[str]) -> list[str]:
    """The recipe's name, then flags, with `--config FILE` replaced by what the file holds.

    Flags on the command line, and a recipe's name there, win over the file's.

    Raises:
        BadData: If the file cannot be read, or holds something else.
    """
    name = words[:1] if words and not words[0].startswith("-") else []
    flags = words[len(name) :]
    places = [nth for nth, word in enumerate(flags) if word.partition("=")[0] == "--config"]
    if not places:
        return words
    first = places[0]
    joined = "=" in flags[first]
    path = flags[first].partition("=")[2] if joined else "".join(flags[first + 1 : first + 2])
    given = flags[:first] + flags[first + (1 if joined else 2) :]
    config = read_config(Path(path))
    recipe = config.pop("recipe", None)
    if not name and not isinstance(recipe, str):
        raise BadData(f"{path}: no recipe; write one, as recipe: simco-r18-cifar100, or give its name before --config")
    mine = {word.partition("=")[0].replace("_", "-").replace("--no-", "--") for word in given if word.startswith("--")}
    return [*(name or [recipe]), *_flags(config, mine), *given]


def read_config(path: Path) -> dict[str, Any]:
    """The entries of a YAML file. Raises BadData if there are none."""
    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        told = f"--config {path}: cannot be read ({reason})"
        raise BadData(f"{told}. Give a YAML file, such as a run folder's {CONFIG}") from error
    if not isinstance(config, dict):
        raise BadData(f"--config {path}: holds no entries, NAME: VALUE; a run folder's {CONFIG} is an example")
    return config


def _flags(config: dict[str, Any], given: set[str], prefix: str = "--") -> list[str]:
    """Entries as words of a command line, without those that are given there."""
    words: list[str] = []
    for key, value in config.items():
        flag = f"{prefix}{key}".replace("_", "-")
        if flag in given or value is None:
            continue
        if isinstance(value, dict):
            words += _flags(value, given, f"{flag}.")
        elif isinstance(value, bool):
            words.append(flag if value else f"{prefix}no-{key}".replace("_", "-"))
        else:
            words += [flag, *map(str, value)] if isinstance(value, list) else [flag, str(value)]
    return words
