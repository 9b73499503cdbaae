"""`python3 -m muster`, and the entry of muster.pyz."""

import sys

from muster.cli import main

sys.exit(main())
