"""Only the version, as torch's own version.py gives it."""

__version__ = "1.13.1"
cuda = None
