"""Figures against limits: recovery and overhead, ours and others' on one cluster in one run.

    nox -s bench -- recovery --rounds 3        faults under `muster run`, and the floor
    nox -s bench -- recovery --only torchrun   one way of keeping a job going, by a word of its name
    nox -s bench -- overhead                   `muster run` and bare srun, three minutes each
    nox -s bench -- seal                       sealing, and torch.distributed.checkpoint alone
    nox -s bench -- health --rounds 20         a health check of each mode, eight GPUs

Each prints a table and leaves runs/bench/<name>.json. Tests never assert on time; this is where
time is looked at. Needs an idle machine to mean anything.
"""
