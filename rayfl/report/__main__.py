"""``python -m rayfl.report``."""

import sys

from rayfl.report.command import main

sys.exit(main())
