import json
from dataclasses import replace
from typing import Any

import pytest

from zoo.errors import CorruptFile
from zoo.model.card import Card, Weights, parse_card

WEIGHTS = Weights(file="model.safetensors", sha256="ab" * 32, bytes=123)


def altered(card: Card, **entries: Any) -> str:
    return json.dumps(json.loads(card.to_json()) | entries)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_card_comes_back_from_its_json(card: Card, weights: Weights | None):
    card = replace(card, weights=weights, crop=0.875)
    assert parse_card(card.to_json(), where="x") == card


def test_a_card_knows_its_backbone_and_data_set(card: Card):
    assert (card.backbone, card.dataset) == ("r20", "digits")


def test_entries_with_defaults_may_be_absent(card: Card):
    values = json.loads(card.to_json())
    for entry in ("crop", "recipe", "training", "results", "weights"):
        del values[entry]
    found = parse_card(json.dumps(values), where="x")
    assert (found.crop, found.recipe, found.training, found.results, found.weights) == (1.0, {}, {}, (), None)


def test_with_result_replaces_the_row_of_its_key_and_keeps_the_others(card: Card):
    card = replace(card, results=())
    for key, value in [("a", 1), ("b", 2), ("a", 3)]:
        card = card.with_result({"key": key, "value": value})
    assert card.results == ({"key": "b", "value": 2}, {"key": "a", "value": 3})


def test_with_result_leaves_the_card_itself_as_it_was(card: Card):
    before = card.to_json()
    card.with_result({"key": "digits knn", "value": 0.9})
    assert card.to_json() == before


def test_a_result_that_is_not_a_number_is_not_written(card: Card):
    with pytest.raises(ValueError, match="not JSON compliant"):
        card.with_result({"key": "a", "value": float("nan")}).to_json()


@pytest.mark.parametrize("format_", [0, 2, "1", None])
def test_another_format_is_refused_with_both_numbers(card: Card, format_: Any):
    with pytest.raises(CorruptFile, match=rf"^here/card\.json: card of format {format_!r}, this version reads 1"):
        parse_card(altered(card, format=format_), where="here/card.json")


def test_unknown_entries_are_refused_by_name(card: Card):
    with pytest.raises(CorruptFile, match=r"^here: entries unknown \['license', 'url'\], missing \[\]"):
        parse_card(altered(card, url="x", license="y"), where="here")


@pytest.mark.parametrize("entry", ["name", "paper", "image_size", "mean", "std", "dim", "expects"])
def test_missing_entries_are_refused_by_name(card: Card, entry: str):
    values = json.loads(card.to_json())
    del values[entry]
    with pytest.raises(CorruptFile, match=rf"^here: entries unknown \[\], missing \['{entry}'\]"):
        parse_card(json.dumps(values), where="here")


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "3", '"card"', "[" * 100_000, "\ufffd", '{"format": 1}', "{}"])
def test_text_that_is_no_card_is_a_corrupt_file(text: str):
    with pytest.raises(CorruptFile, match=r"^here: "):
        parse_card(text, where="here")


def test_a_truncated_card_is_a_corrupt_file(card: Card):
    text = card.to_json()
    for cut in range(0, len(text) - 2, 7):
        with pytest.raises(CorruptFile, match=r"^here: not a card"):
            parse_card(text[:cut], where="here")


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("name", "simco-r99-digits"),
        ("name", "nonsense"),
        ("name", 5),
        ("paper", None),
        ("image_size", 0),
        ("image_size", 8.0),
        ("image_size", True),
        ("crop", 0),
        ("crop", 1.01),
        ("crop", "1"),
        ("mean", [0.5, 0.5]),
        ("mean", [0.5] * 4),
        ("mean", 0.5),
        ("mean", ["a", "b", "c"]),
        ("mean", [10**400] * 3),
        ("std", [0.5, 0.5, 0]),
        ("std", [0.5, 0.5, -1]),
        ("stem_padding", 3),
        ("dim", -1),
        ("dim", "64"),
        ("expects", 1),
        ("recipe", []),
        ("training", None),
        ("results", 3),
        ("results", [{"value": 1}]),
        ("results", ["key"]),
        ("weights", "model.safetensors"),
        ("weights", {"file": "model.safetensors"}),
        ("weights", {"file": "model.safetensors", "sha256": "ab", "bytes": 1}),
        ("weights", {"file": "model.safetensors", "sha256": "AB" * 32, "bytes": 1}),
        ("weights", {"file": "model.safetensors", "sha256": "ab" * 32, "bytes": "1"}),
        ("weights", {"file": "model.safetensors", "sha256": "ab" * 32, "bytes": 1, "url": "x"}),
    ],
)
def test_values_an_entry_cannot_have_are_refused(card: Card, entry: str, value: Any):
    with pytest.raises(CorruptFile, match=r"^here: not a card"):
        parse_card(altered(card, **{entry: value}), where="here")


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("repo", "simco-r20-digits"),
        ("repo", "a/.."),
        ("revision", "main"),
        ("revision", "AB" * 20),
        ("files", [{"file": "../config.json", "sha256": "ab" * 32, "bytes": 1}]),
        ("files", [{"file": "config.json", "sha256": "ab" * 32, "bytes": 0}]),
        ("files", [{"file": "config.json"}]),
        ("url", "x"),
    ],
)
def test_a_published_card_pins_a_commit_and_plain_files(card: Card, entry: str, value: Any):
    sound = {"repo": "a/b", "revision": "ab" * 20, "files": [{"file": "config.json", "sha256": "ab" * 32, "bytes": 1}]}
    assert parse_card(altered(card, published=sound), where="here").published.revision == "ab" * 20
    with pytest.raises(CorruptFile, match=r"^here: not a card"):
        parse_card(altered(card, published=sound | {entry: value}), where="here")


@pytest.mark.parametrize("entry", ["crop", "mean", "std", "recipe"])
@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_are_refused_wherever_they_stand(card: Card, entry: str, text: str):
    values = {"crop": float(text), "mean": [float(text)] * 3, "std": [1, 1, float(text)], "recipe": {"lr": float(text)}}
    written = altered(card, **{entry: values[entry]})
    assert text in written
    with pytest.raises(CorruptFile, match=f"{text} is not a number of JSON"):
        parse_card(written, where="here")


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_numbers_beyond_float_are_refused_in_the_preprocessing(card: Card, number: str):
    text = card.to_json().replace("0.3055", number)
    with pytest.raises(CorruptFile, match="no such value allowed in mean"):
        parse_card(text, where="here")


@pytest.mark.parametrize(
    "file",
    [
        "../model.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..",
        "",
        ".hidden.safetensors",
        "card.json",
        5,
        "model.safetensors\n",
        "model.pt",
        "a\\b.safetensors",
        "a\0.safetensors",
    ],
)
def test_the_weights_file_is_a_safetensors_file_in_the_cards_own_folder(card: Card, file: Any):
    weights = {"file": file, "sha256": "ab" * 32, "bytes": 1}
    with pytest.raises(CorruptFile, match=r"^here: not a card"):
        parse_card(altered(card, weights=weights), where="here")
