"""Two nodes send each other bytes over TCP as fast as they can: how many arrive?

First node 1 sends and node 0 counts, then the other way round, because a cable can be bad in one
direction. Who counts also ends it, after a fixed time: a slow line costs no more than a fast one.
Before that they tell each other what they have, so that both choose the same further tests.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

STREAMS = 4
CHUNK_BYTES = 1 << 18
_LONGEST_LINE = 1 << 14
_LATE_S = 10.0  # how much later the other one may begin to count
_SHORTEST = 0.5  # of the time for which bytes must have come


class LineError(Exception):
    """The other node did not answer, or the line broke."""


def exchange(order: Mapping[str, Any]) -> dict[str, Any]:
    """Measure this node's part of a pair.

    Args:
        order: `node` (0 or 1), `master` (name of node 0), `port`, `seconds` of sending in each
            direction, `limit_s` for all of it, `word` that both must know, and what to `tell`.

    Returns:
        `gbit_s` (10^9 bits per second) that arrived here, and what the other one `told`; or
        `error`.
    """
    ends = time.monotonic() + float(order["limit_s"])
    seconds = float(order["seconds"])
    with contextlib.ExitStack() as stack:
        try:
            meet = _welcome if order["node"] == 0 else _call
            lines, told = meet(order, ends, stack)
            there, back = lines[:STREAMS], lines[STREAMS:]
            if order["node"] == 0:
                speed = _all(there, lambda line: _count(line, seconds, ends))
                _all(back, lambda line: _send(line, seconds))
            else:
                _all(there, lambda line: _send(line, seconds))
                speed = _all(back, lambda line: _count(line, seconds, ends))
        except (OSError, LineError) as error:
            return {"error": str(error) or type(error).__name__}
    return {"gbit_s": speed * 8 / 1e9, "told": told}


def _all(lines: list[socket.socket], work: Callable[[socket.socket], float]) -> float:
    with ThreadPoolExecutor(len(lines)) as pool:
        return sum(pool.map(work, lines))


def _welcome(
    order: Mapping[str, Any], ends: float, stack: contextlib.ExitStack
) -> tuple[list[socket.socket], object]:
    """Node 0: take all lines of the one that knows the word; whoever else calls is left alone."""
    door = stack.enter_context(socket.create_server(("", int(order["port"])), backlog=64))
    lines: dict[int, socket.socket] = {}
    told: object = None
    while len(lines) < 2 * STREAMS:
        door.settimeout(_left(ends))
        try:
            line, _ = door.accept()
        except socket.timeout:
            raise LineError("the other node did not call") from None
        stack.enter_context(line)
        said = _read(line, min(ends, time.monotonic() + 5))
        if said.get("word") == order["word"] and isinstance(said.get("line"), int):
            lines[said["line"]], told = line, said.get("tell")
    for line in lines.values():
        _write(line, {"tell": order["tell"]}, ends)
    return [lines[number] for number in sorted(lines)], told


def _call(
    order: Mapping[str, Any], ends: float, stack: contextlib.ExitStack
) -> tuple[list[socket.socket], object]:
    """Node 1: call until node 0 answers."""
    lines = []
    for number in range(2 * STREAMS):
        line = stack.enter_context(_connect(order, ends))
        _write(line, {"word": order["word"], "line": number, "tell": order["tell"]}, ends)
        lines.append(line)
    told = [_read(line, ends) for line in lines]
    if not all("tell" in one for one in told):
        raise LineError("the other node did not answer")
    return lines, told[0]["tell"]


def _connect(order: Mapping[str, Any], ends: float) -> socket.socket:
    where, why = (str(order["master"]), int(order["port"])), "no time left"
    while time.monotonic() < ends:
        try:
            return socket.create_connection(where, _left(ends))
        except OSError as error:  # it may not listen yet
            why = str(error)
        time.sleep(0.1)
    raise LineError(f"no way to {where[0]}: {why}")


def _left(ends: float) -> float:
    return max(0.05, ends - time.monotonic())


def _write(line: socket.socket, value: Mapping[str, Any], ends: float) -> None:
    line.settimeout(_left(ends))
    line.sendall(json.dumps(value).encode() + b"\n")


def _read(line: socket.socket, ends: float) -> dict[str, Any]:
    """One JSON line; empty: there was none."""
    said = b""
    try:
        while not said.endswith(b"\n") and len(said) < _LONGEST_LINE:
            line.settimeout(_left(ends))
            piece = line.recv(1)
            if not piece:
                break
            said += piece
        value = json.loads(said)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _send(line: socket.socket, seconds: float) -> float:
    """Until the other one has counted enough and hangs up."""
    stop = time.monotonic() + seconds + _LATE_S
    chunk = bytes(CHUNK_BYTES)
    with contextlib.suppress(OSError):
        while time.monotonic() < stop:
            line.settimeout(_left(stop))
            line.sendall(chunk)
    line.close()
    return 0.0


def _count(line: socket.socket, seconds: float, ends: float) -> float:
    """Bytes per second that arrive, from the first one on."""
    into = bytearray(CHUNK_BYTES)
    line.settimeout(_left(ends))
    try:
        got = line.recv_into(into)
    except socket.timeout:
        raise LineError("nothing arrived") from None
    began, total = time.monotonic(), 0
    while got and (left_s := began + seconds - time.monotonic()) > 0:
        line.settimeout(max(0.01, left_s))
        try:
            got = line.recv_into(into)
        except socket.timeout:
            break
        total += got
    spent_s = time.monotonic() - began
    line.close()
    if spent_s < _SHORTEST * seconds:
        raise LineError(f"the other node hung up after {spent_s:.1f} s")
    return total / spent_s
