"""Turn text into the token file that train.py maps into memory.

    python prepare.py                                        the plays that come with the recipe
    python prepare.py --input my.jsonl --tokenizer tokenizer.json
    python prepare.py --input texts/ --tokenizer llama2/tokenizer.model --out /shared/data

Input: files or folders of .txt (one document each), .jsonl (field `text`) or .parquet (column
`text`); .txt and .jsonl may be compressed (.xz, .gz). Tokenizer: a Hugging Face tokenizer.json or
a sentencepiece .model such as that of Llama 2. Output: tokens.bin (all documents in order of file
name, each followed by the end-of-document token), tokens.idx (with it, a data set as Megatron has
them) and meta.json. They appear whole or not at all, so the command may be killed at any moment and
may run on several nodes at once.
"""

import argparse
import gzip
import hashlib
import json
import lzma
import os
import socket
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from errors import Stop
from megatron_index import token_dtype, write_index

HERE = Path(__file__).resolve().parent
KINDS = (".txt", ".jsonl", ".parquet", ".txt.xz", ".jsonl.xz", ".txt.gz", ".jsonl.gz")
END_NAMES = ("<eod>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
BATCH_CHARS = 1 << 22  # text that is tokenized at once: enough for all cores, little memory


@dataclass(frozen=True)
class Tokenizer:
    """A batch of texts to token numbers, whatever library does it."""

    encode: Callable[[list[str]], list[list[int]]]
    vocab_size: int
    end: int


class Usage(argparse.ArgumentParser):
    """Wrong arguments end with 64 and one line, like everything here."""

    def error(self, message: str) -> NoReturn:
        """Replace argparse's exit code 2."""
        raise Stop(Stop.USAGE, "prepare.py", message, "see 'python prepare.py --help'")


def main(words: list[str]) -> None:
    """Prepare, unless the output is there already."""
    options = parse(words)
    have = read_meta(options.out)
    if options.input is None and have is not None:
        # Without arguments: make sure that there is data. Never replace somebody's own by plays.
        print(f"{options.out} is there: {have['num_tokens']:,} tokens")
        return
    files = find_files(options.input or [HERE / "corpus"])
    tokenizer_file: Path = options.tokenizer
    if not tokenizer_file.is_file():
        raise _bad(tokenizer_file, "file not found", "name a tokenizer.json or a .model file")
    source = digest_source([tokenizer_file, *files], options.end)
    out: Path = options.out
    if have is not None and have.get("source") == source:
        print(f"{out} is up to date: {have['num_tokens']:,} tokens")
        return
    tokenizer = load_tokenizer(tokenizer_file, options.end)
    meta = write_tokens(out, files, tokenizer, {"source": source, "tokenizer": tokenizer_file.name})
    print(f"{out}: {meta['num_tokens']:,} tokens of {len(files)} files, {meta['dtype']}")


def parse(words: list[str]) -> argparse.Namespace:
    """Arguments, with the shipped corpus as default.

    Inside a job this file is a snapshot; the data belongs into the folder that was submitted, so
    that all its runs share it.
    """
    parser = Usage(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tokenizer = HERE / "corpus" / "tokenizer.json"
    out = Path(os.environ.get("MUSTER_RECIPE_DIR") or HERE) / "data"
    parser.add_argument("--input", type=Path, nargs="+", metavar="PATH")
    parser.add_argument("--tokenizer", type=Path, default=tokenizer)
    parser.add_argument("--out", type=Path, default=out, help="default: data/ beside this file")
    parser.add_argument("--end", help="end-of-document token, where it cannot be guessed")
    return parser.parse_args(words)


def find_files(inputs: list[Path]) -> list[Path]:
    """All files of a known kind, in order of name, so that every node sees the same order."""
    files: list[Path] = []
    for path in inputs:
        if path.is_dir():
            files += sorted(p for p in path.rglob("*") if p.name.endswith(KINDS))
        elif path.is_file() and path.name.endswith(KINDS):
            files.append(path)
        elif path.exists():
            raise _bad(path, "not a kind of file that I know", f"use {', '.join(KINDS)}")
        else:
            raise _bad(path, "file not found", "correct --input")
    if not files:
        raise _bad(inputs[0], "holds no text", f"put files there: {', '.join(KINDS)}")
    return files


def digest_source(files: list[Path], end: str | None) -> str:
    """What the result depends on; equal sources give equal tokens."""
    digest = hashlib.sha256(repr(end).encode())
    for path in files:
        with _reading(path), path.open("rb") as file:
            while block := file.read(BATCH_CHARS):
                digest.update(block)
    return digest.hexdigest()


def documents(path: Path) -> Iterator[str]:
    """The documents of one file.

    Raises:
        Stop: naming file and line of what cannot be read (65).
    """
    if path.name.endswith(".parquet"):
        yield from _parquet(path)
        return
    opener: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with _reading(path), opener(path, "rt", encoding="utf-8", newline=None) as file:
        if ".jsonl" in path.suffixes:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _json_text(path, number, line)
        else:
            yield file.read()


def _json_text(path: Path, number: int, line: str) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        what = 'expected a JSON object with a string field "text"'
        raise _bad(f"{path}:{number}", what, "correct or delete the line")
    return text


def _parquet(path: Path) -> Iterator[str]:
    try:
        import pyarrow as pa  # noqa: PLC0415  (large, and only for this kind of file)
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        raise _missing("pyarrow", path) from None
    try:
        table = pq.ParquetFile(path)
        if "text" not in table.schema_arrow.names:
            raise _bad(path, "has no column 'text'", "rename the column that holds the text")
        for batch in table.iter_batches(columns=["text"], batch_size=1024):
            for text in batch.column(0).to_pylist():
                if not isinstance(text, str):
                    raise _bad(path, "column 'text' holds something else", "make it strings")
                yield text
    except (pa.ArrowException, OSError) as error:
        raise _bad(path, f"unreadable: {error}", "repair or remove the file") from None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while reading a file into one line."""
    try:
        yield
    except (OSError, UnicodeDecodeError, lzma.LZMAError, zlib.error, EOFError) as error:
        raise _bad(path, f"unreadable: {error}", "repair or remove the file") from None


def load_tokenizer(path: Path, end: str | None) -> Tokenizer:
    """A tokenizer from its file; the end of a document is `end`, or the one it knows."""
    load = _load_sentencepiece if path.suffix == ".model" else _load_huggingface
    return load(path, end)


def _load_huggingface(path: Path, end: str | None) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as HuggingFace  # noqa: PLC0415  (only one of the two)
    except ImportError:
        raise _missing("tokenizers", path) from None
    try:
        tokenizer = HuggingFace.from_file(str(path))
    except Exception as error:  # noqa: BLE001  (the library raises plain Exception)
        raise _bad(path, f"not a tokenizer.json: {error}", "name another file") from None
    ends = [tokenizer.token_to_id(name) for name in ([end] if end else END_NAMES)]
    known = [number for number in ends if number is not None]

    def encode(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=False)]

    return Tokenizer(encode, tokenizer.get_vocab_size(), _end(path, known, end))


def _load_sentencepiece(path: Path, end: str | None) -> Tokenizer:
    try:
        import sentencepiece  # noqa: PLC0415  (only one of the two)
    except ImportError:
        raise _missing("sentencepiece", path) from None
    try:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise _bad(path, f"not a sentencepiece model: {error}", "name another file") from None
    number = pieces.piece_to_id(end) if end else pieces.eos_id()
    known = [] if number < 0 or (end and number == pieces.unk_id()) else [number]
    return Tokenizer(pieces.encode, pieces.vocab_size(), _end(path, known, end))


def _end(path: Path, known: list[int], asked: str | None) -> int:
    if not known:
        what = f"has no token {asked}" if asked else f"has none of {', '.join(END_NAMES)}"
        raise _bad(path, what, "name its end-of-document token with --end")
    return known[0]


def write_tokens(
    out: Path, files: list[Path], tokenizer: Tokenizer, facts: dict[str, Any]
) -> dict[str, Any]:
    """Write the tokens, then meta.json; a reader that finds meta.json finds the tokens too."""
    dtype = token_dtype(tokenizer.vocab_size)
    try:
        out.mkdir(parents=True, exist_ok=True)
        remove_leftovers(out)
        writing = {name: _own_name(out, name) for name in ("tokens.bin", "tokens.idx")}
        digest, lengths = hashlib.sha256(), array("i")
        with writing["tokens.bin"].open("wb") as file:
            for batch in _batches(files):
                for ids in tokenizer.encode(batch):
                    block = np.array([*ids, tokenizer.end], dtype=dtype).tobytes()
                    file.write(block)
                    digest.update(block)
                    lengths.append(len(ids) + 1)
        write_index(writing["tokens.idx"], dtype, lengths)
        meta = {
            "dtype": dtype.name,
            "num_tokens": sum(lengths),
            "vocab_size": tokenizer.vocab_size,
            "eod": tokenizer.end,
            "sha256": digest.hexdigest(),
            **facts,
        }
        publish(out, writing, meta)
    except OSError as error:
        fix = "free space there, or name another folder with --out"
        raise Stop(Stop.STORAGE, f"prepare.py: {out}", str(error), fix) from None
    return meta


def publish(out: Path, writing: dict[str, Path], meta: dict[str, Any]) -> None:
    """Put finished files in place by renaming. Another node may do the same at the same time."""
    for path in writing.values():
        _sync(path)
    have = read_meta(out)
    if have is not None and have.get("sha256") != meta["sha256"]:
        (out / "meta.json").unlink(missing_ok=True)  # never let it describe other tokens
    for name, path in writing.items():
        path.replace(out / name)
    meta_writing = _own_name(out, "meta.json")
    meta_writing.write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    _sync(meta_writing)
    meta_writing.replace(out / "meta.json")
    _sync(out)


def _sync(path: Path) -> None:
    """Force a file, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def read_meta(out: Path) -> dict[str, Any] | None:
    """meta.json when it is there and its tokens are whole."""
    try:
        meta: dict[str, Any] = json.loads((out / "meta.json").read_text(encoding="utf-8"))
        size = meta["num_tokens"] * np.dtype(meta["dtype"]).itemsize
        return meta if (out / "tokens.bin").stat().st_size == size else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _batches(files: list[Path]) -> Iterator[list[str]]:
    batch, chars = [], 0
    for path in files:
        for text in documents(path):
            batch.append(text)
            chars += len(text)
            if chars >= BATCH_CHARS:
                yield batch
                batch, chars = [], 0
    if batch:
        yield batch


def _own_name(out: Path, name: str) -> Path:
    """A name that no other process on any node uses."""
    return out / f".{name}.{socket.gethostname()}.{os.getpid()}.tmp"


def remove_leftovers(out: Path) -> None:
    """Delete what killed runs on this node left; those of other nodes may still be written."""
    for path in out.glob(f".*.{socket.gethostname()}.*.tmp"):
        pid = path.name.split(".")[-2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)


def _bad(where: Path | str, what: str, fix: str) -> Stop:
    return Stop(Stop.DATA, f"prepare.py: {where}", what, fix)


def _missing(package: str, path: Path) -> Stop:
    what = f"the Python package {package} is not installed"
    return Stop(Stop.UNAVAILABLE, f"prepare.py: {path}", what, f"pip install {package}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Stop as stop:
        print(stop, file=sys.stderr)
        sys.exit(stop.code)
