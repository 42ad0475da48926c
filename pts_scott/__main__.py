"""The command line, as ``python -m pts_scott``."""

import sys

from pts_scott.cli import main

if __name__ == "__main__":
    sys.exit(main())
