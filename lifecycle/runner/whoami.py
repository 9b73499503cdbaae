"""Which node of the description is this machine? Any local address decides, never a loopback one.

On a machine that has just started, addresses, names and the platform's list of machines come late.
So it is asked again until it knows, or until the time is over.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from collections.abc import Callable, Sequence

from lifecycle.description.model import Description
from lifecycle.description.nodes import Node, all_nodes
from muster import process
from muster.errors import DataError, MusterError, TemporaryError

_ASK_AGAIN_S = 1.0
_IP_TIMEOUT_S = 10.0


def local_addresses() -> list[str]:
    """Addresses of this machine's interfaces, without loopback and link-local ones."""
    done = process.run(["ip", "-j", "address"], _IP_TIMEOUT_S)
    if done.ok:
        found = [
            info["local"]
            for link in json.loads(done.out or "[]")
            for info in link.get("addr_info", [])
            if "local" in info
        ]
    else:
        found = process.run(["hostname", "-I"], _IP_TIMEOUT_S).out.split()
    return [text for text in found if _is_usable(text)]


def _is_usable(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def find_self(nodes: Sequence[Node], addresses: Sequence[str], host: str) -> Node:
    """The node with one of these addresses, else the one without an address but with this name.

    Raises:
        TemporaryError: none of them; on a machine that just started it may be so in a moment.
        DataError: several of them.
    """
    own = {ipaddress.ip_address(text.partition("%")[0]) for text in addresses}
    found = [node for node in nodes if node.address and ipaddress.ip_address(node.address) in own]
    if not found:
        names = {host, host.partition(".")[0]}
        found = [node for node in nodes if node.address is None and node.name in names]
    if len(found) == 1:
        return found[0]
    seen = f"addresses {' '.join(addresses) or 'none'}, name '{host}'"
    if found:
        what = f"it is several nodes: {' '.join(node.name for node in found)} ({seen})"
        raise DataError("this machine", what, "give each its own address, or use --node")
    what = f"it is none of the {len(nodes)} nodes ({seen})"
    raise TemporaryError("this machine", what, "add it to cluster.yaml, or use --node NAME")


def arrive(
    load: Callable[[], Description],
    node: str | None,
    wait_s: float,
    say: Callable[[str], None],
) -> tuple[Description, Node]:
    """The description and this machine's node, as soon as both are known.

    Args:
        load: reads the description; called again at each try, since platforms write theirs late.
        node: its name, if somebody says so; None: the addresses decide.
        wait_s: longest wait.
        say: told once why it waits.

    Raises:
        MusterError: the last reason, when the time is over; at once, if waiting cannot help.
    """
    end = time.monotonic() + wait_s
    told = False
    while True:
        try:
            description = load()
            nodes = all_nodes(description)
            if node is not None:
                return description, _named(nodes, node)
            return description, find_self(nodes, local_addresses(), socket.gethostname())
        except (TemporaryError, DataError) as error:
            if time.monotonic() >= end:
                raise
            if not told:
                say(f"waiting up to {wait_s:g} s: {MusterError.__str__(error)}")
                told = True
        time.sleep(_ASK_AGAIN_S)


def _named(nodes: Sequence[Node], name: str) -> Node:
    for node in nodes:
        if node.name == name:
            return node
    what = f"there is no node '{name}' among {len(nodes)}"
    raise TemporaryError("--node", what, "name one of cluster.yaml")
