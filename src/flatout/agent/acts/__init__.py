"""The acting half of each technique, one module a technique, named as its declaration.

Each module has a class ``Act`` (see :mod:`.base`). They run inside the user's process: Python 3.9 or
later, the user's own torch, relative imports only.
"""
