"""`python -m bullpen` is the console script `bullpen`."""

import sys

from bullpen.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
