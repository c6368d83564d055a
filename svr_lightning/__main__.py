"""``python -m svr_lightning``, and the console script ``svr``."""

import sys

from svr_lightning.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
