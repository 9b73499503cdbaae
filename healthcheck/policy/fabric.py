"""Rules about the network between nodes: InfiniBand, EFA, network cards."""

from __future__ import annotations

from healthcheck.policy.rule import REBOOT, REBOOT_THEN_REPLACE, REPLACE, Rule

_CABLE = "look at the cable and the switch port; if they are fine " + REPLACE
_WAIT = "wait until the node has booted"

RULES: dict[str, Rule] = {
    "ib_state": Rule("network", "drain", _CABLE),
    "ib_state.missing": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
    "ib_state.driver": Rule("software", "reboot", "load the driver, e.g. mlx5_ib, or " + REBOOT),
    "ib_state.young": Rule("software", "none", _WAIT),
    "ib_state.unused": Rule("configuration", "none", "say in the profile how many are used"),
    "ib_state.flap": Rule("network", "none", _CABLE),
    "ib_rate": Rule("network", "drain", _CABLE),
    "ib_rate.uneven": Rule("configuration", "none", "say in the profile what is right"),
    "ib_errors": Rule("network", "drain", _CABLE),
    "ib_errors.noise": Rule("network", "none", _CABLE),
    "efa_count": Rule("hardware", "replace", REPLACE),
    "efa_count.none": Rule("configuration", "none", "attach EFA interfaces to the instance"),
    "efa_count.driver": Rule("software", "reboot", "load the driver (modprobe efa), or " + REBOOT),
    "efa_count.young": Rule("software", "none", _WAIT),
    "efa_state": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
    "efa_provider": Rule("software", "none", "install libfabric with its efa provider"),
    "kernel_nic": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
    "kernel_nic.warning": Rule("network", "none", "look at the card, its cable and its cooling"),
}
