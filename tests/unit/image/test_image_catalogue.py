"""containers/images.yaml agrees with pyproject.toml, the recipes and the Dockerfiles."""

from __future__ import annotations

import re
from pathlib import Path

import nox
import pytest
import yaml
from packaging.requirements import Requirement

from muster.errors import ConfigError, UsageError
from muster.image.catalogue import Image, build_arguments, load

ROOT = Path(__file__).resolve().parents[3]
PATH, CATALOGUE = load()
IMAGES = CATALOGUE.images
EXTRAS: dict[str, list[str]] = nox.project.load_toml(ROOT / "pyproject.toml")["project"][
    "optional-dependencies"
]
RECIPES = sorted(path.parent.name for path in ROOT.glob("recipes/*/recipe.yaml"))
OPTIONAL = {"transformer-engine"}  # the recipes do without


def bare(name: str) -> str:
    """A package's name without [extras], as the index spells it."""
    return re.sub(r"[-_.]+", "-", name.partition("[")[0]).lower()


def disagreements(image: Image, lines: list[str]) -> list[str]:
    """The requirements that an image does not fulfil."""
    versions = {bare(n): v for n, v in [*image.provides.items(), *image.packages.items()]}
    wrong = []
    for requirement in map(Requirement, lines):
        name = bare(requirement.name)
        version = versions.get(name)
        if version is None and name in OPTIONAL:
            continue
        # NVIDIA's builds call themselves pre-releases: 2.10.0a0 is after 2.9.
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement}: {version}")
    return wrong


def requirements(recipe: str) -> list[str]:
    """The lines of a recipe's requirements.txt, and of its extra in pyproject.toml."""
    file = ROOT / "recipes" / recipe / "requirements.txt"
    bare_lines = [line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines()]
    return [*filter(None, bare_lines), *EXTRAS.get(recipe, [])]


@pytest.mark.parametrize("name", IMAGES)
def test_versions_agree_with_the_recipes_and_with_pyproject(name: str) -> None:
    there = [recipe for recipe in IMAGES[name].recipes if recipe in RECIPES]
    assert [disagreements(IMAGES[name], requirements(recipe)) for recipe in there] == [[]] * len(
        there
    )


def test_every_recipe_with_packages_of_its_own_has_an_image() -> None:
    listed = [recipe for image in IMAGES.values() for recipe in image.recipes]
    assert [recipe for recipe in RECIPES if recipe in EXTRAS and recipe not in listed] == []
    assert [recipe for recipe in listed if recipe in EXTRAS and recipe not in RECIPES] == []


def test_a_disagreement_is_found() -> None:
    image = Image("a", 1, [], {"torch": "2.9.0a0"}, {"nemo-toolkit[core]": "2.7.3", "numpy": "2.1"})
    lines = [
        "torch>=2.9",
        "numpy<2",
        "nemo_toolkit==2.7.3",
        "psutil",
        "transformer-engine[x]",
    ]
    assert disagreements(image, lines) == [
        "torch>=2.9: 2.9.0a0", "numpy<2: 2.1", "psutil: None",
    ]  # fmt: skip


def dockerfile(name: str) -> str:
    """A Dockerfile without the two places where they differ: what is said, and what is proven."""
    text = (PATH.parent / f"{name}.Dockerfile").read_text("utf-8")
    text = text.partition("\n")[2]
    return re.sub(r"python3 -c '[^']*'", "PROOF", text)


def test_one_dockerfile_for_each_image_and_all_say_the_same() -> None:
    names = sorted(path.stem for path in PATH.parent.glob("*.Dockerfile"))
    assert names == sorted(IMAGES)
    assert len({dockerfile(name) for name in names}) == 1


def test_a_dockerfile_keeps_what_makes_a_container_work() -> None:
    text = dockerfile(next(iter(IMAGES)))
    for line in (
        "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        "PYTORCH_VERSION=${PYTORCH_VERSION}", "PYTHONNOUSERSITE=1", "USER 1000:1000",
    ):  # fmt: skip
        assert line in text
    assert "ENTRYPOINT" not in text


