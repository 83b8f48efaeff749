"""Benchmarks: EMS beside the raw limit of the same server, in the same run (``./dev bench``)."""
