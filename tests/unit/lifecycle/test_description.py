"""cluster.yaml: what is accepted, and the one line that says what is wrong with the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle.description.host_list import expand
from lifecycle.description.load import as_json, from_values, load_description
from lifecycle.description.model import Description
from lifecycle.description.nodes import accounting_node, all_nodes, of_role
from muster.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "lifecycle" / "examples").glob("*/cluster.yaml"))
ALONE = [path for path in EXAMPLES if not (path.parent / "resource_config.json").exists()]

SMALL = """
name: small
groups:
  - {name: head, role: head, nodes: [head]}
  - {name: gpu, role: compute, nodes: ["n[1-4]"], instance_type: ml.p5.48xlarge}
partitions:
  - {name: train, groups: [gpu], priority_tier: 10}
  - {name: low, groups: [gpu], preempt: requeue}
mounts: [{path: /fsx, kind: nfs, source: "nas:/x"}]
shared_dir: /fsx/.muster
users:
  groups: [{name: research, gid: 2000}]
  users: [{name: ana, uid: 2001, group: research}]
"""


def small(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(SMALL)
    return {**values, **changes}


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.parent.name)
def test_example_can_be_used(path: Path) -> None:
    assert of_role(load_description(path), "compute")


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.parent.name)
def test_written_in_one_piece_it_reads_as_the_same(path: Path, tmp_path: Path) -> None:
    description = load_description(path)
    (tmp_path / "description.json").write_text(as_json(description))
    assert load_description(tmp_path / "description.json") == description


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({}, "/etc/slurm"),
        ({"platform": "hyperpod"}, "/opt/slurm/etc"),
        ({"platform": "parallelcluster", "slurm": {"kill_wait_s": 9}}, "/opt/slurm/etc"),
        ({"platform": "hyperpod", "slurm": {"config_dir": "/mine"}}, "/mine"),
    ],
)
def test_where_slurm_conf_is(changes: dict[str, Any], folder: str) -> None:
    description = from_values(small(**changes), "cluster.yaml")
    assert str(description.slurm.config_dir) == folder


def test_nodes_are_written_out_with_their_hardware() -> None:
    description = from_values(small(), "cluster.yaml")
    names = [node.name for node in all_nodes(description)]
    assert names == ["head", "n1", "n2", "n3", "n4"]
    n1 = of_role(description, "compute")[0]
    assert n1.hardware is not None
    assert (n1.hardware.cpus, n1.hardware.gpus, n1.hardware.gpu_type) == (192, 8, "h100")
    assert all_nodes(description)[0].hardware is None
    assert accounting_node(description) == "head"


def test_an_override_reaches_a_nested_key() -> None:
    assert from_values(small(), "x", ["slurm.lost_after_s=60"]).slurm.lost_after_s == 60


def group(**keys: Any) -> dict[str, Any]:
    head = {"name": "head", "role": "head", "nodes": ["head"]}
    gpu = {"name": "gpu", "role": "compute", "nodes": ["n[1-4]"]}
    return {"groups": [head, {**gpu, **keys}]}


def queue(**keys: Any) -> dict[str, Any]:
    return {"partitions": [{"name": "train", "groups": ["gpu"], **keys}]}


def user(**keys: Any) -> dict[str, Any]:
    ana = {"name": "ana", "uid": 2001, "group": "research", **keys}
    return {"users": {"groups": [{"name": "research", "gid": 2000}], "users": [ana]}}


def mount(**keys: Any) -> dict[str, Any]:
    return {"mounts": [{"path": "/fsx", "kind": "nfs", "source": "nas:/x", **keys}]}


def hardware(**keys: Any) -> dict[str, Any]:
    one = {"sockets": 2, "cores_per_socket": 4, "threads_per_core": 2, "memory_mib": 2048, **keys}
    return group(hardware=one)


def tree(**below: list[str]) -> dict[str, Any]:
    last = list(below)[-1]
    switches = [
        {"name": name, "switches": names, "nodes": ["n[1-4]"] if name == last else []}
        for name, names in below.items()
    ]
    return {"slurm": {"topology": "tree", "switches": switches}}


FILE = {"file": "/etc/muster/secrets/db"}
TREE = {"topology": "tree", "switches": [{"name": "s1", "nodes": ["n[1-3]"]}]}
TWICE = {"name": "a", "nodes": ["n1"]}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": "no good"}, "name: 'no good' is no name"),
    ({"platfrom": "plain"}, "unknown key 'platfrom'. Did you mean 'platform'?"),
    ({"platform": "hyperpot"}, "Did you mean 'hyperpod'?"),
    (group(role="compote"), "groups: gpu: role: 'compote' is unknown. Did you mean 'compute'?"),
    (group(nodes=["n[4-1]"]), "[4-1] is no range"),
    (group(nodes=["n[1-2"]), "is no host list"),
    (group(nodes=["n1", "n1"]), "node 'n1' is in 'gpu' already"),
    (group(nodes=["head"]), "node 'head' is in 'head' already"),
    (group(role="login"), "partitions: train: groups: 'gpu' is unknown"),
    (group(addresses={"n9": "10.0.0.9"}), "addresses: n9: 'n9' is unknown"),
    (group(addresses={"n1": "127.0.0.1"}), "is no address of one machine"),
    (group(addresses={"n1": "10.0.0.999"}), "is no IP address"),
    (group(addresses={"n1": "10.0.0.1", "n2": "10.0.0.1"}), "that of 'n1' already"),
    (group(spares=4), "4 of 4 nodes leave none for jobs"),
    ({"groups": [{"name": "gpu", "role": "compute", "nodes": ["n1"]}]}, "no head node"),
    (queue(groups=["gpus"]), "Did you mean 'gpu'?"),
    (queue(preempt="requeue"), "no partition of a higher tier shares its nodes"),
    (queue(preempt="requeu"), "Did you mean 'requeue'?"),
    (queue(max_time_s=0), "max_time_s: 0 is not from 1"),
    ({"partitions": []}, "no partition has the nodes of group 'gpu'"),
    (mount(kind="nsf"), "Did you mean 'nfs'?"),
    (mount(source=None), "source: '' is nothing that nfs mounts"),
    (mount(kind="lustre"), "source: 10.0.0.5@tcp:/fsx"),
    (mount(path="fsx"), "'fsx' is no absolute path"),
    (mount(roles=["head"]), "shared_dir: /fsx/.muster is below no mount that all may write"),
    (mount(writable=False), "is below no mount that all may write"),
    ({"scratch": {"kinds": ["raids"]}}, "Did you mean 'raid'?"),
    (user(group="reserch"), "Did you mean 'research'?"),
    (user(uid=0), "uid: 0 is the system's"),
    (user(name="Ana Maria"), "'Ana Maria' is no name"),
    (user(ssh_keys=["-----BEGIN OPENSSH PRIVATE KEY----- x"]), "one is no public key"),
    ({"accounting": {"database": "external"}}, "needs 'host'"),
    ({"accounting": {"node": "n1"}}, "accounting: node: 'n1' is unknown"),
    ({"accounting": {"password": {}}}, "exactly one of 'file' and 'command'"),
    ({"containers": {"pyxis": True}}, "needs enroot"),
    ({"containers": {"enroot_version": "latest"}}, "enroot_version: 'latest' is no version"),
    ({"containers": {"pyxis_version": "v0.24"}}, "pyxis_version: 'v0.24' is no version"),
    ({"fabric": {"efa_installer": "1"}}, "efa_installer: '1' is no version"),
    ({"checksums": {"a.deb": "12ab"}}, "checksums: a.deb: '12ab' is no sha256"),
    ({"monitoring": {"node_port": 9090}}, "'9090' twice"),
    ({"fabric": {"kind": "ethernet"}}, "use one of auto, none, efa"),
    ({"fabric": {"environment": {"nccl": "1"}}}, "'nccl' is no variable"),
    ({"slurm": {"requeue_wait_s": 1}}, "Slurm would take 120"),
    ({"slurm": {"settings": {"nodename": "x"}}}, "NodeName follows from other keys"),
    ({"slurm": {"munge_key": {}}}, "munge_key: needs exactly one"),
    ({"slurm": {**TREE, "switches": [TWICE, {**TWICE, "name": "b"}]}}, "below 'a' already"),
    ({"slurm": TREE}, "'n4' is below none"),
    ({"slurm": {**TREE, "topology": "none"}}, "give both or none"),
    ({"slurm": {**TREE, "switches": [{"name": "a", "nodes": ["n11"]}]}}, "Did you mean 'n1'?"),
    ({"replace_command": ["/opt/bmc"]}, "does not say which node"),
    ({"packages": ["jq; reboot"]}, "is no package"),
    ({"shared_dir": "a/b"}, "cluster.yaml: shared_dir: 'a/b' is no absolute path"),
    ({"shared_dir": "/nowhere"}, "cluster.yaml: shared_dir: /nowhere is below no mount"),
    (group(nodes=["n[1-" + "9" * 5000 + "]"]), "is no range. Fix: write [001-100]"),
    (group(nodes=["n\N{ARABIC-INDIC DIGIT ONE}"]), "is no host name"),
    *((group(nodes=[node]), f"'{node}' means something else") for node in ("ALL", "Default")),
    (hardware(memory_mib=1), "hardware: memory_mib: 1 is not from 2 to"),
    (hardware(memory_mib=2**62), "memory_mib: 4611686018427387904 is not from 2 to"),
    (hardware(sockets=0), "hardware: sockets: 0 is not from 1 to 65533"),
    (hardware(sockets=65533, cores_per_socket=2), "CPUs of one machine: 262132 is not from 1"),
    (hardware(gpus=65), "hardware: gpus: 65 is not from 0 to 64"),
    *(
        (hardware(gpus=8, gpu_type=kind), "is no type of --gres=gpu:TYPE:8")
        for kind in ("H100 80GB", "h100:8", "", "h100\nNodeName=x", "h100,a100")
    ),
    *((queue(name=text), f"'{text}' means something else") for text in ("DEFAULT", "default")),
    (queue(groups=["gpu", "gpu"]), "partitions: train: groups: 'gpu' twice"),
    (queue(max_time_s=2**31), "max_time_s: 2147483648 is not from 1 to 2147483647"),
    (queue(max_time_s=60, default_time_s=61), "default_time_s: 61 is not from 1 to 60"),
    (queue(default_time_s=2**62), "default_time_s: 4611686018427387904 is not from 1"),
    (queue(max_nodes=2**32 - 1), "max_nodes: 4294967295 is not from 1 to 4294967293"),
    (queue(grace_s=2**32 - 1), "grace_s: 4294967295 is not from 0 to 4294967293"),
    (queue(grace_s=-1), "grace_s: -1 is not from 0"),
    (queue(priority_tier=65534), "priority_tier: 65534 is not from 1 to 65533"),
    *(
        (queue(**{key: [text]}), f"{key}: {text!r} is no name")
        for key in ("allow_groups", "allow_accounts")
        for text in ("x y", "x\nNodeName=z", "", "x,y", "x#y", "x\\")
    ),
    *((mount(min_size_tb=number), "is not above 0") for number in (0, -5.0)),
    (mount(min_size_tb=float("nan")), "min_size_tb: nan is no number"),
    ({"scratch": {"min_free_gib": float("inf")}}, "min_free_gib: inf is no number"),
    *(
        ({"users": {"home": text}}, "users: home: '")
        for text in ("/", "home", "/a/../b", "/a b", "/a\0b", "/a\x1b")
    ),
    *((user(shell=text), "shell: '") for text in ("bash", "/bin/bash -l", "/bin/bash\nx", "/a\0")),
    *((user(name=text), f"'{text}' is the system's") for text in ("root", "munge")),
    (user(uid=2002, name="slurm"), "slurm: user: 'slurm' is a person or a group of users"),
    ({"slurm": {"uid": 2001}}, "slurm: uid: 2001 is that of 'ana' already"),
    *(
        ({"slurm": {key: text}}, f"slurm: {key}: '")
        for key in ("state_dir", "config_dir")
        for text in ("a", "/", "/a b", "/a\nKillWait=1", "/a\rb")
    ),
    *(
        ({"slurm": {"user": text}}, f"slurm: user: {text!r} is no user")
        for text in ("", "a b", "slurm\nKillWait=1", "-x")
    ),
    *(
        ({"slurm": {key: 65534}}, f"slurm: {key}: 65534 is not from 1 to 65533")
        for key in ("lost_after_s", "kill_wait_s", "health_interval_s", "requeue_wait_s", "uid")
    ),
    *(
        ({"slurm": {"settings": {key: "1"}}}, "is no key of slurm.conf")
        for key in ("", "a b", "Kill\N{LATIN SMALL LETTER E WITH ACUTE}", "1a", "a_b", "a=b")
    ),
    *(
        ({"slurm": {"settings": {"Foo": text}}}, "is no value of one line of slurm.conf")
        for text in ("", " ", "a\nb", "a\rb", "a\\", "a # b", "\0")
    ),
    ({"slurm": {"settings": {"KillWait": "1", "killwait": "2"}}}, "'killwait' twice"),
    ({"slurm": {"settings": {True: "2"}}}, "key True is bool, not text"),
    *(
        ({"accounting": {"database": "external", "host": text, "password": FILE}}, "is no host")
        for text in ("", "db\nX=1", "a b", "db#")
    ),
    ({"accounting": {"purge_after_days": 65534}}, "purge_after_days: 65534 is not from 1"),
    ({"monitoring": {"retention_days": 0}}, "retention_days: 0 is not from 1"),
    ({"fabric": {"environment": {"A": "1\r2"}}}, "'A' is no variable of one line"),
    (mount(wait_s=2**62), "wait_s: 4611686018427387904 is not from 1"),
    (mount(wait_s=0), "wait_s: 0 is not from 1"),
    (group(instance_type="p5 x"), "instance_type: 'p5 x' is no name"),
    ({"health": {"profile": "a\nb"}}, "health: profile: 'a\\nb' is no name"),
    ({"health": {"profile": ""}}, "health: profile: '' is no name"),
    (
        {"containers": {"enroot_version": "\N{ARABIC-INDIC DIGIT FOUR}.1"}},
        "enroot_version: '\N{ARABIC-INDIC DIGIT FOUR}.1' is no version",
    ),
    (tree(a=["b"], b=["a"]), "slurm: switches: a: 'a' is below itself"),
    (tree(a=["b"], b=["c"], c=["b"]), "'b' is below 'a' already"),
    (tree(a=["b", "b"], b=[]), "'b' is below 'a' already"),
    (tree(a=["c"], b=["c"], c=[]), "'c' is below 'a' already"),
    (tree(**{"a b": []}), "'a b' is no name"),
    (tree(**{"a\nSwitchName=x": []}), "is no name"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[row[1][:48] for row in WRONG])
def test_what_cannot_work_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_values(small(**changes), "cluster.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith(("cluster.yaml: ", "cluster.yaml:"))


SECRETS: list[dict[str, Any]] = [
    {"accounting": {"password": "hunter2"}},
    {"accounting": [{"password": "hunter2"}]},
    {"accounting": {"Password": ["hunter2"]}},
    {"accounting": {"password": {"password": "hunter2"}}},
    {"slurm": {"munge_key": "hunter2"}},
    {"slurm": [[{"munge_key": "hunter2"}]]},
    {"name": {"password": "hunter2"}},
]


@pytest.mark.parametrize("changes", SECRETS, ids=repr)
def test_a_secret_in_the_file_is_refused_and_not_shown(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_values(small(**changes), "cluster.yaml")
    assert "a secret does not stand here" in str(caught.value)
    assert "hunter2" not in str(caught.value)


RIGHT: list[dict[str, Any]] = [
    hardware(gpus=8, gpu_type="H100_80GB-x.1"),
    queue(max_time_s=60, default_time_s=60, allow_groups=["a.b-c@d"], grace_s=120),
    user(shell="/usr/bin/zsh"),
    {"users": {"home": "/fsx/home"}},
    {"accounting": {"database": "external", "host": "fe80::1", "password": FILE}},
    {"slurm": {"settings": {"Prolog": "/x\\#y", "SchedulerParameters": "a=1,b=2"}}},
    {"slurm": {"lost_after_s": 65533, "user": "root"}},
    tree(root=["a"], a=["b"], b=[]),
]


@pytest.mark.parametrize("changes", RIGHT, ids=repr)
def test_what_works_is_taken(changes: dict[str, Any]) -> None:
    from_values(small(**changes), "cluster.yaml")


def test_several_heads_need_a_shared_state() -> None:
    heads = {"name": "head", "role": "head", "nodes": ["head", "head2"]}
    values = small(groups=[heads, *small()["groups"][1:]])
    with pytest.raises(ConfigError, match="there are several head nodes"):
        from_values(values, "x")
    assert from_values({**values, "slurm": {"state_dir": "/fsx/state"}}, "x").groups[0].nodes


@pytest.mark.parametrize("field", ["groups", "partitions", "mounts", "users", "slurm"])
@settings(max_examples=25)
@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_nonsense_is_an_error_with_a_fix(field: str, value: Any) -> None:
    try:
        made = from_values(small(**{field: value}), "cluster.yaml")
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert isinstance(made, Description)


HOSTS = [
    ("n1", ["n1"]),
    ("n[1-3]", ["n1", "n2", "n3"]),
    ("n[008-010]", ["n008", "n009", "n010"]),
    ("n[1,3-4]x,head", ["n1x", "n3x", "n4x", "head"]),
    ("q-st-p4de-[1-2],b", ["q-st-p4de-1", "q-st-p4de-2", "b"]),
]


@pytest.mark.parametrize(("text", "names"), HOSTS)
def test_host_list_is_written_out(text: str, names: list[str]) -> None:
    assert expand(text, "x") == names


@pytest.mark.parametrize(
    "text", ["", "n[", "n[]", "n[1-]", "n1,,n2", "-n", "n[1][2]", "n[1-9999999]"]
)
def test_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        expand(text, "x")
