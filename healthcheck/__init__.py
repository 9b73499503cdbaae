"""Is this node fit for work? Checks, one policy table, a guarded drain, and the watch."""
