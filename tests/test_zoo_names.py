import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.errors import UnknownName, unknown
from zoo.images.dataset import DATASETS, dataset_row
from zoo.model.backbone import BACKBONES, backbone_row
from zoo.names import Name, natural_order, parse_name


def test_a_name_has_three_parts():
    name = parse_name("simco-r18-cifar100")
    assert name == Name("simco", "r18", "cifar100", "")


def test_a_name_may_have_a_variant():
    name = parse_name("mocov2-r20-digits-long2")
    assert name == Name("mocov2", "r20", "digits", "long2")


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_pair_of_rows_makes_a_name(backbone: str, dataset: str):
    assert parse_name(f"simclr-{backbone}-{dataset}")[1:3] == (backbone, dataset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "simco",
        "simco-r18",
        "simco-r18-cifar100-a-b",
        "SimCo-r18-cifar100",
        "simco-r18-cifar100\n",
        "simco--cifar100",
        "simco-r18-",
        "simco_r18_cifar100",
        "simco-r18-cifar100/..",
        "../simco-r18-cifar100",
        "simco-r18-cifär",
        "simco-r¹-digits",
        " simco-r18-cifar100",
    ],
)
def test_other_texts_are_told_the_grammar_and_the_tables(text: str):
    with pytest.raises(UnknownName, match=r"<method>-<backbone>-<data set>.*backbones: r20, .*data sets: cifar10, "):
        parse_name(text)


def test_an_unknown_part_is_told_the_nearest_names():
    with pytest.raises(UnknownName, match="unknown backbone 'r118'; nearest: r18"):
        parse_name("simco-r118-cifar100")
    with pytest.raises(UnknownName, match="unknown data set 'cifar1000'; nearest: cifar100, cifar10"):
        parse_name("simco-r18-cifar1000")
    with pytest.raises(UnknownName, match="unknown backbone 'x'; known: r20, r18"):
        backbone_row("x")
    with pytest.raises(UnknownName, match="unknown data set 'digit'; nearest: digits"):
        dataset_row("digit")


def test_unknown_lists_what_is_known_or_says_that_nothing_is():
    assert str(unknown("model", "zzz", [])) == "unknown model 'zzz'; none are known"
    many = [f"m{i}" for i in range(20)]
    assert str(unknown("model", "zzz", many)).endswith("m10, m11 ...")
    assert str(unknown("model", "zzz", ["abc"], "Do this")) == "unknown model 'zzz'; known: abc. Do this"


def test_an_unknown_name_can_be_caught_as_a_lookup_error():
    with pytest.raises(LookupError):
        parse_name("simco-r18-mnist")


def test_natural_order_counts():
    names = ["r101", "cifar100", "r18", "cifar10", "r18-b", "r9"]
    assert sorted(names, key=natural_order) == ["cifar10", "cifar100", "r9", "r18", "r18-b", "r101"]


@given(st.lists(st.text(), min_size=2))
def test_natural_order_sorts_any_text(texts: list[str]):
    """Folder names on disk are any text: superscripts and other digits that int() refuses, too."""
    sorted([*texts, "r²", "٣"], key=natural_order)
