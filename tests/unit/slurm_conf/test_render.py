"""slurm.conf and the files beside it: what is in them, what is not, and whose lines win."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lifecycle.description.load import from_values, load_description
from lifecycle.description.model import Description
from muster.errors import ConfigError
from slurm.conf import owned
from slurm.conf.expected import differences
from slurm.conf.keys import message_timeout_s, sections
from slurm.conf.render import render
from slurm.conf.version import parse

ROOT = Path(__file__).resolve().parents[3]
ON_PREMISES = ROOT / "lifecycle" / "examples" / "on_premises" / "cluster.yaml"
HARDWARE = {
    "sockets": 2,
    "cores_per_socket": 4,
    "threads_per_core": 2,
    "memory_mib": 100_000,
    "gpus": 8,
    "gpu_type": "h100",
}


def described(nodes: str = "n[1-4]", **changes: Any) -> Description:
    group = {"name": "gpu", "role": "compute", "nodes": [nodes], "hardware": HARDWARE}
    values = {
        "name": "c",
        "groups": [{"name": "head", "role": "head", "nodes": ["h"]}, group],
        "partitions": [{"name": "main", "groups": ["gpu"], "default": True}],
        "accounting": {"database": "off"},
        **changes,
    }
    return from_values(values, "cluster.yaml")


def rendered(
    description: Description,
    version: str = "22.05",
    present: Mapping[str, str | None] | None = None,
) -> dict[str, str]:
    files = render(description, version, present or {})
    return {name: text for name, text in files.items() if text is not None}


def keys(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if re.match(r"[A-Z]\w*=", line))
    return {key: value for key, _, value in pairs}


def test_again_changes_not_a_byte() -> None:
    once = rendered(load_description(ON_PREMISES))
    assert set(once) == {
        *("slurm.conf", "muster.conf", "gres.conf", "cgroup.conf", "topology.conf"),
        "plugstack.conf",
    }
    assert rendered(load_description(ON_PREMISES), present=once) == once


def test_every_key_has_its_reason_above() -> None:
    text = rendered(load_description(ON_PREMISES))["muster.conf"]
    lines = [line for line in text.splitlines() if not line.startswith("###")]
    bare = [
        line
        for above, line in itertools.pairwise(lines)
        if re.match(r"[A-Z]\w*=", line) and not above.startswith("#")
    ]
    # Of a few lines of one kind only the first has it; topology.conf has its own.
    assert {line.partition("=")[0] for line in bare} <= {
        *("NodeName", "PartitionName", "TopologyPlugin")
    }


@pytest.mark.parametrize("version", ["22.05", "23.02", "23.11", "24.05", "24.11", "25.11"])
@pytest.mark.parametrize("platform", ["plain", "hyperpod", "parallelcluster"])
def test_no_key_is_given_twice(version: str, platform: str) -> None:
    description = load_description(ON_PREMISES, [f"platform={platform}"])
    found = [s.key for part in sections(description, parse(version)) for s in part.settings]
    assert sorted(set(found) | {"SlurmctldHost"}) == sorted(
        [key for key in found if key != "SlurmctldHost"] + ["SlurmctldHost"]
    )


def test_delay_of_a_requeue_by_release() -> None:
    for version in ("22.05", "23.02", "23.11", "24.05", "24.11", "25.05.2"):
        found = keys(rendered(described(), version)["muster.conf"])
        assert found["AuthInfo"] == "cred_expire=5"
        assert "requeue_delay" not in found["SchedulerParameters"]
    found = keys(rendered(described(), "slurm-wlm 25.11.1")["muster.conf"])
    assert "AuthInfo" not in found
    assert found["SchedulerParameters"].endswith(",requeue_delay=5")


@pytest.mark.parametrize("version", ["", "21.08", "twenty", "1.2.3", "222.05"])
def test_no_release_of_slurm(version: str) -> None:
    with pytest.raises(ConfigError, match="slurm: version: "):
        rendered(described(), version)


def test_blocks_of_nodes_need_a_newer_slurm() -> None:
    blocks = [{"name": "b1", "nodes": ["n[1-2]"]}, {"name": "b2", "nodes": ["n[3-4]"]}]
    description = described(slurm={"topology": "block", "switches": blocks})
    found = rendered(description, "23.11")
    assert (
        "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2\n"
        in (found["topology.conf"])
    )
    assert keys(found["muster.conf"])["TopologyPlugin"] == "topology/block"
    with pytest.raises(ConfigError, match=r"'block' needs Slurm 23\.11, this is 23\.02"):
        rendered(description, "23.02")


def test_what_a_platform_owns_is_left_to_it() -> None:
    found = rendered(described(platform="hyperpod"))
    text = found["muster.conf"]
    assert set(found) == {"slurm.conf", "muster.conf"}
    assert not {"ClusterName", "SlurmctldHost", "NodeName", "TaskPlugin"} & set(keys(text))
    # its auto-resume refuses PrologFlags=Alloc, and its srun has --auto-resume itself
    assert not {"Prolog", "PrologFlags"} & set(keys(text))
    assert keys(text)["SlurmdTimeout"] == "30"
    assert "Prolog" in keys(rendered(described(platform="parallelcluster"))["muster.conf"])


def test_only_jobs_in_cgroups_have_a_container_for_ssh() -> None:
    def flags(**slurm: bool) -> str:
        closed = described(slurm={"ssh_with_job_only": True, **slurm})
        return keys(rendered(closed)["muster.conf"])["PrologFlags"]

    assert flags() == "Contain,DeferBatch"
    assert flags(cgroup=False) == "Alloc,DeferBatch"
    assert flags(ssh_with_job_only=False) == "Alloc,DeferBatch"
    on_a_platform = described(platform="parallelcluster", slurm={"ssh_with_job_only": True})
    assert keys(rendered(on_a_platform)["muster.conf"])["PrologFlags"] == "Alloc,DeferBatch"


def test_partitions() -> None:
    partitions = [
        {"name": "production", "groups": ["gpu"], "default": True, "priority_tier": 100},
        {"name": "low", "groups": ["gpu"], "preempt": "requeue", "grace_s": 60},
        {"name": "short", "groups": ["gpu"], "max_time_s": 90_061, "default_time_s": 61},
    ]
    group = {"name": "gpu", "role": "compute", "nodes": ["n[1-4]"], "hardware": HARDWARE}
    heads = {"name": "head", "role": "head", "nodes": ["h"]}
    groups = [heads, {**group, "spares": 1}]
    text = rendered(described(partitions=partitions, groups=groups))["muster.conf"]
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("Part")}
    assert lines["PartitionName=production"] == (
        "PartitionName=production Nodes=n[1-4] Default=YES PriorityTier=100 PreemptMode=OFF "
        "MaxTime=UNLIMITED MaxNodes=3 State=UP"
    )
    assert " PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 " in lines["PartitionName=low"]
    assert " MaxTime=1-01:01:01 DefaultTime=0-00:01:01 " in lines["PartitionName=short"]
    assert keys(text)["PreemptType"] == "preempt/partition_prio"
    assert "PreemptType" not in keys(rendered(described())["muster.conf"])


def test_a_partition_that_is_alone_is_the_default() -> None:
    first, second = ({"name": name, "groups": ["gpu"]} for name in ("first", "second"))
    assert " Default=YES " in rendered(described(partitions=[first]))["muster.conf"]
    assert "Default=YES" not in rendered(described(partitions=[first, second]))["muster.conf"]


def test_suspending_needs_nodes_without_gpus() -> None:
    partitions = [
        {"name": "low", "groups": ["gpu"], "preempt": "suspend"},
        {"name": "high", "groups": ["gpu"], "priority_tier": 9},
    ]
    with pytest.raises(ConfigError, match="a suspended job keeps its GPUs"):
        rendered(described(partitions=partitions))
    plain = {**HARDWARE, "gpus": 0, "gpu_type": None}
    group = {"name": "gpu", "role": "compute", "nodes": ["n1"], "hardware": plain}
    groups = [{"name": "head", "role": "head", "nodes": ["h"]}, group]
    found = rendered(described(partitions=partitions, groups=groups))
    assert keys(found["muster.conf"])["PreemptMode"] == "SUSPEND,GANG"
    assert "gres.conf" not in found


def test_addresses_go_with_their_nodes() -> None:
    addresses = {"n1": "10.0.0.11", "n2": "10.0.0.12", "n3": "10.0.0.9", "n4": "10.0.0.10"}
    group = {"name": "gpu", "role": "compute", "nodes": ["n[1-5]"], "hardware": HARDWARE}
    groups = [{"name": "head", "role": "head", "nodes": ["h"]}, {**group, "addresses": addresses}]
    text = rendered(described(groups=groups))["muster.conf"]
    words = [line.split()[:2] for line in text.splitlines() if line.startswith("NodeName")]
    assert words == [
        ["NodeName=n[1-2]", "NodeAddr=10.0.0.[11-12]"],
        ["NodeName=n[3-4]", "NodeAddr=10.0.0.[9-10]"],
        ["NodeName=n5", "Sockets=2"],
    ]


def test_hardware_that_nobody_knows() -> None:
    group = {"name": "gpu", "role": "compute", "nodes": ["n1"], "instance_type": "x9.huge"}
    groups = [{"name": "head", "role": "head", "nodes": ["h"]}, group]
    with pytest.raises(ConfigError, match=r"'x9\.huge' is not known\. Fix: write hardware"):
        rendered(described(groups=groups))


@pytest.mark.parametrize(
    ("lost_after_s", "expected"), [(300, 10), (30, 10), (15, 5), (6, 2), (3, 2), (1, 2)]
)
def test_answers_fit_into_the_silence(lost_after_s: int, expected: int) -> None:
    assert message_timeout_s(lost_after_s) == expected


def test_settings_of_cluster_yaml_win() -> None:
    slurm = {"settings": {"killwait": "5", "TreeWidth": "128"}}
    found = keys(rendered(described(slurm=slurm))["muster.conf"])
    assert (found["KillWait"], found["TreeWidth"]) == ("5", "128")


OPERATOR = """\
# ours since 2019
SlurmdTimeout = 120   # the switch reboots
schedulerParameters=\\
  bf_continue
