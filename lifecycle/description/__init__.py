"""The one description of a cluster: cluster.yaml, or what a platform says instead of it."""
