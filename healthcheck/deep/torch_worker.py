"""What burn-in does with torch, in a process of its own: products of matrices, and all-reduce.

This file is read as text and given to the Python of the site that has torch, which may be inside a
container; so it imports nothing of ours. One process for each GPU; on a node without any two, in a
pair one. They are forks made before torch is imported. A GPU takes nccl, a CPU gloo; all else is
the same.

    python -c "$(cat torch_worker.py)" '{"seconds": 10, "limit_s": 60, "what": "matmul"}'

One JSON line comes out: `ranks` with what each process found, or `error`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from datetime import timedelta
from typing import Any, Callable

CPU_RANKS = 2
CPU_BYTES, GPU_BYTES = 1 << 20, 1 << 30
CPU_SIZE, GPU_SIZE = 256, 8192
SMALLEST_REPEATS = 5


def main(order: dict[str, Any]) -> dict[str, Any]:
    """Do what the order says in as many processes as there are devices."""
    ends = time.monotonic() + float(order["limit_s"])
    (here,) = fork_all([lambda _: devices()], ends)
    if "error" in here:
        return {"error": here["error"], "missing": here.get("missing", False)}
    local = int(here["count"]) or (CPU_RANKS if order.get("nodes", 1) == 1 else 1)
    work = {"matmul": matmul, "allreduce": allreduce}[str(order["what"])]
    order = {**order, "local": local, "cuda": here["count"] > 0, "ends": ends}
    return {"ranks": fork_all([lambda index: work(order, index)] * local, ends)}


def fork_all(tasks: list[Callable[[int], dict[str, Any]]], ends: float) -> list[dict[str, Any]]:
    """Run every task in a fork; what hangs is killed at the end and says so."""
    children = []
    for index, task in enumerate(tasks):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            child(task, index, writer)
        os.close(writer)
        children.append((pid, reader))
    answers = []
    for pid, reader in children:
        said = b""
        while select.select([reader], [], [], max(0.0, ends - time.monotonic()))[0]:
            piece = os.read(reader, 1 << 16)
            if not piece:
                break
            said += piece
        os.kill(pid, signal.SIGKILL)  # it has said all, or it hangs
        os.close(reader)
        late = time.monotonic() >= ends
        answers.append(json.loads(said) if said else {"error": "died", "hung": late})
    return answers


def child(task: Callable[[int], dict[str, Any]], index: int, writer: int) -> None:
    """The whole life of a fork; torch may print what it likes."""
    os.dup2(2, 1)
    try:
        answer = task(index)
    except ImportError as error:
        answer = {"error": str(error), "missing": True}
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the answer)
        answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    os.write(writer, json.dumps(answer).encode())
    os._exit(0)


def devices() -> dict[str, Any]:
    """How many GPUs torch can use."""
    import torch  # noqa: PLC0415  (only in a fork)

    return {"count": torch.cuda.device_count() if torch.cuda.is_available() else 0}


def start(order: dict[str, Any], index: int) -> tuple[Any, str]:
    """Torch, set to be exact and repeatable, and the name of this process's device."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it products are not repeatable
    import torch  # noqa: PLC0415

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(1)
    if not order["cuda"]:
        return torch, "cpu"
    torch.cuda.set_device(index)
    return torch, f"cuda:{index}"


def matmul(order: dict[str, Any], index: int) -> dict[str, Any]:
    """Multiply the same matrices again and again, and compare every bit.

    Whole numbers give one right product on every processor, which is checked with a vector: A(Bx)
    must be (AB)x. Other numbers must give the same bits each time, and on all GPUs of one model.
    """
    import hashlib  # noqa: PLC0415

    torch, device = start(order, index)
    size = GPU_SIZE if order["cuda"] else CPU_SIZE
    generator = torch.Generator().manual_seed(7)
    whole = [torch.randint(-4, 5, (size, size), generator=generator).float() for _ in range(2)]
    real = [torch.randn(size, size, generator=generator) for _ in range(2)]
    vector = torch.randint(1, 1000, (size, 1), generator=generator).double()
    right = whole[0].double() @ (whole[1].double() @ vector)
    whole, real = [m.to(device) for m in whole], [m.to(device) for m in real]
    first, wrong, changed, count = "", 0, 0, 0
    stops = min(time.monotonic() + float(order["seconds"]), float(order["ends"]) - 5)
    while count < 2 or time.monotonic() < stops:
        product = torch.matmul(*whole).cpu().double()
        wrong += not torch.equal(product @ vector, right)
        said = hashlib.sha256(torch.matmul(*real).cpu().numpy().tobytes()).hexdigest()[:16]
        first = first or said
        changed += said != first
        count += 1
    name = torch.cuda.get_device_name(index) if order["cuda"] else "cpu"
    return {"device": device, "name": name, "count": count, "wrong": wrong, "changed": changed,
            "checksum": first}  # fmt: skip


def allreduce(order: dict[str, Any], index: int) -> dict[str, Any]:
    """Sum over all processes: is it right to the last bit, and how fast?

    The bandwidth is that of a bus: 2 (n - 1) / n times the bytes by the time, as nccl-tests prints.
    """
    torch, device = start(order, index)
    import torch.distributed as dist  # noqa: PLC0415

    world = order["nodes"] * order["local"]
    rank = order["node"] * order["local"] + index
    left_s = float(order["ends"]) - time.monotonic()
    dist.init_process_group(
        "nccl" if order["cuda"] else "gloo",
        init_method=f"tcp://{order['master']}:{order['port']}",
        world_size=world,
        rank=rank,
        timeout=timedelta(seconds=max(1.0, left_s)),
    )
    count = (GPU_BYTES if order["cuda"] else CPU_BYTES) // 4
    pattern = (torch.arange(count, device=device) % 97).float()
    right = pattern * world + world * (world - 1) // 2
    wrong, times = 0, []
    for repeat in range(SMALLEST_REPEATS + 1):
        values = pattern + rank
        if order["cuda"]:
            torch.cuda.synchronize()
        dist.barrier()
        began = time.monotonic()
        dist.all_reduce(values)
        if order["cuda"]:
            torch.cuda.synchronize()
        if repeat:  # the first one makes the connections
            times.append(time.monotonic() - began)
        wrong += not torch.equal(values, right)
    dist.barrier()
    took_s = sorted(times)[len(times) // 2]
    speed = 2 * (world - 1) / world * count * 4 / took_s / 1e9
    return {"device": device, "rank": rank, "wrong": wrong, "gb_s": speed}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
