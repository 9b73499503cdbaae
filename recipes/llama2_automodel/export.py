"""Turn a published checkpoint into a folder that Hugging Face's transformers load.

    python export.py runs/123/checkpoints/step_00000500 llama2-mine
    python export.py runs/123/checkpoints/step_00000500 llama2-mine --dtype bf16

One process, on any machine, without a GPU. The folder starts a run too: train.init=llama2-mine. The
tokenizer is not part of it: copy yours beside.
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import torch

import resume
from config import Model
from errors import Stop
from hf_weights import write_weights
from resume.checkpoint import read_manifest
from whole_weights import WholeWeights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Usage(argparse.ArgumentParser):
    """Wrong arguments end with 64 and one line, like everything here."""

    def error(self, message: str) -> NoReturn:
        """Replace argparse's exit code 2."""
        raise Stop(Stop.USAGE, "export.py", message, "see 'python export.py --help'")


def main(words: list[str]) -> None:
    """Verify, read, write."""
    parser = Usage(prog="export.py", description="checkpoint to Hugging Face format")
    parser.add_argument("checkpoint", type=Path, help="a published one: .../step_00000500")
    parser.add_argument("folder", type=Path, help="made by this; must not be there yet")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="in the files (fp32)")
    asked = parser.parse_args(words)
    facts = read_facts(asked.checkpoint)
    shape = Model(**{field.name: facts["run"][f"model.{field.name}"] for field in fields(Model)})
    whole = WholeWeights(asked.checkpoint, shape)
    write_weights(asked.folder, shape, whole.read, DTYPES[asked.dtype])
    print(f"{asked.folder}: training step {facts['step']}, {asked.dtype}")


def read_facts(path: Path) -> dict[str, Any]:
    """What the checkpoint says about itself, after a look at every byte of it.

    Raises:
        Stop: not a published checkpoint, or damaged (65).
    """
    body, problems = read_manifest(path)
    problems = problems or resume.verify(path)
    if body is None or problems or "model.dim" not in body["meta"].get("run", {}):
        what = problems[0] if problems else "it is not of this recipe"
        raise Stop(Stop.DATA, f"checkpoint {path}", what, "name a published checkpoint")
    facts: dict[str, Any] = body["meta"]
    return facts


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Stop as stop:
        print(stop, file=sys.stderr)
        sys.exit(stop.code)
    except OSError as error:
        print(f"export.py: {error}. Fix: free or repair that disk", file=sys.stderr)
        sys.exit(Stop.STORAGE)
