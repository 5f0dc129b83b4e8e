"""``python -m fencing`` is the command ``fencing``."""

import sys

from fencing.cli import main

sys.exit(main())
