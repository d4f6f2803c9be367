"""What the model says, by script and step, as it would write it."""

from __future__ import annotations

from tests.client.scripts import agents, edits, faults
from tests.client.scripts.writing import CLOSING, SUMMARY, WORK

SCRIPTS = {**edits.SCRIPTS, **agents.SCRIPTS, **faults.SCRIPTS}

__all__ = ["CLOSING", "SCRIPTS", "SUMMARY", "WORK"]
