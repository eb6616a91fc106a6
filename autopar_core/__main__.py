"""``python -m autopar_core`` is ``autopar``."""

from __future__ import annotations

import sys

from autopar_core.cli.main import main


if __name__ == "__main__":
    sys.exit(main())
