"""lifecycle: from bare machines to a working cluster, again and again."""
