"""Notes that people leave on topics; they expire."""
