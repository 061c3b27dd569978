import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import zoo
from zoo.errors import CorruptFile, NoWeights, UnknownName, ZooError
from zoo.hub.author_files import AUTHOR_FILES
from zoo.hub.catalog import CATALOG, catalog, names
from zoo.hub.load import load_encoder
from zoo.hub.resolve import locate
from zoo.hub.store import CARD, INT8, ONNX, WEIGHTS, checked_weights, keep, read_card
from zoo.model.card import Card
from zoo.model.encoder import Encoder, save_encoder

PACKAGE = Path(zoo.__file__).parent


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: Encoder, card: Card) -> Path:
    """A run folder as training leaves it; the current folder is its grandparent."""
    monkeypatch.chdir(tmp_path)
    save_encoder(encoder, Path("runs", card.name), card)
    return Path("runs", card.name)


def rewrite(folder: Path, **entries: object) -> None:
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps(card | entries))


# --- locate -----------------------------------------------------------------------------------------------------------


def test_a_run_folder_is_located_as_path_text_and_absolute_path(run: Path):
    for form in (run, str(run), run.resolve(), f"{run}/"):
        assert locate(form).resolve() == run.resolve()


def test_a_name_is_located_among_the_kept_models(run: Path, home: Path):
    keep(run)
    assert locate("simco-r20-digits") == home / "models" / "simco-r20-digits"


def test_a_folder_with_a_card_comes_before_the_kept_model_of_its_name(run: Path, monkeypatch: pytest.MonkeyPatch):
    keep(run)
    monkeypatch.chdir("runs")
    assert locate("simco-r20-digits") == Path("simco-r20-digits")


def test_a_folder_without_a_card_does_not_hide_the_kept_model_of_its_name(run: Path, home: Path):
    """As when a second training of the name has begun in the current folder."""
    keep(run)
    Path("simco-r20-digits").mkdir()
    assert locate("simco-r20-digits") == home / "models" / "simco-r20-digits"


def test_an_unknown_name_is_told_the_nearest_kept_name(run: Path):
    keep(run)
    with pytest.raises(UnknownName, match=r"unknown model 'simco-r18-digits'; nearest: .*simco-r20-digits.*run folder"):
        locate("simco-r18-digits")


def test_a_text_that_is_no_name_is_told_the_grammar():
    for text in ("resnet", "~", "simco-r20-digits\0", "SIMCO-R20-DIGITS"):
        with pytest.raises(UnknownName, match="is not a model name"):
            locate(text)


@pytest.mark.parametrize(
    ("where", "what"),
    [("runs/none", "not there"), ("runs", "a folder without card.json"), ("runs/simco-r20-digits/card.json", "a file")],
)
def test_a_path_without_a_model_is_told_what_a_model_is(run: Path, where: str, what: str):
    with pytest.raises(NoWeights, match=f"^{where}: {what}; a model is a folder that training wrote"):
        locate(where)


def test_a_name_never_leads_out_of_the_kept_models(run: Path, home: Path, monkeypatch: pytest.MonkeyPatch):
    keep(run)
    shutil.copytree(run, home, dirs_exist_ok=True)  # a model at $ZOO_HOME/models/.. that no name reaches
    monkeypatch.chdir("/")
    for text in ("..", "../simco-r20-digits", "./simco-r20-digits", "x/../simco-r20-digits"):
        with pytest.raises(NoWeights):
            locate(text)


def test_zoo_home_decides_where_models_are_kept(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    keep(run)
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "other"))
    with pytest.raises(NoWeights):
        locate("simco-r20-digits")
    assert keep(run) == tmp_path / "other" / "models" / "simco-r20-digits"
    assert locate("simco-r20-digits") == tmp_path / "other" / "models" / "simco-r20-digits"


# --- the catalogue ----------------------------------------------------------------------------------------------------


def test_the_catalog_has_one_line_a_card_in_natural_order():
    lines = (PACKAGE / CATALOG).read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == list(catalog())
    assert set(catalog()) <= set(names())


def in_a_copy_with_catalogue(tmp_path: Path, cards: list[Card] | None, code: str) -> str:
    """Output of `code` in a copy of this package without weights; its catalogue holds `cards`, or is not there."""
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy / "zoo", ignore=shutil.ignore_patterns(CATALOG, "weights", "__pycache__"))
    if cards is not None:
        (copy / "zoo" / CATALOG).write_text("".join(card.to_line() for card in cards))
    env = os.environ | {"PYTHONPATH": str(copy)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    ).stdout


