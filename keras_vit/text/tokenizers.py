"""Tokenizers: from texts to token ids. Shapes: N texts, T tokens."""

import collections
import collections.abc
import dataclasses
import html
import os
import pathlib
import re
import string
import typing

import numpy as np

from keras_vit.checks import check_choice, check_positive_integer, check_size, shown

FILES = {
    "clip": "tokenizer.json",
    "siglip": "spiece.model",
    "siglip2": "tokenizer.json",
    "tipsv2": "tokenizer.model",
    "words": "tokenizer.json",
}
"""{kind of a tokenizer: name of its file beside the weights}"""
_MISSING = "Tokenizers need {}. Run: pip install 'keras-vit-applications[text]'"
_MAX_CHARACTERS = 10_000
"""Longer texts are cut before they are tokenized. No model reads so many tokens."""


def _clip(text):
    """Repairs the encoding (ftfy), replaces HTML entities twice, joins white space, and makes letters lower-case.

    As in the code of CLIP (arXiv 2103.00020) and of OpenCLIP.
    """
    import ftfy

    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return re.sub(r"\s+", " ", text).strip().lower()


def _canonical(text):
    """Makes letters lower-case, removes ASCII punctuation and joins white space, as big_vision does for SigLIP.

    An underscore becomes a space. transformers removes it.
    """
    return " ".join(text.lower().replace("_", " ").translate(_WITHOUT_PUNCTUATION).split())


_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclasses.dataclass(frozen=True)
class _Rules:
    """How texts of a kind of tokenizer are prepared.

    Args:
        clean: Function that changes a text before it is tokenized.
        start: Id of the first token, or its text in the vocabulary. `None`: there is none.
        end: Id of the last token, like `start`. It also ends texts that are cut.
        padding: Id of padding.
    """

    clean: collections.abc.Callable[[str], str]
    start: int | str | None = None
    end: int | str | None = None
    padding: int = 0


_RULES = {
    "clip": _Rules(_clip, "<|startoftext|>", "<|endoftext|>"),
    "siglip": _Rules(_canonical, end=1, padding=1),
    "siglip2": _Rules(str.lower, end="<eos>"),
    "tipsv2": _Rules(str.lower),
    "words": _Rules(str.lower, end="</s>"),
}


