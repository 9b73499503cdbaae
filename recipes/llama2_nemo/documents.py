"""The documents of text files, JSON lines and parquet: found, cut into pieces, read piece by piece.

A piece is read without the rest of its file, so several processes share a large file. Only a file
that is compressed as a whole, and a .txt, which is one document, cannot be cut.
"""

import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from errors import Stop

PLAIN = (".txt", ".jsonl")
PACKED = (".xz", ".gz", ".zst")
KINDS = (*PLAIN, ".parquet", *(kind + packed for kind in PLAIN for packed in PACKED))
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Piece:
    """Bytes `first` to `last` of a file, or row groups of a .parquet; `last` is not included."""

    path: Path
    first: int
    last: int
    num_bytes: int


def find_files(inputs: list[Path]) -> list[Path]:
    """All files of a known kind, in order of name, so that every node sees the same order.

    Raises:
        Stop: there is none, or one of the inputs is not there (65).
    """
    files: list[Path] = []
    for path in inputs:
        if path.is_dir():
            files += sorted(p for p in path.rglob("*") if p.name.endswith(KINDS))
        elif path.is_file() and path.name.endswith(KINDS):
            files.append(path)
        elif path.exists():
            raise bad(path, "not a kind of file that I know", f"use {', '.join(KINDS)}")
        else:
            raise bad(path, "file not found", "correct --input")
    if not files:
        raise bad(inputs[0], "holds no text", f"put files there: {', '.join(KINDS)}")
    return files


def pieces(path: Path, piece_bytes: int) -> list[Piece]:
    """Cut a file where it can be cut, into pieces of about that many bytes.

    Raises:
        Stop: it cannot be read (65).
    """
    with reading(path):
        size = path.stat().st_size
    if path.name.endswith(".parquet"):
        groups = _row_groups(path)
        return [Piece(path, n, n + 1, num_bytes) for n, num_bytes in enumerate(groups)]
    if path.name.endswith(".jsonl"):
        starts = range(0, size, piece_bytes)
        ends = [min(size, start + piece_bytes) for start in starts]
        return [Piece(path, a, b, b - a) for a, b in zip(starts, ends, strict=True)]
    return [Piece(path, 0, size, size)]


def documents(piece: Piece, field: str) -> Iterator[str]:
    """The documents that begin in a piece.

    Args:
        piece: of a file.
        field: of a JSON object, or column of a parquet file, that holds the text.

    Raises:
        Stop: naming file and line of what cannot be read (65).
    """
    path = piece.path
    if path.name.endswith(".parquet"):
        yield from _parquet(piece, field)
    elif ".jsonl" in path.suffixes:
        for number, line in enumerate(_lines(piece)):
            if line.strip():
                yield _json_text(piece, number, line, field)
    else:
        with reading(path), io.TextIOWrapper(_open(path), encoding="utf-8") as file:
            text = file.read()
        yield text


def _lines(piece: Piece) -> Iterator[bytes]:
    """Lines whose first byte is in the piece."""
    with reading(piece.path), _open(piece.path) as file:
        if piece.path.suffix != ".jsonl":  # compressed, so there is one piece
            yield from file
            return
        at = piece.first
        if at:
            file.seek(at - 1)
            at += len(file.readline()) - 1  # the rest of the line that began in another piece
        while at < piece.last and (line := file.readline()):
            at += len(line)
            yield line


def _open(path: Path) -> Any:
    if path.suffix == ".zst":
        return io.BufferedReader(_zstd(path))
    opener: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    return opener(path, "rb")


def _zstd(path: Path) -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415  (large, and only for this kind of file)
    except ImportError:
        raise missing("pyarrow", path) from None
    return pa.input_stream(str(path), compression="zstd")


def _json_text(piece: Piece, number: int, line: bytes, field: str) -> str:
    try:
        text = json.loads(line)[field]
        if isinstance(text, str):
            text.encode()  # half a surrogate pair is no text
            return text
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    with reading(piece.path), piece.path.open("rb") as file:
        number += 1 + _count_lines(file, piece.first)
    what = f'expected a JSON object with a string field "{field}"'
    raise bad(f"{piece.path}:{number}", what, "correct or delete the line, or see --field")


def _count_lines(file: BinaryIO, before: int) -> int:
    """Lines that begin before a byte of a file."""
    count, last = 0, b"\n"
    while before > 0 and (block := file.read(min(before, BLOCK_BYTES))):
        count += block.count(b"\n")
        before -= len(block)
        last = block[-1:]
    return count + int(last != b"\n")


def _row_groups(path: Path) -> list[int]:
    """Bytes of each row group."""
    with _arrow(path) as parquet:
        meta = parquet(path).metadata
        return [meta.row_group(n).total_byte_size for n in range(meta.num_row_groups)]


def _parquet(piece: Piece, field: str) -> Iterator[str]:
    path = piece.path
    with _arrow(path) as parquet:
        table = parquet(path)
        if field not in table.schema_arrow.names:
            raise bad(path, f"has no column '{field}'", "name the one with the text: --field")
        groups = list(range(piece.first, piece.last))
        for batch in table.iter_batches(columns=[field], batch_size=1024, row_groups=groups):
            for text in batch.column(0).to_pylist():
                if not isinstance(text, str):
                    raise bad(path, f"column '{field}' holds something else", "make it strings")
                yield text


@contextmanager
def _arrow(path: Path) -> Iterator[Any]:
    """The ParquetFile of pyarrow; what goes wrong with it becomes one line."""
    try:
        import pyarrow as pa  # noqa: PLC0415  (large, and only for this kind of file)
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        raise missing("pyarrow", path) from None
    try:
        yield pq.ParquetFile
    except (pa.ArrowException, OSError) as error:
        raise bad(path, f"unreadable: {error}", "repair or remove the file") from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while reading a file into one line."""
    try:
        yield
    except (OSError, UnicodeDecodeError, lzma.LZMAError, zlib.error, EOFError) as error:
        raise bad(path, f"unreadable: {error}", "repair or remove the file") from None


def bad(where: Path | str, what: str, fix: str) -> Stop:
    """Something that was given cannot be read (65)."""
    return Stop(Stop.DATA, f"prepare.py: {where}", what, fix)


def missing(package: str, path: Path) -> Stop:
    """A package that only this file needs (69)."""
    what = f"the Python package {package} is not installed"
    return Stop(Stop.UNAVAILABLE, f"prepare.py: {path}", what, f"pip install {package}")
