"""YAML, dataclasses and overrides: what is accepted, and one line for everything that is not."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import date
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
    ({"inner": {1: 2}}, "f.yaml: inner: unknown key '1'. Fix: use one of width, rate"),
    ({"inner": {None: 2}}, "f.yaml: inner: unknown key 'None'"),
    ({"inner": {True: 2}}, "f.yaml: inner: unknown key 'True'"),
    ({"inner": {date(2024, 1, 1): 2}}, "f.yaml: inner: unknown key '2024-01-01'"),
    ({"table": {True: 2}}, "f.yaml: table: key True is bool, not text. Fix: quote the key"),
    ({"table": {None: 2}}, "f.yaml: table: key None is NoneType, not text"),
    ({"table": {1: 2, "1": 3}}, "f.yaml: table: key '1' stands there twice"),
    ({"count": list(range(10**6))}, "f.yaml: count: [0, 1, 2, 3, 4, 5, ...] is list, not int"),
    ({"rate": float("nan")}, "f.yaml: rate: nan is no number. Fix: give a finite one"),
    ({"limit": float("-inf")}, "f.yaml: limit: -inf is no number"),
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


BOMB = "a: &b0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
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
    (b"a: 1\nb: {c: 1,\n  c: 2}\n", ":3: key 'c' stands there twice. Fix: leave one"),
    (b"a: 1\n'a': 2\n", ":2: key 'a' stands there twice"),
    (b"a: 02000\n", ":1: 02000 is read as octal. Fix: write it without leading zeros, or quote it"),
    (b"a: [-0_17]\n", ":1: -0_17 is read as octal"),
    (b"a: !!int '010'\n", ":1: 010 is read as octal"),
    (b"a: 1:00:00\n", ":1: 1:00:00 is read to base 60. Fix: write it in one unit, or quote it"),
    (b"a: 1:30.5\n", ":1: 1:30.5 is read to base 60"),
    (b"a: 9223372036854775808\n", ":1: 9223372036854775808 is more than 64 bits"),
    (b"a: 0x1" + b"0" * 6000 + b"\n", ":1: 0x100000000000000000... is more than 64 bits"),
    (b"a: &a {b: *a}\n", ":1: a value contains itself. Fix: write it out instead of the alias"),
    (b"a: &a [1, [*a]]\n", ":1: a value contains itself"),
    (b"a: &a {<<: *a}\n", ":1: a value contains itself"),
    (BOMB.encode(), ":6: more than 1000000 values with aliases written out. Fix: use fewer"),
    (b'a: "b\\ud800"\n', ":1: half a character"),
    (b'"b\\udfff": a\n', ":1: half a character"),
    (b'a: "/b\\0c"\n', ":1: control characters in '/b\\x00c'. Fix: leave them out"),
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


TEXTS: list[tuple[str, Any]] = [
    ("0", 0),
    ("-1_000", -1000),
    ("0x1f", 31),
    ("9223372036854775807", 2**63 - 1),
    ("'02000'", "02000"),
    ("'1:00:00'", "1:00:00"),
    ("0.5", 0.5),
    ('"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
    ('"b\\tc\\nd"', "b\tc\nd"),
    ("[&b [1], *b, *b]", [[1], [1], [1]]),
    ("{b: &b {c: 1, d: 2}, e: {<<: *b, d: 3}}", {"b": {"c": 1, "d": 2}, "e": {"c": 1, "d": 3}}),
]


@pytest.mark.parametrize(("text", "wanted"), TEXTS)
def test_what_only_looks_strange_is_read(text: str, wanted: Any, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(f"a: {text}\n")
    assert read_yaml(tmp_path / "f.yaml") == {"a": wanted}
    assert override({}, [f"a={text}"]) == {"a": wanted}


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
        ("a={b: 1, b: 2}", "a={b: 1, b: 2}: key 'b' stands there twice. Fix: leave one"),
        ("a=010", "a=010: 010 is read as octal. Fix: write it without leading zeros, or quote it"),
        ("a=&a {b: *a}", "a=&a {b: *a}: a value contains itself"),
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


integers = st.integers(-(2**63), 2**63 - 1)


@given(integers | st.booleans() | st.lists(integers, max_size=3))
def test_override_reads_what_yaml_writes(value: Any) -> None:
    text = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n")
    assert override({}, [f"a.b={text}"]) == {"a": {"b": value}}
