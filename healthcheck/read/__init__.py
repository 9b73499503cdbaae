"""Readers, one module per part of a node: pure parse functions, and what asks the node for text."""
