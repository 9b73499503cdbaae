"""`muster slurm-conf`: Slurm's configuration, rendered from the description of a cluster.

render.py joins what the other modules give: pure functions from a `Description` to lines, each with
its reason. owned.py puts them beside an operator's own lines; dry_start.py asks the real slurmctld.
"""
