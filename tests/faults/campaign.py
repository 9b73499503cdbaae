"""All faults on a recipe, on clusters side by side; faults.json and a page say what came of it."""

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
from tests.faults import page, twin
from tests.faults.fault import Fault
from tests.faults.judge import Row
from tests.faults.rehearsal import SHAPE, Rehearsal
from tests.faults.twin import Twin

Tell = Callable[[Row], None]


@dataclass(frozen=True)
class Campaign:
    """Faults x recipes."""

    out: Path
    twins: Sequence[Twin]
    faults: Sequence[Fault]
    num_clusters: int = 2  # a fault is mostly waiting, so two at once cost little

    def run(self, tell: Tell) -> list[Row]:
        """All rows, told as they come and written when all are there."""
        began = time.monotonic()
        rows = [row for one in self.twins for row in self._recipe(one, tell)]
        wall_s = round(time.monotonic() - began, 1)
        facts = {
            "good": all(row.good for row in rows),
            "wall_s": wall_s,
            "rows": [row.as_json() for row in rows],
        }
        (self.out / "faults.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        (self.out / "faults.html").write_text(page.render(rows, wall_s), encoding="utf-8")
        return rows

    def _recipe(self, one: Twin, tell: Tell) -> list[Row]:
        """All faults that a recipe can meet, by as many clusters as there are."""
        shutil.rmtree(self.out / one.name, ignore_errors=True)  # an older undisturbed run, too
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
        return sorted(rows, key=lambda row: (row.area, row.fault))


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
