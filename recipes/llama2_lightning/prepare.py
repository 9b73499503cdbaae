"""Turn text into the token file that train.py maps into memory.

    python prepare.py                                        the plays that come with the recipe
    python prepare.py --input my.jsonl --tokenizer tokenizer.json
    python prepare.py --input texts/ --tokenizer llama2/tokenizer.model --out /shared/data
    python prepare.py --input web/ --validation 0.001 --workers 64 --out /shared/web

Input: files or folders of .txt (one document each), .jsonl (field `text`) or .parquet (column
`text`); .txt and .jsonl may be compressed (.xz, .gz, .zst). Tokenizer: a Hugging Face
tokenizer.json or a sentencepiece .model such as that of Llama 2. Output: tokens.bin (all documents
in order of file name, each followed by the end-of-document token), tokens.idx (with it, a data set
as Megatron has them), the same for validation where that is asked for, and meta.json. They appear
whole or not at all. The command may be killed at any moment: give it again, and it goes on with the
parts that are not done. It may run on several nodes at once.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from array import array
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from documents import bad, find_files
from errors import Stop
from megatron_index import token_dtype, write_index
from parts import (
    TRAIN,
    VALIDATION,
    Part,
    Task,
    make_all,
    own_name,
    part_name,
    parts_done,
    plan,
    remove_leftovers,
    remove_own,
    sync,
)
from tokenizer import load_tokenizer

HERE = Path(__file__).resolve().parent
COPY_BYTES = 1 << 24
TALK_S = 5.0


class Usage(argparse.ArgumentParser):
    """Wrong arguments end with 64 and one line, like everything here."""

    def error(self, message: str) -> NoReturn:
        """Replace argparse's exit code 2."""
        raise Stop(Stop.USAGE, "prepare.py", message, "see 'python prepare.py --help'")


def main(words: list[str]) -> None:
    """Prepare, unless the output is there already."""
    options = parse(words)
    out: Path = options.out
    have = read_meta(out)
    if options.input is None and have is not None:
        # Without arguments: make sure that there is data. Never replace somebody's own by plays.
        print(f"{out} is there: {have['num_tokens']:,} tokens")
        return
    files = find_files(options.input or [HERE / "corpus"])
    if not options.tokenizer.is_file():
        raise bad(options.tokenizer, "file not found", "name a tokenizer.json or a .model file")
    source = source_of(options, files)
    if have is not None and have.get("source") == source:
        print(f"{out} is up to date: {have['num_tokens']:,} tokens")
        return
    meta = prepare(options, files, source)
    held = f", {meta['validation']['num_tokens']:,} for validation" if meta["validation"] else ""
    print(f"{out}: {meta['num_tokens']:,} tokens of {len(files)} files{held}, {meta['dtype']}")


