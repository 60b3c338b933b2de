"""One technique of training a file: its declaration. Its act has the same name in ``agent/acts``."""
