"""``python -m svr_lightning``."""

import sys

from svr_lightning.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
