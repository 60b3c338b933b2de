"""flatout finds, proves and applies the speed that a GPU workload leaves on the table."""

__version__ = "0.1.0"
