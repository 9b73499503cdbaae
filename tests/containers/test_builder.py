"""Images for tests: in the versions of outside, so that their losses can be compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from muster.image.catalogue import load
from tests.containers import builder
from tests.containers.builder import ROOT, fetch_wheels, home, local_catalogue, pinned
from tests.sessions.environment import Environment


def test_every_recipe_has_an_image_with_the_versions_of_its_environment(tmp_path: Path) -> None:
    images = load(local_catalogue(tmp_path))[1].images.values()
    recipes = {path.parent.name for path in ROOT.glob("recipes/*/recipe.yaml")}
    assert recipes == {recipe for image in images for recipe in image.recipes}
    for image in images:
        environment = home(image.recipes[0])
        outside, text = pinned(environment), Environment(environment).pins.read_text("utf-8")
        assert image.provides == {"torch": outside["torch"]}
        for package, version in image.packages.items():
            line = f"{Requirement(package).name}=={version}"  # for the Python of some base
            assert Requirement(package).name not in outside or line in text, image.recipes


def test_what_an_environment_does_not_pin_is_fetched_without_its_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(builder, "run", lambda *argv: said.append(argv))
    fetch_wheels(local_catalogue(tmp_path / "c"), "llama2_automodel", tmp_path / "w")
    torch, both, more = said
    pins = str(Environment("llama2_automodel").pins)
    assert pins in torch
    assert pins in both
    assert pins not in more
    assert [word.partition("==")[0] for word in more if "==" in word] == ["boto3"]
    assert {"nemo-automodel", "torch"} <= {word.partition("==")[0] for word in both}
