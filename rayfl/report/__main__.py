"""``python -m rayfl.report``."""

import sys

from rayfl.commands.report import main

sys.exit(main())
