"""``python -m pts_scott``: the command line."""

import sys

from pts_scott.cli import main

if __name__ == "__main__":
    sys.exit(main())
