"""What a cluster has besides machines, queues and people: do the values go together?"""

from __future__ import annotations

import re
from typing import Optional

from lifecycle.description import model
from lifecycle.description.model import Description
from lifecycle.description.rules import UINT16, absolute, one_of, port_number, unique, within, word
from muster.errors import ConfigError


def check_extras(description: Description, where: str) -> None:
    """Raise at a value that cannot work.

    Raises:
        ConfigError: with the key it concerns.
    """
    _check_containers(description.containers, f"{where}: containers")
    _check_monitoring(description.monitoring, f"{where}: monitoring")
    _check_fabric(description.fabric, f"{where}: fabric")
    word(description.health.profile, f"{where}: health: profile")
    for server in description.time_servers:
        if not re.fullmatch(r"[A-Za-z0-9.:-]+", server):
            raise ConfigError(f"{where}: time_servers", f"'{server}' is no host", "169.254.169.123")
    for package in description.packages:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]+(=[A-Za-z0-9.+:~-]+)?", package):
            raise ConfigError(f"{where}: packages", f"'{package}' is no package", "packages: [jq]")
    for file, checksum in description.checksums.items():
        if not re.fullmatch(r"[0-9a-fA-F]{64}", checksum):
            what = f"'{checksum}' is no sha256"
            raise ConfigError(
                f"{where}: checksums: {file}", what, f"give what sha256sum {file} says"
            )
    for key in ("replace_command", "reboot_command"):
        words = getattr(description, key)
        if words and not any("{node}" in word for word in words):
            fix = f'{key}: [/opt/site/bmc, "{{node}}"]'
            raise ConfigError(f"{where}: {key}", "does not say which node", fix)


def _check_containers(containers: model.Containers, where: str) -> None:
    if containers.pyxis and not containers.enroot:
        raise ConfigError(f"{where}: pyxis", "needs enroot", "add 'enroot: true'")
    for path in (containers.cache, containers.data):
        if path is not None:
            absolute(path, where)
    for key in ("enroot_version", "pyxis_version"):
        _check_version(getattr(containers, key), f"{where}: {key}")


def _check_version(version: Optional[str], where: str) -> None:
    if version is not None and not re.fullmatch(r"[0-9]+(\.[0-9]+){1,3}", version):
        raise ConfigError(where, f"'{version}' is no version", "write it like '4.1.2'")


def _check_monitoring(monitoring: model.Monitoring, where: str) -> None:
    ports = [monitoring.prometheus_port, monitoring.node_port, monitoring.dcgm_port]
    for port in ports:
        port_number(port, where)
    unique(map(str, ports), f"{where}: ports")
    within(monitoring.retention_days, 1, UINT16, f"{where}: retention_days")


def _check_fabric(fabric: model.Fabric, where: str) -> None:
    one_of(fabric.kind, model.FABRICS, f"{where}: kind")
    _check_version(fabric.efa_installer, f"{where}: efa_installer")
    for key, value in fabric.environment.items():
        if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", key) or re.search(r"[\r\n]", value):
            what = f"'{key}' is no variable of one line"
            raise ConfigError(f"{where}: environment", what, "NCCL_DEBUG: WARN")
