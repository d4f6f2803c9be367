"""Where the command line writes: results to stdout, everything else to stderr."""

from __future__ import annotations

from rich.console import Console

stdout = Console(emoji=False)
stderr = Console(stderr=True, emoji=False)
