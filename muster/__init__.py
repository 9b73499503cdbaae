"""muster: training recipes for Slurm that keep training.

Inside muster.pyz the libraries that we need lie in `_vendor`; an installed one is preferred.
"""

import sys
from pathlib import Path

_ARCHIVE = Path(__file__).resolve().parents[1]
if _ARCHIVE.is_file():
    sys.path.append(str(_ARCHIVE / "muster" / "_vendor"))