PartitionName=main Nodes=old1 State=DOWN
NodeName=old[1-2] CPUs=4
Include site.conf
"""


def test_lines_of_an_operator_win_and_stay() -> None:
    present = {"slurm.conf": OPERATOR, "site.conf": "KillWait=7\n"}
    found = rendered(described(), present=present)
    assert found["slurm.conf"] == f"Include muster.conf\n{OPERATOR}"
    text = found["muster.conf"]
    assert not {"SlurmdTimeout", "SchedulerParameters", "KillWait"} & set(keys(text))
    assert "\n# SlurmdTimeout: slurm.conf has its own\n" in text
    assert "\n# main: slurm.conf has its own\n" in text
    assert "NodeName=n[1-4]" in text
    assert rendered(described(), present={**present, **found}) == found


def test_quotes_of_an_operator_are_no_part_of_a_name() -> None:
    own = 'PartitionName="main" Nodes=x State=DOWN\nNodeName="old[1-2]" CPUs=4\n'
    assert (
        "\n# main: slurm.conf has its own\n"
        in (rendered(described(), present={"slurm.conf": own})["muster.conf"])
    )
    with pytest.raises(ConfigError, match=r"NodeName=n\[4-5\]: node 'n4' is in cluster.yaml"):
        rendered(described(), present={"slurm.conf": 'NodeName = "n[4-5]" CPUs=1\n'})


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\f", "\v", "\r"])
def test_only_a_newline_ends_a_line(mark: str) -> None:
    text = f"# a{mark}KillWait=9\n"
    assert "KillWait" in keys(rendered(described(), present={"slurm.conf": text})["muster.conf"])
    assert owned.written_out(text, lambda _: None) == text


def test_a_node_of_both_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"NodeName=n\[4-5\]: node 'n4' is in cluster.yaml"):
        rendered(described(), present={"slurm.conf": "NodeName=n[4-5] CPUs=1\n"})


@pytest.mark.parametrize("line", ["Include muster.conf", "include   /etc/slurm/muster.conf # x"])
def test_an_include_that_is_there_stays_where_it_is(line: str) -> None:
    text = f"ClusterName=x\n{line}\nKillWait=3"
    assert owned.with_include(text) == text


def test_a_block_is_replaced_where_it_stands() -> None:
    first = owned.with_block("Name=gpu File=/dev/x", ["A=1"], "gres.conf")
    assert first == f"Name=gpu File=/dev/x\n{owned.BEGIN}\nA=1\n{owned.END}\n"
    longer = f"{first}# mine\nName=nic\n"
    second = owned.with_block(longer, ["B=2", "C=3"], "gres.conf")
    assert second == longer.replace("A=1", "B=2\nC=3")
    assert owned.with_block(second, [], "gres.conf") == "Name=gpu File=/dev/x\n# mine\nName=nic\n"
    assert owned.with_block(None, [], "gres.conf") is None
    assert owned.with_block("", ["A=1"], "gres.conf") == f"{owned.BEGIN}\nA=1\n{owned.END}\n"


@pytest.mark.parametrize("text", [owned.BEGIN, owned.END, f"{owned.END}\n{owned.BEGIN}\n"])
def test_a_damaged_block_is_left_alone(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^gres\.conf: "):
        owned.with_block(f"Name=gpu\n{text}\n", ["A=1"], "gres.conf")


def test_logical_lines() -> None:
    text = "A=1 # c\n#B=2\nC=\\\n3\n\n  D=4  \nE=5\\"
    for end in ("\n", "\r\n"):
        lines = list(owned.logical_lines(text.replace("\n", end)))
        assert lines == ["A=1", "C= 3", "D=4", "E=5"]


def test_what_slurm_understood_otherwise() -> None:
    description = described()
    assert list(differences(description, {"main": 4}, {"n1": 8})) == []
    assert list(differences(description, {}, {})) == []
    assert list(differences(description, {"main": 3, "other": 9}, {"n1": 7})) == [
        "partition main: 3 of 4 nodes",
        "gres.conf: node n1 has 7 of 8 GPUs",
    ]
    assert list(differences(description, {"x": 1}, {})) == ["partition main: 0 of 4 nodes"]
