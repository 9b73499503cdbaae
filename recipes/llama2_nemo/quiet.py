"""Messages go where they belong: NeMo's to RUN_DIR/nemo, one line of ours to stderr.

NeMo, Lightning and what they import say on every rank what is not installed and what will change;
model.py and before.py have looked at what matters.
"""

import logging
import os
import warnings

MODULES = ("lightning", "megatron", "modelopt", "nemo", "nv_one_logger", "torch", "transformers")


def before_imports() -> None:
    """Nothing below an error while they are imported."""
    logging.disable(logging.WARNING)
    for module in MODULES:
        warnings.filterwarnings("ignore", module=module)
    os.environ.setdefault("NEMO_LOG_TRAIN_LOSS", "0")  # contract.py adds it up over all ranks


def after_imports() -> None:
    """Each speaks again, to files: NeMoLogger writes one for each rank."""
    from nemo.utils import logging as nemo_logging  # noqa: PLC0415  (takes many seconds)

    logging.disable(logging.NOTSET)
    nemo_logging.remove_stream_handlers()
    for name in (
        "lightning",
        "lightning.pytorch",
        "lightning.fabric",
        "pytorch_lightning",
        "megatron",
        "nv_one_logger",
    ):
        logging.getLogger(name).setLevel(logging.ERROR)
