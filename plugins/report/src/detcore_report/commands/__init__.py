"""The commands ``detcore report``, ``experiment plot``, ``tensorboard`` and ``top``."""
