"""The site file: where it is looked for, what it may say, and that a cluster without it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster import site
from muster.errors import ConfigError
from muster.site import Site, load_site


@pytest.fixture(autouse=True)
def no_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MUSTER_SITE", raising=False)
    monkeypatch.setattr(site, "DEFAULT_PATH", tmp_path / "default.yaml")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_order_is_argument_then_environment_then_default_file_then_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_site() == Site()
    write(tmp_path / "default.yaml", "gate_timeout_s: 1")
    assert load_site().gate_timeout_s == 1.0
    monkeypatch.setenv("MUSTER_SITE", str(write(tmp_path / "named.yaml", "gate_timeout_s: 2")))
    assert load_site().gate_timeout_s == 2.0
    assert load_site(write(tmp_path / "given.yaml", "gate_timeout_s: 3")).gate_timeout_s == 3.0
    monkeypatch.setenv("MUSTER_SITE", "")
    assert load_site().gate_timeout_s == 1.0


def test_named_file_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SITE", "/no/site.yaml")
    with pytest.raises(ConfigError, match=r"^/no/site.yaml: no such file"):
        load_site()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("lease: 3", "unknown key 'lease'. Did you mean 'lease_s'?"),
        ("max_unfit_fraction: 1.1", "max_unfit_fraction: 1.1 is not from 0 to 1"),
        ("max_unfit_fraction: -0.1", "max_unfit_fraction: -0.1 is not from 0 to 1"),
        ("max_unfit_fraction: .nan", "max_unfit_fraction: nan is no number"),
        ("gate_timeout_s: 0", "gate_timeout_s: must be above 0"),
        ("lost_after_s: -1", "lost_after_s: must be above 0"),
        ("lease_s: .nan", "lease_s: nan is no number"),
        ("lease_s: 3", "lease_s: 3 is below 3.5, the supervisor writes every second"),
        ("requeue_wait_s: 0", "requeue_wait_s: must be above 0"),
        ("ranks_per_node: 0", "ranks_per_node: is below 1"),
        ("ranks_per_node: -8", "ranks_per_node: is below 1"),
        ("ranks_per_node: eight", "ranks_per_node: 'eight' is str, not int"),
        ("replace_command: reboot {node}", "replace_command: 'reboot {node}' is not a list"),
        ("shared_paths: [1]", "shared_paths[0]: 1 is int, not str"),
    ],
)
def test_wrong_line_is_one_line_and_78(line: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "site.yaml", line)
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert (caught.value.code, bool(caught.value.fix)) == (78, True)


@pytest.mark.parametrize("fraction", ["0", "0.0", "1", "0.25"])
def test_fraction_edges_are_in(fraction: str, tmp_path: Path) -> None:
    text = f"max_unfit_fraction: {fraction}"
    assert load_site(write(tmp_path / "s.yaml", text)).max_unfit_fraction == float(fraction)
