"""The line between two nodes, row by row; test_tcp.py sends real bytes."""

from __future__ import annotations

from typing import Any

from tests.harness.fake_tools.node import FakeNode
from tests.harness.fake_tools.rows import Edit, Row, both, profile
from tests.unit.health.rows_fabric import mellanox

HEAD = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
"""


def line(**changes: Any) -> Edit:
    """So the exchange with the partner ends."""
    return lambda node: node.parts["tcp"].update(changes)


def never(node: FakeNode) -> None:
    """It does not end."""
    node.parts["tcp"] = None


def error(text: str) -> Edit:
    """It ends with an error."""
    return lambda node: node.parts.update(tcp={"error": text})


def table(average: str) -> str:
    """What ib_write_bw prints."""
    return (
        f"{'-' * 80}\n{HEAD} 65536      178000           0.00               {average}\t\t   0.7\n"
    )


def carries(average: str, words: str = "", **more: Any) -> Edit:
    """ib_write_bw measures so much, if its arguments contain `words`."""
    return lambda node: node.say("ib_write_bw", table(average), words=words, **more)


def rails(*edits: Edit, count: int = 8) -> Edit:
    """Nine ports of InfiniBand, of which the partner has so many, and a tool to test them."""
    told = [f"mlx5_{index}/1" for index in range(count)]
    return mellanox(carries("391.52"), line(told=told), *edits)


def ends(rc: int, words: str = "-d mlx5_3", err: str = "Couldn't connect to n4:27700") -> Edit:
    """ib_write_bw ends with an error."""
    return lambda node: node.say("ib_write_bw", err=err, rc=rc, words=words)


def hangs(node: FakeNode) -> None:
    """It never ends on one port."""
    node.say("ib_write_bw", hangs=True, words="-d mlx5_3")


def without_tool(node: FakeNode) -> None:
    """Nobody has installed it."""
    del node.tools["ib_write_bw"]


def alone(node: FakeNode) -> None:
    """No task of two."""
    node.environ.clear()


def second(node: FakeNode) -> None:
    """This is node 1, which calls first."""
    node.environ["SLURM_PROCID"] = "1"


def no_sys(node: FakeNode) -> None:
    """Nothing of /sys can be read."""
    node.remove("/sys/class")


ROWS = [
    Row("fast", "pair_tcp", "PASS", when="pair", says="88.5 Gbit/s"),
    Row("as fast as expected", "pair_tcp", "PASS", profile(pair_tcp_gbit_s=98.0), when="pair"),
    Row("slow", "pair_tcp", "FAIL", profile(pair_tcp_gbit_s=99.0), when="pair",
        rule="pair_tcp.slow", says="of 99"),
    Row("the partner does not answer", "pair_tcp", "FAIL", error("no way to n3"), when="pair",
        rule="pair_tcp", says="no way to n3"),
    Row("it hangs", "pair_tcp", "FAIL", never, when="pair", says="hangs"),
    Row("the child died", "pair_tcp", "FAIL", lambda n: n.parts.update(tcp={}), when="pair"),
    Row("half an answer", "pair_tcp", "FAIL", line(gbit_s=None), when="pair"),
    Row("not in a pair", "pair_tcp", "UNKNOWN", alone, when="pair"),
    Row("all ports", "pair_rdma", "PASS", rails(), when="pair", says="392 Gbit/s through each"),
    Row("the other node of the pair", "pair_rdma", "PASS", rails(second), when="pair"),
    Row("as fast as expected", "pair_rdma", "PASS", rails(carries("360.00")), when="pair"),
    Row("one is slow", "pair_rdma", "FAIL", rails(carries("359.99", "-d mlx5_3")), when="pair",
        rule="pair_rdma.slow", says="through mlx5_3/1"),
    Row("one is slow in one direction", "pair_rdma", "FAIL", rails(
        second, carries("180.00", "-d mlx5_3 -i 1 -p 27718 -D 3 -F --report_gbits n3")),
        when="pair", rule="pair_rdma.slow", says="carries 180"),
    Row("slower than the port says of itself", "pair_rdma", "FAIL", rails(
        carries("350.00"), profile(ib_rate_gbit_s=None)), when="pair", rule="pair_rdma.slow"),
    Row("one carries nothing", "pair_rdma", "FAIL", rails(ends(1)), when="pair", rule="pair_rdma",
        says="nothing through mlx5_3/1"),
    Row("one hangs", "pair_rdma", "FAIL", rails(hangs), when="pair", rule="pair_rdma"),
    Row("no row of results", "pair_rdma", "FAIL", rails(lambda n: n.say(
        "ib_write_bw", HEAD, words="-d mlx5_3")), when="pair", rule="pair_rdma"),
    Row("no line to agree over", "pair_rdma", "UNKNOWN", rails(error("no way")), when="pair"),
    Row("it hangs", "pair_rdma", "UNKNOWN", rails(never), when="pair"),
    Row("no /sys", "pair_rdma", "UNKNOWN", both(rails(), no_sys), when="pair"),
    Row("no tool", "pair_rdma", "SKIP", rails(without_tool), when="pair", says="no ib_write_bw"),
    Row("the partner has none", "pair_rdma", "SKIP", rails(count=0), when="pair"),
    Row("EFA", "pair_rdma", "SKIP", when="pair", says="no InfiniBand port"),
    Row("RoCE", "pair_rdma", "SKIP", rails(profile(ib_link_layer="Ethernet"), lambda n: [
        n.files.update({f"/sys/class/infiniband/mlx5_{i}/ports/1/link_layer": "Ethernet"})
        for i in range(9)]), when="pair"),
]  # fmt: skip
