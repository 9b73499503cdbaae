"""What HyperPod, ParallelCluster and cloud-init say, read into one description."""

from __future__ import annotations

import base64
import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lifecycle.cli import description_of
from lifecycle.description import cloud_init, hyperpod, parallelcluster
from lifecycle.description.load import from_values, load_description
from lifecycle.description.nodes import of_role
from muster.cli import build_parser, main
from muster.errors import ConfigError, DataError, MusterError

ROOT = Path(__file__).resolve().parents[3]
P5 = ROOT / "lifecycle" / "examples" / "hyperpod_p5"
P4DE = ROOT / "lifecycle" / "examples" / "parallelcluster_p4de"


def read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text())
    return values


RESOURCES = read(P5 / "resource_config.json")
PARAMETERS = read(P5 / "provisioning_parameters.json")


def put(folder: Path, name: str, values: Any) -> Path:
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


def platform(folder: Path, resources: Any, parameters: Any = None) -> dict[str, Any]:
    read_resources = hyperpod.read_resource_config(put(folder, "r.json", resources))
    provisioning = None
    if parameters is not None:
        provisioning = hyperpod.read_provisioning(put(folder, "p.json", parameters))
    return hyperpod.platform_values(read_resources, provisioning)


def changed(values: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    values = copy.deepcopy(values)
    change(values)
    return values


def test_hyperpod_example_of_16_nodes() -> None:
    words = ["describe", str(P5 / "cluster.yaml")]
    words += ["--resource-config", str(P5 / "resource_config.json")]
    words += ["--provisioning", str(P5 / "provisioning_parameters.json")]
    description = description_of(build_parser().parse_args(words))
    workers = of_role(description, "compute")
    assert len(workers) == 16
    assert (workers[0].name, workers[0].address) == ("ip-10-1-71-11", "10.1.71.11")
    assert workers[0].hardware is not None
    assert workers[0].hardware.gpus == 8
    assert description.groups[2].spares == 1  # of the file
    assert [(p.name, p.groups) for p in description.partitions] == [("train", ["worker-group-1"])]
    assert [(str(m.path), m.kind) for m in description.mounts] == [("/fsx", "lustre")]
    assert description.platform == "hyperpod"


def test_parallelcluster_example_of_100_nodes() -> None:
    description = load_description(P4DE / "cluster.yaml")
    assert len(of_role(description, "compute")) == 100
    assert description.mounts[0].min_size_tb == 100


def test_a_group_may_be_empty_or_null(tmp_path: Path) -> None:
    resources = changed(RESOURCES, lambda r: r["InstanceGroups"][2].update(Instances=None))
    values = platform(tmp_path, resources, PARAMETERS)
    assert of_role(from_values(values, "x"), "compute") == []


def test_groups_that_the_api_configured_need_no_second_file(tmp_path: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        kinds = ("Controller", "Login", "Compute")
        for group, kind in zip(values["InstanceGroups"], kinds, strict=True):
            group["SlurmConfig"] = {"NodeType": kind, "PartitionNames": []}
        worker = values["InstanceGroups"][2]
        worker["SlurmConfig"]["PartitionNames"] = ["big"]
        lustre = {"DnsName": "fs-1.example.com", "MountName": "abc", "MountPath": "/lustre"}
        zfs = {"DnsName": "fs-2.example.com"}
        worker["InstanceStorageConfigs"] = [{"FsxLustreConfig": lustre}, {"FsxOpenZfsConfig": zfs}]
        values["Orchestrator"] = {"Slurm": {"SlurmConfigStrategy": "Managed"}}

    resources = changed(RESOURCES, change)
    assert hyperpod.read_resource_config(put(tmp_path, "r", resources)).strategy == "Managed"
    description = from_values(platform(tmp_path, resources), "x")
    assert [p.name for p in description.partitions] == ["big"]
    assert {str(m.path): m.source for m in description.mounts} == {
        "/lustre": "fs-1.example.com@tcp:/abc",
        "/home": "fs-2.example.com:/fsx",
    }


def test_the_primary_of_several_controllers_comes_first(tmp_path: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        second = {"CustomerIpAddress": "10.1.8.1", "InstanceId": "i-2", "InstanceName": "c-2"}
        values["InstanceGroups"][0]["Instances"].insert(0, second)
        values["SlurmConfig"]["SecondaryControllerIps"] = ["10.1.8.1"]

    parameters = {
        **PARAMETERS,
        "slurm_configurations": {
            "slurm_database_secret_arn": "arn:aws:secretsmanager:x:1:secret:db",
            "slurm_database_endpoint": "db.example.com",
            "slurm_shared_directory": "/fsx",
            "slurm_database_user": "clusteradmin",
            "slurm_sns_arn": "arn:aws:sns:x:1:y",
        },
    }
    description = from_values(platform(tmp_path, changed(RESOURCES, change), parameters), "x")
    heads = [node.name for node in of_role(description, "head")]
    assert heads == ["ip-10-1-8-10", "ip-10-1-8-1"]
    assert (description.accounting.database, description.accounting.user) == (
        "external",
        "clusteradmin",
    )
    assert str(description.slurm.state_dir) == "/fsx/state"


def storage(**configs: Any) -> dict[str, Any]:
    return {"InstanceStorageConfigs": [configs]}


def workers_group(keys: dict[str, Any]) -> dict[str, Any]:
    return changed(RESOURCES, lambda values: values["InstanceGroups"][2].update(keys))


RESOURCE_FAULTS: list[tuple[Any, str]] = [
    ("{", "is no JSON"),
    ("[]", "list where an object belongs"),
    ({}, "ClusterConfig: NoneType where an object belongs"),
    (changed(RESOURCES, lambda r: r.pop("InstanceGroups")), "InstanceGroups: NoneType"),
    (changed(RESOURCES, lambda r: r["InstanceGroups"][0].pop("Name")), "Name: is missing"),
    (
        changed(RESOURCES, lambda r: r["InstanceGroups"][0]["Instances"][0].clear()),
        "InstanceGroups[0]: Instances[0]: CustomerIpAddress: is missing",
    ),
    (
        changed(RESOURCES, lambda r: r["InstanceGroups"][0].update(Name="control-group")),
        "'controller-group' is unknown. Did you mean 'control-group'?",
    ),
    (
        changed(RESOURCES, lambda r: r["InstanceGroups"].append({"Name": "w2", "Instances": None})),
        "group 'w2': has no SlurmConfig",
    ),
    (
        changed(
            RESOURCES, lambda r: r["InstanceGroups"][0].update(SlurmConfig={"NodeType": "Worker"})
        ),
        "'Worker' is unknown",
    ),
    ('{"a": 1, "a": 2}', "is no JSON: key 'a' stands there twice"),
    ('{"a": "\\ud800"}', "is no JSON: 'utf-8' codec can't encode"),
    ({**RESOURCES, "Orchestrator": "x"}, "Orchestrator: str where an object belongs"),
    ({**RESOURCES, "Orchestrator": {"Slurm": [1]}}, "Slurm: list where an object belongs"),
    ({**RESOURCES, "Orchestrator": {"Slurm": "x"}}, "Slurm: str where an object belongs"),
    ({**RESOURCES, "SlurmConfig": []}, "SlurmConfig: list where an object belongs"),
    ({**RESOURCES, "SlurmConfig": {"PrimaryControllerIp": 5}}, "PrimaryControllerIp: int where"),
    (
        {**RESOURCES, "SlurmConfig": {"SecondaryControllerIps": 5}},
        "SecondaryControllerIps: int where a list belongs",
    ),
    (
        {**RESOURCES, "SlurmConfig": {"SlurmConfigStrategy": ["Merge"]}},
        "'['Merge']' is unknown",
    ),
    (
        {**RESOURCES, "InstanceGroups": [*RESOURCES["InstanceGroups"][:1]] * 2},
        "InstanceGroups: 'controller-group' twice",
    ),
    *(
        (workers_group(keys), message)
        for keys, message in (
            ({"SlurmConfig": {"NodeType": ["Compute"]}}, "'['Compute']' is unknown"),
            ({"SlurmConfig": {"NodeType": ""}}, "'' is unknown"),
            ({"SlurmConfig": {"PartitionNames": 5}}, "PartitionNames: int where a list belongs"),
            ({"SlurmConfig": {"PartitionNames": "dev"}}, "PartitionNames: str where a list"),
            ({"SlurmConfig": {"PartitionNames": [None]}}, "PartitionNames[0]: is missing"),
            ({"SlurmConfig": {"PartitionNames": [["a"]]}}, "PartitionNames[0]: list where text"),
            ({"SlurmConfig": {"PartitionNames": ["a", "a"]}}, "PartitionNames: 'a' twice"),
            ({"Instances": {}}, "Instances: dict where a list belongs"),
            ({"Instances": ""}, "Instances: str where a list belongs"),
            ({"InstanceType": 5}, "InstanceType: int where text belongs"),
            ({"InstanceStorageConfigs": 5}, "InstanceStorageConfigs: int where a list"),
            (storage(FsxLustreConfig="x"), "FsxLustreConfig: str where an object belongs"),
            (storage(FsxLustreConfig={"DnsName": 5}), "DnsName: int where text belongs"),
            (storage(FsxLustreConfig={"DnsName": "x", "MountPath": 5}), "MountPath: int where"),
            (storage(FsxOpenZfsConfig={"DnsName": "x", "MountName": [5]}), "MountName: list where"),
        )
    ),
]


@pytest.mark.parametrize(
    ("values", "message"), RESOURCE_FAULTS, ids=[m for _, m in RESOURCE_FAULTS]
)
def test_a_damaged_resource_config_is_one_line(tmp_path: Path, values: Any, message: str) -> None:
    with pytest.raises(MusterError) as caught:
        platform(tmp_path, values, PARAMETERS)
    assert message in str(caught.value)
    assert caught.value.code in (65, 78)


DATABASE = {"slurm_database_secret_arn": "arn:x", "slurm_database_endpoint": "db.example.com"}


def workers(*ones: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"instance_group_name": "worker-group-1", **one} for one in ones]


PARAMETER_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"controler_group": "x"}, "unknown key 'controler_group'. Did you mean 'controller_group'?"),
    ({"controller_group": None}, "controller_group: is missing"),
    ({"workload_manager": "pbs"}, "use one of slurm"),
    ({"worker_groups": [{"partition_name": "x"}]}, "instance_group_name: is missing"),
    ({"worker_groups": [{"instance_group_name": "w9"}]}, "'w9' is unknown"),
    ({"fsx_mountname": ""}, "fsx_mountname: is missing"),
    ({"slurm_configurations": {"slurm_database_endpoint": "x"}}, "slurm_database_secret_arn"),
    ({"slurm_configurations": "x"}, "slurm_configurations: str where an object belongs"),
    ({"slurm_configurations": {**DATABASE, "slurm_database_user": 5}}, "slurm_database_user: int"),
    (
        {"slurm_configurations": {**DATABASE, "slurm_shared_directory": 5}},
        "slurm_shared_directory: int where text belongs",
    ),
    (
        {"slurm_configurations": {**DATABASE, "slurm_shared_dir": "/fsx"}},
        "Did you mean 'slurm_shared_directory'?",
    ),
    ({"login_group": ["a"]}, "login_group: list where text belongs"),
    ({"fsx_dns_name": 5}, "fsx_dns_name: int where text belongs"),
    ({"fsx_openzfs_dns_name": {"a": 1}}, "fsx_openzfs_dns_name: dict where text belongs"),
    ({"workload_manager": ["slurm"]}, "'['slurm']' is unknown"),
    ({"worker_groups": {}}, "worker_groups: dict where a list belongs"),
    ({"worker_groups": workers({"partition_name": ["a"]})}, "partition_name: list where text"),
    ({"worker_groups": workers({"partition_name": {"a": 1}})}, "partition_name: dict where text"),
    (
        {"worker_groups": workers({"partition_nam": "a"})},
        "worker_groups[0]: unknown key 'partition_nam'. Did you mean 'partition_name'?",
    ),
    (
        {"worker_groups": workers({"partition_name": "a"}, {"partition_name": "b"})},
        "worker_groups: 'worker-group-1' twice",
    ),
    (
        {"worker_groups": [{"instance_group_name": PARAMETERS["controller_group"]}]},
        "worker_groups: 'controller-group' twice",
    ),
    ({"login_group": PARAMETERS["controller_group"]}, "worker_groups: 'controller-group' twice"),
]


