"""Both ends of a real line: what is sent arrives and is measured, and nobody waits for ever."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from healthcheck.deep.tcp import exchange
from healthcheck.env import Env
from healthcheck.read.network import parse
from tests.unit.health.rows_network import table


@pytest.fixture
def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def order(node: int, port: int, **more: Any) -> dict[str, Any]:
    usual = {"master": "127.0.0.1", "seconds": 0.2, "limit_s": 60, "word": "17.0 n3 n4"}
    return {**usual, "node": node, "port": port, "tell": [f"mlx5_{node}/1"], **more}


def both(*orders: dict[str, Any]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(orders)) as pool:
        return list(pool.map(exchange, orders))


def test_both_count_what_arrives_and_hear_what_the_other_has(port: int) -> None:
    found = both(order(1, port), order(0, port))
    assert [one["told"] for one in found] == [["mlx5_0/1"], ["mlx5_1/1"]]
    assert all(one["gbit_s"] > 0.01 for one in found)


def test_the_door_is_closed_to_who_does_not_know_the_word(port: int) -> None:
    strangers = [order(1, port, word="18.0 n1 n2", limit_s=2) for _ in range(2)]
    *others, caller, host = both(*strangers, order(1, port), order(0, port))
    assert all("error" in one for one in others)
    assert (caller["told"], host["told"]) == (["mlx5_0/1"], ["mlx5_1/1"])


def test_a_partner_that_never_comes_is_an_error(port: int) -> None:
    assert exchange(order(0, port, limit_s=0.3)) == {"error": "the other node did not call"}
    assert "no way to 127.0.0.1" in exchange(order(1, port, limit_s=0.3))["error"]


def test_a_partner_that_says_nothing_is_an_error(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        assert "error" in exchange(order(1, port, limit_s=0.5))


def test_a_partner_that_hangs_up_is_an_error(port: int) -> None:
    """It answers as it should, and sends for a moment only."""

    def short() -> None:
        with socket.create_server(("127.0.0.1", port), backlog=64) as door:
            lines = [door.accept()[0] for _ in range(8)]
            for line in lines:
                line.sendall(b'{"tell": []}\n')
            for line in lines:
                line.sendall(b"x")
                line.close()

    host = threading.Thread(target=short)
    host.start()
    found = exchange(order(1, port, seconds=1.0))
    host.join()
    assert found["error"]


def test_through_the_door_of_a_check(port: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(exchange, order(0, port))
        found = Env(Path("/"), 60).exchange_tcp(order(1, port))
        assert found is not None
        assert (found["told"], other.result()["told"]) == (["mlx5_0/1"], ["mlx5_1/1"])


def test_the_table_of_ib_write_bw() -> None:
    assert parse(table("391.52")) == 391.52
    assert parse(table("180.00") + table("391.52")) == 391.52
    for broken in ("", table("nan"), table("-1.00"), table("391.52")[:-20]):
        assert parse(broken) is None
