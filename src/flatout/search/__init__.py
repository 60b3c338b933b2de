"""Which trial next, and is it truly faster: the search over techniques and the proof of each step.

``train.search`` is the whole; ``measure``, ``prove``, ``screen`` and ``climb`` are its parts, each a
set of functions over sessions that a runner starts. Nothing here prints: progress is told as data.
"""
