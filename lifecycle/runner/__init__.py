"""Runs the steps that make a machine a node of the cluster, and writes down how it went."""
