"""All faults on a recipe, on clusters side by side; faults.json and a page say what came of it.

Both are written after every row, so a campaign that ends early loses none. They hold the latest
campaign of every recipe in the folder: those with an environment of their own run by themselves.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.cluster import LocalCluster
from muster.errors import MusterError
from resume import durable
from tests.faults import page, twin
from tests.faults.fault import Fault
from tests.faults.judge import Row
from tests.faults.rehearsal import SHAPE, Rehearsal
from tests.faults.twin import Twin

Tell = Callable[[Row], None]
ROWS = "rows.json"


@dataclass(frozen=True)
class Campaign:
    """Faults x recipes."""

    out: Path
    twins: Sequence[Twin]
    faults: Sequence[Fault]
    num_clusters: int = 2  # a fault is mostly waiting, so two at once cost little

    def run(self, tell: Tell) -> list[Row]:
        """All rows, told and written as they come."""
        return [row for one in self.twins for row in self._recipe(one, tell)]

    def write(self, recipe: str, rows: Sequence[Row], wall_s: float) -> None:
        """Put a recipe's rows of this campaign beside those of the others' latest ones."""
        mine = {"wall_s": round(wall_s, 1), "rows": [row.as_json() for row in rows]}
        durable.write_json(self.out / recipe / ROWS, mine)
        parts = [durable.read_json(path) for path in sorted(self.out.glob(f"*/{ROWS}"))]
        found = [Row.from_json(row) for part in parts for row in part["rows"]]
        total_s = round(sum(part["wall_s"] for part in parts), 1)
        facts = {
            "good": all(row.good for row in found),
            "wall_s": total_s,
            "rows": [row.as_json() for row in found],
        }
        durable.write_whole(self.out / "faults.json", json.dumps(facts, indent=2) + "\n")
        durable.write_whole(self.out / "faults.html", page.render(found, total_s))

    def _recipe(self, one: Twin, tell: Tell) -> list[Row]:
        """All faults that a recipe can meet, by as many clusters as there are."""
        began = time.monotonic()
        shutil.rmtree(self.out / one.name, ignore_errors=True)  # an older undisturbed run, too
        (self.out / one.name).mkdir(parents=True)
        jobs: queue.Queue[Fault] = queue.Queue()
        wanted = [fault for fault in self.faults if twin.applies(fault, one)]
        for fault in sorted(wanted, key=lambda fault: -fault.limit_s):  # the longest first
            jobs.put(fault)
        rows: list[Row] = []
        ready = threading.Event()  # the undisturbed run is there
        lock = threading.Lock()

        def work(number: int) -> None:
            name = f"faults{os.getpid()}-{number}"
            cluster = LocalCluster(name, SHAPE)
            try:
                cluster.up(owner_pid=os.getpid())
                rehearsal = Rehearsal(cluster, one, self.out / one.name)
                if number == 0:
                    rehearsal.undisturbed()
                    ready.set()
                ready.wait()
                while (fault := _next(jobs)) is not None:
                    row = _meet(rehearsal, fault)
                    with lock:
                        rows.append(row)
                        rows.sort(key=lambda row: (row.area, row.fault))
                        self.write(one.name, rows, time.monotonic() - began)
                        tell(row)
            finally:
                ready.set()  # nobody waits for one that has failed
                cluster.down()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(self.num_clusters)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(rows) < len(wanted):
            raise RuntimeError(f"{one.name}: only {len(rows)} of {len(wanted)} faults were tried")
        return rows


def _next(jobs: queue.Queue[Fault]) -> Fault | None:
    try:
        return jobs.get_nowait()
    except queue.Empty:
        return None


def _meet(rehearsal: Rehearsal, fault: Fault) -> Row:
    """A row in any case: what breaks the rehearsal itself is a problem of this row."""
    try:
        return rehearsal.meet(fault)
    except (MusterError, OSError, RuntimeError, TimeoutError) as error:
        rehearsal.cluster.down()
        rehearsal.cluster.up(owner_pid=os.getpid())
        return Row(
            area=fault.area,
            fault=fault.name,
            emulates=fault.emulates,
            recipe=rehearsal.twin.name,
            expected=str(fault.expected),
            problems=(f"the rehearsal broke: {str(error).splitlines()[0]}",),
        )