def test_every_arg_of_the_dockerfiles_is_handed_in() -> None:
    asked = set(re.findall(r"^ARG (\w+)", dockerfile("pytorch"), re.MULTILINE))
    image = IMAGES["pytorch"]
    given = build_arguments(image, CATALOGUE.fabric)
    assert asked == {"BASE_IMAGE", *given}
    assert given["PYTORCH_VERSION"] == image.provides["torch"]
    assert "torch==2.10.0a0" in given["PROVIDES"].split()
    assert build_arguments(image, None)["EFA_INSTALLER_VERSION"] == ""


GOOD = {
    "base": "a.example/b:1@sha256:" + "0" * 64,
    "size_gib": 1,
    "recipes": ["r"],
    "packages": {"x": "1.0"},
}
BAD = [
    ({"base": "a.example/b:1"}, "has no digest"),
    ({"size_gib": 0}, "must be above 0"),
    ({"size_gib": float("inf")}, "size_gib: inf is no number"),
    ({"size_gib": float("nan")}, "size_gib: nan is no number"),
    ({"base": "not an image!!"}, "one.base: 'not an image!!' is no image of a registry"),
    ({"base": "NVCR.IO/Nvidia/x:1"}, "one.base: 'NVCR.IO/Nvidia/x:1' is no image"),
    ({"base": "/shared/a.sqsh"}, "one.base: '/shared/a.sqsh' is the name of a file"),
    ({"packages": {"x": "1.0 --index-url evil"}}, "one.packages.x: '1.0 --index-url evil' is no"),
    ({"packages": {"x": "-1"}}, "one.packages.x: '-1' is no version"),
    ({"packages": {"x": "1\n"}}, "is no version"),
    ({"packages": {"x y": "1.0"}}, "one.packages: 'x y' is no name of a package"),
    ({"packages": {"--index-url": "1.0"}}, "'--index-url' is no name of a package"),
    ({"packages": {"": "1.0"}}, "'' is no name of a package"),
    ({"packages": {"a;touch$(x)": "1.0"}}, "'a;touch$(x)' is no name of a package"),
    ({"packages": {"a[b": "1.0"}}, "'a[b' is no name of a package"),
    ({"provides": {"-r": "1.0"}}, "one.provides: '-r' is no name of a package"),
    ({"recipes": []}, "one.recipes: must be names of recipes"),
    ({"recipes": ["a", ""]}, "one.recipes: must be names of recipes"),
    ({"recipes": ["a", "a"]}, "one.recipes: has a recipe twice"),
    ({"provide": {}}, "Did you mean 'provides'"),
]


@pytest.mark.parametrize(("change", "said"), BAD, ids=[said for _, said in BAD])
def test_a_bad_file_gets_one_line(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = tmp_path / "images.yaml"
    fabric = {"efa_installer": "1", "aws_ofi_nccl": "1", "gdrcopy": "1"}
    path.write_text(yaml.safe_dump({"fabric": fabric, "images": {"one": GOOD}}))
    assert list(load(path)[1].images) == ["one"]
    path.write_text(yaml.safe_dump({"fabric": fabric, "images": {"one": {**GOOD, **change}}}))
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["efa_installer", "aws_ofi_nccl", "gdrcopy"])
@pytest.mark.parametrize("version", ["1 2", "1\n2", "", "$(x)"])
def test_a_fabric_has_versions(tmp_path: Path, key: str, version: str) -> None:
    path = tmp_path / "images.yaml"
    fabric = {"efa_installer": "1", "aws_ofi_nccl": "1", "gdrcopy": "1", key: version}
    path.write_text(yaml.safe_dump({"fabric": fabric, "images": {"one": GOOD}}))
    with pytest.raises(ConfigError, match=rf"fabric\.{key}: .* is no version"):
        load(path)


def test_a_recipe_has_one_image(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    fabric = {"efa_installer": "1", "aws_ofi_nccl": "1", "gdrcopy": "1"}
    path.write_text(yaml.safe_dump({"fabric": fabric, "images": {"one": GOOD, "two": GOOD}}))
    with pytest.raises(ConfigError, match="'r' is in one already"):
        load(path)


def test_an_unknown_image_gets_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="Did you mean 'pytorch'"):
        CATALOGUE.image("pytorhc")
