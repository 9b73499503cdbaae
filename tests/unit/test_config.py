"""YAML, dataclasses and overrides: what is accepted, and one line for everything that is not."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Optional

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from muster.config import build, override, read_yaml
from muster.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    """Nested."""

    width: int = 1
    rate: float = 0.5


@dataclass(frozen=True)
class Outer:
    """One field of every kind."""

    name: str
    count: int = 0
    flag: bool = False
    rate: float = 1.0
    limit: Optional[float] = None
    place: Path = Path("/tmp")
    words: list[str] = field(default_factory=list)
    pairs: tuple[int, ...] = ()
    table: dict[str, int] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    maybe: Optional[Inner] = None
    inners: list[Inner] = field(default_factory=list)
    anything: Any = None


GOOD: list[tuple[dict[str, Any], str, Any]] = [
    ({}, "count", 0),
    ({"count": 3}, "count", 3),
    ({"flag": True}, "flag", True),
    ({"rate": 2}, "rate", 2.0),
    ({"limit": None}, "limit", None),
    ({"limit": 2}, "limit", 2.0),
    ({"place": "/a b"}, "place", Path("/a b")),
    ({"words": ["a", "b"]}, "words", ["a", "b"]),
    ({"pairs": [1, 2]}, "pairs", (1, 2)),
    ({"table": {"a": 1, 2: 3}}, "table", {"a": 1, "2": 3}),
    ({"inner": {"width": 4}}, "inner", Inner(4)),
    ({"maybe": None}, "maybe", None),
    ({"maybe": {"rate": 1}}, "maybe", Inner(1, 1.0)),
    ({"inners": [{}, {"width": 2}]}, "inners", [Inner(), Inner(2)]),
    ({"anything": {"x": [1]}}, "anything", {"x": [1]}),
]


@pytest.mark.parametrize(("values", "key", "wanted"), GOOD)
def test_value_arrives(values: dict[str, Any], key: str, wanted: Any) -> None:
    value = getattr(build(Outer, {"name": "n", **values}, "f.yaml"), key)
    assert (value, type(value)) == (wanted, type(wanted))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"count": "3"}, "f.yaml: count: '3' is str, not int. Fix: give a value of type int"),
    ({"count": True}, "f.yaml: count: True is bool, not int"),
    ({"count": 1.5}, "f.yaml: count: 1.5 is float, not int"),
    ({"count": None}, "f.yaml: count: None is NoneType, not int"),
    ({"flag": 1}, "f.yaml: flag: 1 is int, not bool"),
    ({"rate": True}, "f.yaml: rate: True is bool, not float"),
    ({"rate": "1e3"}, "f.yaml: rate: '1e3' is str, not float"),
    ({"name": True}, "f.yaml: name: True is bool, not str"),
    ({"limit": "x"}, "f.yaml: limit: 'x' is str, not float"),
    ({"place": 3}, "f.yaml: place: 3 is int, not Path"),
    ({"words": "a"}, "f.yaml: words: 'a' is not a list. Fix: write [a, b]"),
    ({"words": ["a", 1]}, "f.yaml: words[1]: 1 is int, not str"),
    ({"table": [1]}, "f.yaml: table: [1] is not a mapping"),
    ({"table": {"a": "b"}}, "f.yaml: table.a: 'b' is str, not int"),
    ({"inner": None}, "f.yaml: inner: None is not a mapping. Fix: write 'key: value' lines"),
    ({"inner": {"width": "w"}}, "f.yaml: inner: width: 'w' is str, not int"),
    ({"inner": {"widht": 1}}, "f.yaml: inner: unknown key 'widht'. Did you mean 'width'? Fix: use"),
    ({"inners": [{}, 3]}, "f.yaml: inners[1]: 3 is not a mapping"),
    ({"cuont": 1}, "f.yaml: unknown key 'cuont'. Did you mean 'count'? Fix: use one of name, cou"),
    ({"zzzzzz": 1}, "f.yaml: unknown key 'zzzzzz'. Fix: use one of name, count"),
]


@pytest.mark.parametrize(("values", "line"), BAD)
def test_wrong_value_is_one_line(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Outer, {"name": "n", **values}, "f.yaml")
    assert str(caught.value).startswith(line)
    assert caught.value.code == 78
    assert caught.value.fix


def test_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^f.yaml: key 'name' is missing. Fix: add 'name: ...'$"):
        build(Outer, {}, "f.yaml")


FILES: list[tuple[bytes, str]] = [
    (b"a: [1", ":1: not YAML"),
    (b"a: 1\nb: : 2\n", ":2: not YAML"),
    (b"- 1\n- 2\n", ": the top level is not a mapping"),
    (b"1: a\n", ": the top level is not a mapping"),
    (b"text\n", ": the top level is not a mapping"),
    (b"a: \xff\n", ": 'utf-8' codec can't decode"),
    (b"a: 2024-13-45\n", ": not YAML: month must be in 1..12"),
    (b"a: !!python/object:os.system {}\n", ":1: not YAML: could not determine a constructor"),
    (b"a: \x00\n", ": not YAML: "),
]


@pytest.mark.parametrize(("content", "line"), FILES)
def test_wrong_file_is_one_line(content: bytes, line: str, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}{line}")
    assert "\n" not in str(caught.value)
    assert ". Fix: " in str(caught.value)


def test_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_yaml(tmp_path)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_empty_file_is_no_value(text: str, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(text)
    assert read_yaml(tmp_path / "f.yaml") == {}


OVERRIDES: list[tuple[list[str], dict[str, Any]]] = [
    ([], {"a": {"b": 1}, "c": 2}),
    (["c=3"], {"a": {"b": 1}, "c": 3}),
    (["a.b=[1, 2]"], {"a": {"b": [1, 2]}, "c": 2}),
    (["a.n=x"], {"a": {"b": 1, "n": "x"}, "c": 2}),
    (["d.e.f=1"], {"a": {"b": 1}, "c": 2, "d": {"e": {"f": 1}}}),
    (["c=1", "c=2"], {"a": {"b": 1}, "c": 2}),
    (["c="], {"a": {"b": 1}, "c": None}),
    (["c=x=y"], {"a": {"b": 1}, "c": "x=y"}),
    (["a={b: 5}"], {"a": {"b": 5}, "c": 2}),
]


@pytest.mark.parametrize(("assignments", "wanted"), OVERRIDES)
def test_override(assignments: list[str], wanted: dict[str, Any]) -> None:
    before = {"a": {"b": 1}, "c": 2}
    assert override(before, assignments) == wanted
    assert before == {"a": {"b": 1}, "c": 2}


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("nodes", "nodes: not an assignment. Fix: write key=value, e.g. nodes=4"),
        ("=4", "=4: not an assignment"),
        ("c.d=1", "c.d=1: 'c' holds a value. Fix: name a key inside"),
        ("a=[1", "a=[1: the value is not YAML. Fix: quote it"),
        ("a=2024-13-45", "a=2024-13-45: the value is not YAML. Fix: quote it"),
    ],
)
def test_wrong_override_is_one_line(assignment: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override({"c": 2}, [assignment])
    assert str(caught.value).startswith(line)


def check_line(refused: ConfigError, start: str) -> None:
    assert "\n" not in str(refused)
    assert str(refused).startswith(start)


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
)


@given(
    st.dictionaries(st.sampled_from([f.name for f in fields(Outer)]) | st.text(max_size=5), values)
)
def test_any_mapping_is_built_or_refused_with_one_line(mapping: dict[str, Any]) -> None:
    try:
        built = build(Outer, mapping, "f.yaml")
    except ConfigError as refused:
        check_line(refused, "f.yaml")
    else:
        assert set(mapping) <= {f.name for f in fields(Outer)}
        assert isinstance(built, Outer)


@given(st.text(max_size=30))
def test_any_override_is_taken_or_refused(text: str) -> None:
    try:
        override({"a": {"b": 1}}, [text])
    except ConfigError as refused:
        check_line(refused, "")


@given(st.integers() | st.booleans() | st.lists(st.integers(), max_size=3))
def test_override_reads_what_yaml_writes(value: Any) -> None:
    text = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n")
    assert override({}, [f"a.b={text}"]) == {"a": {"b": value}}
