"""``python -m ratoon`` is the ``ratoon`` command."""

from ratoon.cli import main

main()