class Tokenizer:
    """Converts texts to the token ids that a text encoder reads, with the rules of its owners.

    * `"clip"` (CLIP, OpenCLIP, MetaCLIP, DFN, Perception Encoder): repaired encoding, without HTML entities, joined
      white space, lower case; byte-pair encoding between a start and an end token; padding with 0.
    * `"siglip"`: lower case, without ASCII punctuation, joined white space; SentencePiece; an end token, which
      is also the padding.
    * `"siglip2"`: lower case; byte-pair encoding of Gemma; an end token; padding with 0.
    * `"tipsv2"`: lower case; SentencePiece; padding with 0.
    * `"words"`: lower case; an id for each word of the texts that `from_texts` got; an end token; padding with 0.

    Longer texts are cut to `context_length` tokens, and the end token is kept. A lone surrogate, which is no character,
    is replaced by U+FFFD.

    Args:
        kind: `"clip"`, `"siglip"`, `"siglip2"`, `"tipsv2"` or `"words"`.
        vocabulary: Contents of a `tokenizer.json` of the library tokenizers, or of a model of SentencePiece, as bytes.
        context_length: Number T of tokens of each text.

    Raises:
        ImportError: If the extra `text` is not installed.
        ValueError: If an argument is invalid.

    Example:

    >>> from keras_vit.text.tokenizers import Tokenizer
    >>> tokenizer = Tokenizer.from_file("siglip", "spiece.model", context_length=64)  # doctest: +SKIP
    >>> tokenizer(["a photo of a cat"]).shape  # doctest: +SKIP
    (1, 64)
    """

    def __init__(self, kind: str, vocabulary: bytes, context_length: int) -> None:
        self.kind = check_choice("kind", kind, _RULES)
        self.context_length = check_size("context_length", context_length)
        self.vocabulary = vocabulary
        self._rules = _RULES[kind]
        self._encode, ids, self.vocabulary_size = _open(vocabulary)
        ends = [ids(token) if isinstance(token, str) else token for token in (self._rules.start, self._rules.end)]
        if unknown := [
            name for name, id in zip(("start", "end"), ends, strict=True) if id is None and getattr(self._rules, name)
        ]:
            raise ValueError(
                f"The vocabulary has no {getattr(self._rules, unknown[0])!r}, so it is not of kind={kind!r}."
            )
        self._start, self._end = ([] if id is None else [id] for id in ends)

    @classmethod
    def from_file(cls, kind: str, path: str | os.PathLike, context_length: int) -> "Tokenizer":
        """Reads a tokenizer from its file, or from the folder that contains it.

        Args:
            kind, context_length: As in `Tokenizer`.
            path: Path of a `tokenizer.json`, of a model of SentencePiece, or of a folder.

        Raises:
            FileNotFoundError: If there is no such file.
        """
        path, name = pathlib.Path(path), FILES[check_choice("kind", kind, FILES)]
        file = path / name if path.is_dir() else path
        if not file.is_file():
            raise FileNotFoundError(f"{path} has no tokenizer. Needed: {name}, as its owners publish it.")
        return cls(kind, file.read_bytes(), context_length)

    @classmethod
    def from_texts(
        cls, texts: collections.abc.Iterable[str], context_length: int, most_words: int = 50_000
    ) -> "Tokenizer":
        """Makes a tokenizer whose vocabulary are the words of texts, for a text encoder that is trained from scratch.

        Args:
            texts: The texts.
            context_length: As in `Tokenizer`.
            most_words: Maximum number of words. Less frequent words share an id.

        Raises:
            ImportError: If the extra `text` is not installed.
            TypeError: If `texts` is not a list of strings.
            ValueError: If a number is not positive.
        """
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError(_MISSING.format(error.name)) from error
        check_positive_integer("most_words", most_words)
        texts = [] if isinstance(texts, (str, bytes)) else list(texts)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"texts must be a list of at least one string. Received: {shown(texts)}")
        splitter = tokenizers.pre_tokenizers.Whitespace()
        cleaned = (_valid(text[:_MAX_CHARACTERS]).lower() for text in texts)
        counts = collections.Counter(word for text in cleaned for word, _ in splitter.pre_tokenize_str(text))
        words = sorted(counts, key=lambda word: (-counts[word], word))[:most_words]
        ids = {token: number for number, token in enumerate(("<pad>", "</s>", "<unk>", *words))}
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
        model.pre_tokenizer = splitter
        return cls("words", model.to_str().encode(), context_length)

    @property
    def file_name(self) -> str:
        """Name of the file in which owners publish such a vocabulary."""
        return FILES[self.kind]

    @property
    def padding_id(self) -> int:
        """Id of padding."""
        return self._rules.padding

    def __call__(self, texts: str | collections.abc.Sequence[str]) -> np.ndarray:
        """Returns the token ids of texts, int32 (N, T).

        Args:
            texts: A text, or a list of N texts.

        Raises:
            TypeError: If something else than texts is given.
        """
        if isinstance(texts, str):
            texts = [texts]
        if isinstance(texts, bytes) or not isinstance(texts, collections.abc.Iterable):
            raise TypeError(f"Texts must be a string or a list of strings. Received: {shown(texts)}")
        texts = list(texts)
        ids = np.full((len(texts), self.context_length), self.padding_id, "int32")
        for row, text in zip(ids, texts, strict=True):
            if not isinstance(text, str):
                raise TypeError(f"Texts must be strings. Received: {shown(text)}")
            found = self._start + self._encode(self._rules.clean(_valid(text[:_MAX_CHARACTERS])))
            found = found[: self.context_length - len(self._end)] + self._end
            row[: len(found)] = found
        return ids


def _valid(text):
    """The text without lone surrogates, which cannot be encoded in UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _open(vocabulary: bytes) -> tuple[typing.Any, typing.Any, int]:
    """(function from a text to a list of ids, function from a token to its id or `None`, size of the vocabulary)"""
    is_json = vocabulary.lstrip()[:1] == b"{"
    try:
        if is_json:
            import tokenizers

            model = tokenizers.Tokenizer.from_str(vocabulary.decode("utf-8"))
            model.no_padding()
            model.no_truncation()
            encode = lambda text: model.encode(text, add_special_tokens=False).ids  # noqa: E731
            return encode, model.token_to_id, model.get_vocab_size()
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary)
        return processor.encode, processor.piece_to_id, processor.get_piece_size()
    except ImportError as error:
        raise ImportError(_MISSING.format(error.name)) from error
    except Exception as error:  # Both libraries raise errors of many kinds.
        library = "tokenizers" if is_json else "SentencePiece"
        raise ValueError(f"The vocabulary cannot be read by {library}: {error}") from error
