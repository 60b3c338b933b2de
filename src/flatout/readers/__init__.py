"""One capture format a file: each reads what a profiler wrote into a Capture."""
