"""The pure core: words, decisions and state, with no I/O of its own."""
