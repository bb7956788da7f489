"""Runs `python -m reproduction NAME`."""

import sys

from reproduction.command import main

sys.exit(main(sys.argv[1:]))
