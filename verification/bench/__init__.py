"""The benchmarks: that they measure what they say, and that EMS keeps its distance to the raw limit."""
