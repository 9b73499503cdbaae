"""One module per part of a node; every module here is found by name, none is registered."""
