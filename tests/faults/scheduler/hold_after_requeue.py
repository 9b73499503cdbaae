"""A prolog fails where a requeued job starts: Slurm holds it, `muster watch` lets it go, once."""

from tests.faults.fault import fault, recovers
from tests.faults.stage import Stage
from tests.harness import head


@fault(recovers("requeue"))
def hold_after_requeue(stage: Stage) -> None:
    bad, folder = stage.batch_host, stage.recipe.parent
    prolog = folder / "prolog"
    prolog.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" != {bad} ]\n')
    prolog.chmod(0o755)
    held = {"Prolog": str(prolog), "SchedulerParameters": "bf_interval=1,sched_interval=1"}
    stage.undo.enter_context(head.settings(stage.cluster, **held))
    stage.hit(bad)
    stage.cluster.exec(["scontrol", "requeue", stage.run.job])
    stage.wait_held()
    stage.undo.enter_context(head.watching(stage.cluster, folder / "watch"))
    stage.run.wait_event("supervisor_started", 2)
    done = [event["event"] for event in head.events(folder / "watch", stage.run.job)]
    stage.check("it is released once", done == ["job_released"])
    stage.check("it is kept off the node", bad in stage.excluded())
