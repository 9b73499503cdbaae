"""A whole node as data: what its files say and what its programs answer, with faults to order.

`good.node()` is a fit node with eight H100; a test edits it. The same node serves two ways: in
memory, for thousands of rows (`node.door()`), and as real folders with replay programs for PATH
(`install.install(node, folder)`), for end-to-end tests. A part of a node (`gpus.py`, ...) is a
module with `add(node)` that `good.py` calls.
"""
