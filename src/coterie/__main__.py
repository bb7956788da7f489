"""`python -m coterie` is `coterie`, as torchrun starts it."""

import sys

from coterie.cli import main

if __name__ == "__main__":
    sys.exit(main())
