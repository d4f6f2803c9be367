"""Logging of the server process: one line an event, to stderr."""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def set_up_logging(level: str) -> None:
    """Log Ratoon at ``level``, and everything else from warnings up."""
    logging.basicConfig(format=FORMAT, datefmt="%H:%M:%S", level=logging.WARNING)
    logging.getLogger("ratoon").setLevel(level.upper())