LOAD = """
import zoo.hub.resolve, zoo.errors
try:
    zoo.hub.resolve.locate("simco-r20-digits")
except zoo.errors.NoWeights as error:
    print(error)
"""


def test_a_name_of_the_catalogue_without_weights_tells_how_to_train(tmp_path: Path, card: Card):
    said = in_a_copy_with_catalogue(tmp_path, [card], LOAD)
    assert said.startswith("the weights of simco-r20-digits are not published yet and not in ")
    assert said.endswith("Train them: zoo train simco-r20-digits\n")
    assert "runs/" not in said


def test_a_name_of_the_catalogue_whose_run_lies_here_tells_its_folder(tmp_path: Path, card: Card):
    (tmp_path / "runs" / card.name).mkdir(parents=True)
    (tmp_path / "runs" / card.name / CARD).write_text(card.to_json())
    said = in_a_copy_with_catalogue(tmp_path, [card], LOAD)
    assert (
        "A run of it is in this folder: use runs/simco-r20-digits, or `zoo keep runs/simco-r20-digits` first." in said
    )


def test_list_and_info_read_the_catalogue_and_the_kept_models(tmp_path: Path, run: Path, card: Card):
    keep(run)
    catalogued = [replace(card, name=f"simco-{net}-digits", expects="catalogue") for net in ("r50", "r18", "r20")]
    code = """if True:
        import zoo
        print(zoo.list("*-digits"), zoo.list("*r2*"), zoo.list("[!a-z]*"))
        print(zoo.info("simco-r18-digits").expects, "/", zoo.info("simco-r20-digits").expects)
    """
    lines = in_a_copy_with_catalogue(tmp_path, catalogued, code).splitlines()
    names = ["simco-r18-digits", "simco-r20-digits", "simco-r50-digits"]
    assert lines == [f"{names} {names[1:2]} []", "catalogue / none published"]


def test_a_package_without_catalogue_lists_the_kept_models(tmp_path: Path, run: Path):
    keep(run)
    assert (
        in_a_copy_with_catalogue(tmp_path, None, "import zoo; print(zoo.list('*-digits'))") == "['simco-r20-digits']\n"
    )


# --- cards and weights ------------------------------------------------------------------------------------------------


def test_a_folder_without_card_is_told_so(tmp_path: Path):
    for verb in (read_card, keep):
        with pytest.raises(NoWeights, match=r"card\.json is missing; a model is a folder"):
            verb(tmp_path)


def test_a_card_that_is_not_utf_8_is_a_corrupt_file(run: Path):
    text = (run / CARD).read_bytes()
    for content in (b"\xff\xfe\x00", text.replace(b"none published", b"none p\xfcblished")):
        (run / CARD).write_bytes(content)
        with pytest.raises(CorruptFile, match=r"simco-r20-digits/card\.json: not a card \('utf-8' codec"):
            read_card(run)


def test_the_weights_are_checked_to_the_last_bit(run: Path):
    card, path = read_card(run), run / WEIGHTS
    assert checked_weights(run, card) == path
    whole = path.read_bytes()
    for at in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(
            CorruptFile, match=r"model\.safetensors does not match its card: .*Run the training command"
        ):
            load_encoder(run)
    path.write_bytes(whole)
    load_encoder(run)


def test_truncated_weights_are_a_corrupt_file_that_says_both_sizes(run: Path):
    whole = (run / WEIGHTS).read_bytes()
    (run / WEIGHTS).write_bytes(whole[:1000])
    with pytest.raises(CorruptFile, match=rf"1000 bytes, sha256 .* the card says {len(whole)} bytes"):
        load_encoder(run)


def test_missing_weights_are_told_so(run: Path):
    (run / WEIGHTS).unlink()
    with pytest.raises(NoWeights, match=r"model\.safetensors is missing\. Run the training command again"):
        load_encoder(run)


def test_a_card_without_weights_tells_how_to_train(run: Path):
    rewrite(run, weights=None)
    with pytest.raises(NoWeights, match=r"names no weights\. Train it: zoo train simco-r20-dig"):
        load_encoder(run)


def test_a_card_cannot_point_at_weights_elsewhere(run: Path, tmp_path: Path):
    shutil.copy(run / WEIGHTS, tmp_path / "outside.safetensors")
    weights = json.loads((run / CARD).read_text())["weights"]
    for file in ("../../outside.safetensors", str(tmp_path / "outside.safetensors")):
        rewrite(run, weights=weights | {"file": file})
        with pytest.raises(CorruptFile, match=r"weights\.file"):
            load_encoder(run)


