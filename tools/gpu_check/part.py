"""``python -m tools.gpu_check.part FUNCTION DEVICE``: run one part in its own process."""

import os
import sys
import traceback
import warnings
from importlib import import_module

# Set before transformers is imported: the check never goes to the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from svr_lightning.errors import typed_line
from tools.gpu_check.settings import SkippedError, emit_line

FAILED = 1


def main(arguments: list[str]) -> int:
    """Run ``FUNCTION(emit, device)``; an early end is reported as a line."""
    path, device = arguments
    module, _, function = path.rpartition(".")
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        getattr(import_module(module), function)(emit_line, device)
    except SkippedError as reason:
        emit_line("skipped", str(reason))
    except Exception as error:
        traceback.print_exc()
        emit_line("error", typed_line(error))
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
