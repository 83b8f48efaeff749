"""``ems top``: the groups of a stream, live on a terminal."""
