"""What is broken: each function brings about one kind of fault while producers send and workers run, and fixes it."""