# --- keep -------------------------------------------------------------------------------------------------------------


def test_keep_copies_card_weights_and_both_onnx_files_and_nothing_else(run: Path):
    (run / ONNX).write_bytes(b"onnx")
    (run / INT8).write_bytes(b"int8")
    (run / "checkpoint.pt").write_bytes(b"large")
    target = keep(run)
    assert sorted(path.name for path in target.iterdir()) == [CARD, INT8, ONNX, WEIGHTS]
    for name in (CARD, INT8, ONNX, WEIGHTS):
        assert (target / name).read_bytes() == (run / name).read_bytes()


def test_keep_replaces_only_with_force(run: Path, encoder: Encoder, card: Card):
    target = keep(run)
    save_encoder(encoder, run, replace(card, expects="second"))
    with pytest.raises(ZooError, match=r"simco-r20-digits exists already; --force replaces it"):
        keep(run)
    assert read_card(target).expects == "none published"
    keep(run, force=True)
    assert read_card(target).expects == "second"
    assert [path.name for path in target.parent.iterdir()] == ["simco-r20-digits"]


def test_keep_refuses_damaged_weights_and_keeps_the_earlier_model(run: Path):
    target = keep(run)
    (run / WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(CorruptFile):
        keep(run, force=True)
    load_encoder("simco-r20-digits")
    assert [path.name for path in target.parent.iterdir()] == ["simco-r20-digits"]


def test_a_kept_model_can_be_kept_again_in_its_place(run: Path):
    target = keep(run)
    keep(target, force=True)
    load_encoder("simco-r20-digits")


def test_the_leavings_of_a_killed_keep_are_no_models(run: Path):
    target = keep(run)
    shutil.copytree(target, target.with_name(".simco-r20-digits.x1y2"))
    assert set(names()) == set(catalog()) | set(AUTHOR_FILES)
    with pytest.raises(UnknownName):
        locate(".simco-r20-digits.x1y2")


def test_a_kept_folder_with_the_card_of_another_model_is_refused(run: Path):
    target = keep(run)
    target.rename(target.with_name("simclr-r20-digits"))
    for act in (load_encoder, zoo.info, locate):
        with pytest.raises(CorruptFile, match=r"models/simclr-r20-digits holds the card of simco-r20-digits"):
            act("simclr-r20-digits")


def test_a_broken_kept_model_has_its_line_in_the_list_and_the_others_theirs(run: Path):
    """The exit code tells, and the error which file."""
    target = keep(run)
    (keep(run, force=True).parent / "simclr-r20-digits").mkdir()
    (target.parent / "simclr-r20-digits" / CARD).write_text("{")
    shutil.copytree(target, target.with_name("simco-r20-digits-mine"))
    done = subprocess.run([sys.executable, "-m", "zoo.cli", "list", "*digits*"], capture_output=True, text=True)
    assert done.returncode == 1
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "broken, see below" in lines["simclr-r20-digits"]
    assert "broken, see below" in lines["simco-r20-digits-mine"]
    assert "0.27 M" in lines["simco-r20-digits"]
    assert done.stderr.startswith("error: ")
    assert "simclr-r20-digits/card.json: not a card" in done.stderr
    assert "simco-r20-digits-mine holds the card of simco-r20-digits" in done.stderr


def test_kept_models_stand_in_natural_order(encoder: Encoder, card: Card, tmp_path: Path):
    for variant in ("v10", "v9", "v1"):
        save_encoder(encoder, tmp_path / variant, replace(card, name=f"simco-r20-digits-{variant}"))
        keep(tmp_path / variant)
    assert zoo.list("simco-r20-digits*") == [
        "simco-r20-digits",
        *(f"simco-r20-digits-{v}" for v in ("v1", "v9", "v10")),
    ]
    assert zoo.list("*-v1*") == ["simco-r20-digits-v1", "simco-r20-digits-v10"]


def test_info_reads_the_card_of_a_folder_and_of_a_kept_name(run: Path):
    assert zoo.info(run).name == "simco-r20-digits"
    with pytest.raises(UnknownName):
        zoo.info("simclr-r20-digits-x1")
    with pytest.raises(NoWeights, match="not there"):
        zoo.info("runs/none")
    keep(run)
    assert zoo.info("simco-r20-digits") == zoo.info(run)