def parse(words: list[str]) -> argparse.Namespace:
    """Arguments, with the shipped corpus as default.

    Inside a job this file is a snapshot; the data belongs into the folder that was submitted, so
    that all its runs share it.
    """
    parser = Usage(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tokenizer = HERE / "corpus" / "tokenizer.json"
    out = Path(os.environ.get("MUSTER_RECIPE_DIR") or HERE) / "data"
    parser.add_argument("--input", type=Path, nargs="+", metavar="PATH")
    parser.add_argument("--field", default="text", help="of .jsonl and .parquet (default: text)")
    parser.add_argument("--tokenizer", type=Path, default=tokenizer)
    parser.add_argument("--out", type=Path, default=out, help="default: data/ beside this file")
    parser.add_argument("--end", help="end-of-document token, where it cannot be guessed")
    parser.add_argument(
        "--validation",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the documents that is kept for evaluation, 0 to 0.5 (default: 0)",
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=cores, help="default: one for each core")
    parser.add_argument(
        "--part-mb",
        type=float,
        default=64.0,
        help="text that is done at once; a kill costs at most this much of each worker (64)",
    )
    options = parser.parse_args(words)
    if not 0 <= options.validation <= 0.5:
        parser.error(f"--validation {options.validation} is not from 0 to 0.5")
    if options.workers < 1 or options.part_mb <= 0:
        parser.error("--workers and --part-mb are at least 1")
    return options


def source_of(options: argparse.Namespace, files: list[Path]) -> str:
    """What the result depends on; equal sources give equal tokens.

    Of the files their names, sizes and times: reading terabytes only to find that nothing has
    changed would take hours.
    """
    digest = hashlib.sha256(options.tokenizer.read_bytes())
    digest.update(repr((options.end, options.field, options.validation)).encode())
    for path in files:
        facts = path.stat()
        digest.update(repr((path.name, facts.st_size, facts.st_mtime_ns)).encode())
    return digest.hexdigest()


def prepare(options: argparse.Namespace, files: list[Path], source: str) -> dict[str, Any]:
    """Make all parts, then put them together; returns the content of meta.json.

    Raises:
        Stop: something cannot be read (65) or written (74).
    """
    out: Path = options.out
    tokenizer = load_tokenizer(options.tokenizer, options.end)
    parts = plan(files, max(1, int(options.part_mb * 1e6)))
    folder = out / f".parts.{source[:16]}.{options.part_mb:g}"
    task = Task(folder, options.tokenizer, options.end, options.field, options.validation)
    facts = {
        "dtype": token_dtype(tokenizer.vocab_size).name,
        "vocab_size": tokenizer.vocab_size,
        "eod": tokenizer.end,
        "source": source,
        "tokenizer": options.tokenizer.name,
        "tokenizer_sha256": hashlib.sha256(options.tokenizer.read_bytes()).hexdigest(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(out)
        remove_leftovers(folder)
        make_parts(task, parts, options.workers)
        meta = put_together(out, folder, len(parts), facts)
    except (OSError, Stop) as error:
        remove_own(out)
        have = read_meta(out)
        if have is not None and have.get("source") == source:
            shutil.rmtree(folder, ignore_errors=True)
            return have  # another node has finished the same, and removed the parts
        if isinstance(error, Stop):
            raise
        fix = "free space there, or name another folder with --out"
        raise Stop(Stop.STORAGE, f"prepare.py: {out}", str(error), fix) from None
    for old in out.glob(".parts.*"):
        shutil.rmtree(old, ignore_errors=True)
    return meta


def make_parts(task: Task, parts: list[Part], workers: int) -> None:
    """Make the parts that are not there, and say now and then how far that is."""
    there = parts_done(task, len(parts))
    if there:
        print(f"goes on: {len(there)} of {len(parts)} parts are there", flush=True)
    needed = [number for number in range(len(parts)) if number not in there]
    sizes = [sum(piece.num_bytes for piece in part) for part in parts]
    left = sum(sizes[number] for number in needed)
    started = said = time.monotonic()
    made = 0
    for count, number in enumerate(make_all(task, parts, needed, workers), len(there) + 1):
        made, left = made + sizes[number], left - sizes[number]
        now = time.monotonic()
        if now - said >= TALK_S and count < len(parts):
            said, rate = now, max(made, 1) / (now - started)
            speed = f"{rate / 1e6:.1f} MB/s, {left / rate / 60:.0f} min left"
            print(f"{count} of {len(parts)} parts, {speed}", flush=True)


def put_together(out: Path, folder: Path, num_parts: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Write the tokens, then meta.json; a reader that finds meta.json finds the tokens too."""
    writing: dict[str, Path] = {}
    splits: dict[str, dict[str, Any]] = {}
    dtype = np.dtype(facts["dtype"])
    for split in (TRAIN, VALIDATION):
        tokens, index = (own_name(out / f"{split}.{end}") for end in ("bin", "idx"))
        digest, lengths = hashlib.sha256(), array("i")
        with tokens.open("wb") as file:
            for number in range(num_parts):
                part = folder / part_name(number)
                lengths.frombytes((part / f"{split}.len").read_bytes())
                with (part / f"{split}.bin").open("rb") as source:
                    while block := source.read(COPY_BYTES):
                        file.write(block)
                        digest.update(block)
        if split == VALIDATION and not lengths:
            tokens.unlink()
            continue
        write_index(index, dtype, lengths)
        writing |= {f"{split}.bin": tokens, f"{split}.idx": index}
        splits[split] = {"num_tokens": sum(lengths), "sha256": digest.hexdigest()}
    meta = {**facts, **splits[TRAIN], "validation": splits.get(VALIDATION)}
    publish(out, writing, meta)
    return meta


def publish(out: Path, writing: dict[str, Path], meta: dict[str, Any]) -> None:
    """Put finished files in place by renaming. Another node may do the same at the same time."""
    for path in writing.values():
        sync(path)
    have = read_meta(out)
    if have is not None and [have.get(k) for k in ("sha256", "validation")] != [
        meta[k] for k in ("sha256", "validation")
    ]:
        (out / "meta.json").unlink(missing_ok=True)  # never let it describe other tokens
    for name, path in writing.items():
        path.replace(out / name)
    meta_writing = own_name(out / "meta.json")
    meta_writing.write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    sync(meta_writing)
    meta_writing.replace(out / "meta.json")
    if not meta["validation"]:
        for old in out.glob(f"{VALIDATION}.*"):
            old.unlink(missing_ok=True)  # of before; nobody reads it now
    sync(out)


def read_meta(out: Path) -> dict[str, Any] | None:
    """meta.json when it is there and its tokens are whole."""
    try:
        meta: dict[str, Any] = json.loads((out / "meta.json").read_text(encoding="utf-8"))
        size = meta["num_tokens"] * np.dtype(meta["dtype"]).itemsize
        return meta if (out / "tokens.bin").stat().st_size == size else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Stop as stop:
        print(stop, file=sys.stderr)
        sys.exit(stop.code)
