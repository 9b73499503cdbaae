"""What a recipe imports: leave when asked, show life, save whole, say when done.

Standard library only, so that any container image can import it; the supervisor, which is not for
recipes, lives in the other files of this folder. docs/reference/train_contract.md is the contract.
"""

from resume.checkpoint import CheckpointError, Fenced, Picked, StorageError, pick, verify
from resume.draft import CheckpointDraft
from resume.run import Run

__all__ = [
    "CheckpointDraft",
    "CheckpointError",
    "Fenced",
    "Picked",
    "Run",
    "StorageError",
    "pick",
    "verify",
]
