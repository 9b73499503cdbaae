"""One line of ours on stderr, not the libraries' messages on every rank.

AutoModel and what it imports say what is not installed and what will change.
"""

import logging
import warnings

MODULES = ("megatron_fsdp", "nemo_automodel", "torch", "torchao", "transformers", "triton")


def before_imports() -> None:
    """Nothing below an error while they are imported."""
    logging.disable(logging.WARNING)
    for module in MODULES:
        warnings.filterwarnings("ignore", module=module)


def after_imports() -> None:
    """From here on errors only."""
    logging.disable(logging.NOTSET)
    for module in MODULES:
        logging.getLogger(module).setLevel(logging.ERROR)
