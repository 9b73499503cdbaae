"""A tokenizer from its file: Hugging Face's tokenizer.json or a sentencepiece .model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from documents import bad, missing

END_NAMES = ("<eod>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


@dataclass(frozen=True)
class Tokenizer:
    """A batch of texts to token numbers, whatever library does it."""

    encode: Callable[[list[str]], list[list[int]]]
    vocab_size: int
    end: int


def load_tokenizer(path: Path, end: str | None) -> Tokenizer:
    """A tokenizer from its file; the end of a document is `end`, or the one it knows.

    Raises:
        Stop: not a tokenizer, or without such a token (65); its library is missing (69).
    """
    load = _load_sentencepiece if path.suffix == ".model" else _load_huggingface
    return load(path, end)


def _load_huggingface(path: Path, end: str | None) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as HuggingFace  # noqa: PLC0415  (only one of the two)
    except ImportError:
        raise missing("tokenizers", path) from None
    try:
        tokenizer = HuggingFace.from_file(str(path))
    except Exception as error:  # noqa: BLE001  (the library raises plain Exception)
        raise bad(path, f"not a tokenizer.json: {error}", "name another file") from None
    ends = [tokenizer.token_to_id(name) for name in ([end] if end else END_NAMES)]
    known = [number for number in ends if number is not None]

    def encode(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=False)]

    return Tokenizer(encode, tokenizer.get_vocab_size(), _end(path, known, end))


def _load_sentencepiece(path: Path, end: str | None) -> Tokenizer:
    try:
        import sentencepiece  # noqa: PLC0415  (only one of the two)
    except ImportError:
        raise missing("sentencepiece", path) from None
    try:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise bad(path, f"not a sentencepiece model: {error}", "name another file") from None
    number = pieces.piece_to_id(end) if end else pieces.eos_id()
    known = [] if number < 0 or (end and number == pieces.unk_id()) else [number]
    return Tokenizer(pieces.encode, pieces.vocab_size(), _end(path, known, end))


def _end(path: Path, known: list[int], asked: str | None) -> int:
    if not known:
        what = f"has no token {asked}" if asked else f"has none of {', '.join(END_NAMES)}"
        raise bad(path, what, "name its end-of-document token with --end")
    return known[0]
