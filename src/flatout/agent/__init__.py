"""What runs inside the user's process: Python 3.9 or later, standard library and the user's own torch.

Inside the program this package is loaded under the name ``flatout_agent`` by ``bootstrap.py``, from
its own folder, so that nothing else of flatout's environment becomes importable there. Hence every
import in here is relative, and nothing in here imports ``flatout``.
"""