@pytest.mark.parametrize(
    ("change", "message"), PARAMETER_FAULTS, ids=[m for _, m in PARAMETER_FAULTS]
)
def test_wrong_parameters_are_one_line(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        platform(tmp_path, RESOURCES, {**PARAMETERS, **change})
    assert message in str(caught.value)


def test_what_a_person_adds_for_himself_does_not_matter(tmp_path: Path) -> None:
    assert platform(tmp_path, RESOURCES, {**PARAMETERS, "team": "x"})["name"] == "p5"


def test_a_group_that_only_the_file_has_is_an_error() -> None:
    resources = hyperpod.read_resource_config(P5 / "resource_config.json")
    provisioning = hyperpod.read_provisioning(P5 / "provisioning_parameters.json")
    values = {"groups": [{"name": "worker-group-2", "role": "compute"}]}
    with pytest.raises(ConfigError, match="Did you mean 'worker-group-1'"):
        from_values(values, "x", (), hyperpod.platform_values(resources, provisioning))


STRANGE = [
    ({"a": "b"}, r"groups: \{'a': 'b'\} is not a list"),
    ("", "groups: '' is not a list"),
    ([5], r"groups\[3\]: 5 is not a mapping"),
    ([{"name": "worker-group-1"}, {"name": "worker-group-1"}], "groups: 'worker-group-1' twice"),
]


@pytest.mark.parametrize(("groups", "message"), STRANGE)
def test_groups_of_the_file_are_not_dropped(groups: Any, message: str, tmp_path: Path) -> None:
    part = platform(tmp_path, RESOURCES, PARAMETERS)
    with pytest.raises(ConfigError, match=message):
        from_values({"groups": groups}, "x", (), part)


CFNCONFIG = """# written by ParallelCluster
stack_name=parallelcluster-talk
cfn_node_type=ComputeFleet
cfn_scheduler_queue_name='train'
cfn_head_node_private_ip=10.0.0.4
"""


def test_cfnconfig_goes_with_a_file(tmp_path: Path) -> None:
    config = parallelcluster.read_cfnconfig(put(tmp_path, "cfnconfig", CFNCONFIG))
    assert (config.cluster, config.role, config.queue) == ("talk", "compute", "train")
    assert config.head_address == "10.0.0.4"
    values = yaml.safe_load((P4DE / "cluster.yaml").read_text())
    platform_part = parallelcluster.platform_values(config)
    made = from_values(values, "x", ["slurm.lost_after_s=60"], platform_part)
    assert (made.name, made.platform, made.slurm.lost_after_s) == ("p4de", "parallelcluster", 60)


def test_cfnconfig_of_no_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cfn_node_type"):
        parallelcluster.read_cfnconfig(put(tmp_path, "c", "stack_name=x\n"))
    with pytest.raises(DataError):
        parallelcluster.read_cfnconfig(put(tmp_path, "c", "stack_name='x\n"))


CLUSTER = (P4DE / "cluster.yaml").read_text()
CONFIG = "#cloud-config\n" + yaml.safe_dump({"muster": yaml.safe_load(CLUSTER)})


def written(content: bytes | str, encoding: str = "") -> str:
    file = {"path": "/etc/muster/cluster.yaml", "content": content, "encoding": encoding}
    return "#cloud-config\n" + yaml.safe_dump({"write_files": [{"path": "/x"}, file]})


MIME = f"""Content-Type: multipart/mixed; boundary="==B=="
MIME-Version: 1.0

--==B==
Content-Type: text/x-shellscript

#!/bin/bash
--==B==
Content-Type: text/cloud-config

{CONFIG}
--==B==--
"""
USER_DATA: dict[str, bytes] = {
    "key": CONFIG.encode(),
    "gzip": gzip.compress(CONFIG.encode()),
    "mime": MIME.encode(),
    "file": written(CLUSTER).encode(),
    "base64": written(base64.b64encode(CLUSTER.encode()).decode(), "b64").encode(),
    "base64 in lines": written(base64.encodebytes(CLUSTER.encode()).decode(), "base64").encode(),
    "beside modes": f"{CONFIG}write_files: [{{path: /x, permissions: 0644}}]\n".encode(),
    "packed": written(gzip.compress(CLUSTER.encode()), "gzip").encode(),
}


@pytest.mark.parametrize("form", USER_DATA)
def test_user_data_carry_a_description(tmp_path: Path, form: str) -> None:
    path = tmp_path / "user-data.txt"
    path.write_bytes(USER_DATA[form])
    assert cloud_init.read_user_data(path) == yaml.safe_load(CLUSTER)


NO_USER_DATA = [
    b"",
    b"#!/bin/bash\n",
    b"#cloud-config\nx: [",
    b"\x1f\x8bno gzip",
    b"\xff\xfe",
    *(
        f"#cloud-config\n{line}\n".encode()
        for line in (
            *("write_files: 5", "write_files: abc", "write_files: [x]", "write_files: [null]"),
            *("write_files: {a: b}", "muster: " + "[" * 3000, "muster: !!timestamp x"),
            *("muster: [a]", "muster: {1: 2}", "muster: 5", "a: !!bool maybe"),
        )
    ),
    written(base64.b64encode(CLUSTER.encode()).decode().replace("\n", "") + "!", "b64").encode(),
    written("!" + base64.b64encode(CLUSTER.encode()).decode(), "base64").encode(),
    written(CLUSTER, "rot13").encode(),
    written("- a\n").encode(),
]
TRAPS = [
    ("#cloud-config\nmuster: {name: a,\n  name: b}\n", "line 3 of its part: key 'name' stands"),
    ("#cloud-config\nmuster: &a {slurm: *a}\n", "line 2 of its part: a value contains itself"),
    ("#cloud-config\nmuster: {a: 1}\nmuster: {a: 2}\n", "line 3 of its part: 'muster' stands"),
    (written("name: a\nname: b\n"), "line 2 of its part: key 'name' stands there twice"),
    (written("gid: 02000\n"), "line 1 of its part: 02000 is read as octal"),
]


@pytest.mark.parametrize(("text", "message"), TRAPS)
def test_traps_of_yaml_in_user_data(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cloud_init.read_user_data(put(tmp_path, "user-data.txt", text))
    assert message in str(caught.value)


@pytest.mark.parametrize("data", NO_USER_DATA, ids=range(len(NO_USER_DATA)))
def test_other_user_data_are_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "user-data.txt"
    path.write_bytes(data)
    with pytest.raises(DataError):
        cloud_init.read_user_data(path)


def test_describe_prints_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["describe", str(P4DE / "cluster.yaml")]) == 0
    assert "100 nodes train-st-p4de-[1-100], 8 x a100 each, 4 spare" in capsys.readouterr().out
    assert main(["describe", str(P4DE / "cluster.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slurm"]["lost_after_s"] == 30
    assert main(["describe", str(P4DE / "cluster.yaml"), "slurm.lost_after=1"]) == 78
    assert "Did you mean 'lost_after_s'?" in capsys.readouterr().err
    assert main(["describe"]) == 64
    assert main(["describe", "--resource-config", str(tmp_path / "none")]) == 65


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["c.yaml", "--provisioning", "p"], "--provisioning: says nothing alone"),
        (["--resource-config", "r", "--cfnconfig", "c"], "--cfnconfig: is ParallelCluster's"),
        (["c.yaml", "--user-data", "u"], "--user-data: says what 'c.yaml' says, too"),
        (["./d=1.yaml", "e.yaml"], "'e.yaml' is one file too many"),
    ],
)
def test_nothing_that_is_named_goes_unread(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["describe", *words]) == 64
    assert message in capsys.readouterr().err


def test_a_file_may_have_an_equals_sign(tmp_path: Path) -> None:
    assert main(["describe", str(put(tmp_path, "d=1.yaml", CLUSTER)), "slurm.kill_wait_s=9"]) == 0
