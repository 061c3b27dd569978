"""Licences of weights: shown wherever the model is, kept when it is published again, refused on demand."""

from pathlib import Path

import pytest
from loopback_files import NAME, FileServer
from loopback_hub import LoopbackHub

import zoo
from serve.answers import facts
from serve.export import export
from serve.session import open_model
from zoo.errors import LicenceRefused, ZooError
from zoo.hub.resolve import locate
from zoo.release.publish import build_release, publish

pytest_plugins = ["author_fixtures", "hub_fixtures"]


def test_one_variable_refuses_weights_without_commercial_use_before_and_after_they_are_fetched(
    published: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path
):
    monkeypatch.setenv("ZOO_COMMERCIAL", "1")
    for _ in range(2):
        with pytest.raises(LicenceRefused, match=rf"{NAME} has the licence CC-BY-NC-4\.0, which forbids commercial"):
            zoo.load(NAME)
        assert zoo.info(NAME).licence == "CC-BY-NC-4.0"
        monkeypatch.delenv("ZOO_COMMERCIAL")
        zoo.load(NAME)
        monkeypatch.setenv("ZOO_COMMERCIAL", "1")
    assert zoo.load("simco-r20-cifar100").card.licence == ""


def test_a_value_of_the_variable_that_means_nothing_is_refused(published: FileServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ZOO_COMMERCIAL", "yes")
    with pytest.raises(ZooError, match=r"ZOO_COMMERCIAL='yes'; allowed: 1"):
        zoo.load(NAME)


@pytest.mark.slow
def test_a_server_states_the_licence_of_what_it_serves(published: FileServer):
    zoo.load(NAME)
    export(NAME)
    assert facts(open_model(NAME))["licence"] == "CC-BY-NC-4.0"


def test_a_converted_model_is_published_under_its_own_licence_with_its_conversion_described(published: FileServer):
    zoo.load(NAME)
    text = (build_release(locate(NAME), "tester/converted") / "README.md").read_text()
    assert "license: cc-by-nc-4.0\n" in text
    assert "CC-BY-NC-4.0, as their publisher states it (somebody/moco README.md). It forbids commercial use." in text
    assert f"converted by contrastive-zoo from {published.url}" in text
    assert "The weights are those that somebody/moco publishes, converted." in text
    assert "not the authors'" not in text
    assert '"license": "cc-by-nc-4.0"' in (locate(NAME) / "hub" / "config.json").read_text()


def test_the_licence_travels_over_the_hub(published: FileServer, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch):
    zoo.load(NAME)
    publish(locate(NAME), repo="tester/converted")
    assert zoo.load("hf://tester/converted").card.licence == "CC-BY-NC-4.0"
    monkeypatch.setenv("ZOO_COMMERCIAL", "1")
    with pytest.raises(LicenceRefused, match="forbids commercial use"):
        zoo.load("hf://tester/converted")
