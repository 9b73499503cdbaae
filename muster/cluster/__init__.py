"""A real Slurm cluster of several nodes on one machine, to break on purpose.

Every node has its own network, mounts, host name and processes, so losing one looks to Slurm and to
a training job like losing a machine. Only `muster.errors` and `muster.process` are imported from
outside this package.
"""

from muster.cluster.cluster import LocalCluster
from muster.cluster.shape import Shape

__all__ = ["LocalCluster", "Shape"]
