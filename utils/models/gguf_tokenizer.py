"""The tokenizer that a GGUF file describes, built from the file's own vocabulary.

The file names one of two kinds in `tokenizer.ggml.model`:

    gpt2    byte-level BPE: text is split as `tokenizer.ggml.pre` says, then merged by `tokenizer.ggml.merges`
    llama   BPE of SentencePiece: a space is "▁", the merges follow from the scores, and what is unknown becomes bytes

The patterns are those of the published tokenizer.json files and of llama.cpp's table of pre-tokenizers. The keys are
described in the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # values of tokenizer.ggml.token_type
SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # name in transformers: in GGUF
SPACE = "▁"  # of SentencePiece
EDIT = "python -m gguf.scripts.gguf_new_metadata"  # a tool of the package gguf: it writes a file with other keys

DIGIT = r"\p{N}"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
QWEN2 = rf"{_WORDS}|\p{{N}}|{_SIGNS}|{_SPACES}"
LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TITLES = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"  # capitals, then small letters
_CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
TEKKEN = rf"{_TITLES}|{_CAPITALS}|\p{{N}}|{_PATHS}|{_SPACES}"
GPT4O = rf"{_TITLES}{_CONTRACTIONS}?|{_CAPITALS}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_PATHS}|{_SPACES}"
# Letters that have a case, as DeepSeek LLM's tokenizer.json lists them: ranges of code points.
_CASED = """
41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1
3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a
1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4
1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128
212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d
a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f
104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943
"""
_CASED_RANGES = "".join("-".join(chr(int(end, 16)) for end in span.split("-")) for span in _CASED.split())
_CHINESE = "[一-龥ࠀ-一가-퟿]+"
DEEPSEEK_LLM = (r"[\r\n]", rf"\s?[{_CASED_RANGES}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CHINESE, DIGIT)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE, DIGIT)


@dataclass(frozen=True)
class Split:
    """How a value of tokenizer.ggml.pre splits text before the merges: by one pattern after the other.

    whole_words: a piece that is a token stays one, whatever the merges say. bos: whether a text begins with the BOS
    token where the file has no add_bos_token. nfc: whether characters are composed first.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    bos: bool = False
    nfc: bool = False


_SPLITS = {  # values of tokenizer.ggml.pre: how they split
    ("default",): Split((r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("gpt-2", "trillion"): Split((GPT2,)),
    ("smollm", "starcoder", "minerva-7b"): Split((DIGIT, GPT2)),
    ("qwen2", "deepseek-r1-qwen", "megrez"): Split((QWEN2,), nfc=True),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"): Split((LLAMA3,), whole_words=True, bos=True),
    ("deepseek-llm",): Split(DEEPSEEK_LLM),
    ("deepseek-coder",): Split(DEEPSEEK_CODER),
    ("tekken",): Split((TEKKEN,), whole_words=True, bos=True),
    ("gpt-4o",): Split((GPT4O,)),
}
PRE = {name: split for names, split in _SPLITS.items() for name in names}
PRE_OF = {  # architecture: its only pre-tokenizer, for files from before there was tokenizer.ggml.pre
    "qwen2": "qwen2",
    "qwen2moe": "qwen2",
    "qwen3": "qwen2",
    "qwen3moe": "qwen2",
    "gpt2": "gpt-2",
    "starcoder2": "starcoder",
}


class Vocabulary:
    """The tokens of a GGUF file, checked.

    tokens: the text of each id; kinds: the type of each, such as CONTROL; scores: of SentencePiece, else empty; ids: by
    text; special: ids of those of bos, eos, unk and pad that there are. Raises ValueError that names the file and the
    key where one is missing or does not fit the others.
    """

    def __init__(self, metadata: Mapping, file: Path) -> None:
        self.metadata, self.file = metadata, file
        self.model = self.need("model", "a vocabulary")
        self.tokens = self.need("tokens", "a vocabulary")
        self.kinds = self.get("token_type", [NORMAL] * len(self.tokens))
        self.scores = self.get("scores", [])
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) < len(self.tokens):
            twice = next(token for i, token in enumerate(self.tokens) if self.ids[token] != i)
            raise ValueError(
                f"{file}: tokenizer.ggml.tokens has {twice!r} twice. The file is damaged: convert it again."
            )
        for key, entries in {"token_type": self.kinds, "scores": self.scores or self.tokens}.items():
            if len(entries) != len(self.tokens):
                raise ValueError(
                    f"{file}: tokenizer.ggml.{key} has {len(entries)} entries for {len(self.tokens)} tokens. The file "
                    "is damaged: convert it again."
                )
        numbers = {"bos": 1, "eos": 2, "unk": 0} if self.model == "llama" else {}  # SentencePiece's own
        numbers |= {name: self.number(key) for name, key in SPECIAL_TOKENS.items() if self.number(key) is not None}
        self.special = {name: numbers[name] for name in SPECIAL_TOKENS if numbers.get(name, self.size) < self.size}

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return len(self.tokens)

    @property
    def ends(self) -> list[int]:
        """The ids at which an answer ends: of the EOS token, and of the tokens that end a turn or a message."""
        found = [self.special.get("eos"), self.number("eot"), self.number("eom")]
        return list(dict.fromkeys(number for number in found if number is not None))

    def get(self, key: str, default=None):
        """The value of tokenizer.ggml.<key>."""
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def need(self, key: str, what: str):
        """The value of tokenizer.ggml.<key>, or an error that says that the file lacks `what`."""
        if (value := self.get(key)) is None:
            raise ValueError(
                f"{self.file} has no tokenizer.ggml.{key}. Take a file with {what}, or the model's transformers folder."
            )
        return value

    def number(self, name: str) -> int | None:
        """The id at tokenizer.ggml.<name>_token_id, None if the file has no such key."""
        number, key = self.get(f"{name}_token_id"), f"tokenizer.ggml.{name}_token_id"
        if number is not None and not 0 <= number < self.size:
            raise ValueError(
                f"{self.file}: {key} is {number}, but there are {self.size} tokens. Write a file without that key: "
                f"{EDIT} --remove-metadata {key} {self.file.name} corrected.gguf"
            )
        return number

    def of_kind(self, kind: int) -> list[str]:
        """The tokens of one type."""
        return [token for token, own in zip(self.tokens, self.kinds, strict=True) if own == kind]

    def added(self, name: str, default: bool) -> list[str]:
        """The token bos or eos in a list, if every text gets it; else an empty list."""
        if self.get(f"add_{name}_token") and name not in self.special:
            raise ValueError(
                f"{self.file}: tokenizer.ggml.add_{name}_token is true, but there is no tokenizer.ggml.{name}_token_id."
                f" Write a file with it: {EDIT} --special-token-by-id {name} NUMBER {self.file.name} corrected.gguf"
            )
        wanted = self.get(f"add_{name}_token", default) and name in self.special
        return [self.tokens[self.special[name]]] if wanted else []


def build(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """The tokenizer of a vocabulary, with special tokens and chat template.

    Raises ValueError that names the file and the key where a value is not known here.
    """
    from tokenizers import AddedToken, processors
    from transformers import PreTrainedTokenizerFast

    if vocabulary.model == "llama":
        split, tokenizer = Split((), bos=True), _sentencepiece(vocabulary)
    elif vocabulary.model == "gpt2":
        split = _split(vocabulary)
        tokenizer = _byte_level(vocabulary, split)
    else:
        raise ValueError(
            f"{vocabulary.file}: tokenizer.ggml.model is {vocabulary.model!r}. Known kinds are gpt2 (byte-level BPE) "
            "and llama (SentencePiece). Take the model's transformers folder instead of this file."
        )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in vocabulary.of_kind(USER_DEFINED)])
    before, after = vocabulary.added("bos", split.bos), vocabulary.added("eos", False)
    if before or after:
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in before + after])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B", *after],
            special_tokens=[(token, vocabulary.ids[token]) for token in dict.fromkeys(before + after)],
        )
    built = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        additional_special_tokens=vocabulary.of_kind(CONTROL),
        **{f"{name}_token": vocabulary.tokens[number] for name, number in vocabulary.special.items()},
    )
    built.chat_template = vocabulary.metadata.get("tokenizer.chat_template")
    return built


def _split(vocabulary: Vocabulary) -> Split:
    architecture = vocabulary.metadata.get("general.architecture")
    pre = vocabulary.get("pre", PRE_OF.get(architecture))
    if pre is None:
        raise ValueError(
            f"{vocabulary.file} has no tokenizer.ggml.pre, and models of the architecture {architecture!r} differ in "
            f"how they split text. Write a file with it: {EDIT} --pre-tokenizer NAME {vocabulary.file.name} "
            f"corrected.gguf, where NAME is one of: {', '.join(PRE)}."
        )
    if pre not in PRE:
        raise ValueError(
            f"{vocabulary.file}: tokenizer.ggml.pre is {pre!r}. Known are: {', '.join(PRE)}. Take the model's "
            "transformers folder instead of this file."
        )
    return PRE[pre]


def _byte_level(vocabulary: Vocabulary, split: Split) -> Tokenizer:
    """Byte-level BPE. Tokens are written in the alphabet of GPT-2, which has a visible character for each byte."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pairs = []
    for i, merge in enumerate(vocabulary.need("merges", "the merges of its tokens")):
        pair = tuple(merge.split(" "))
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.ids.keys():
            raise ValueError(
                f"{vocabulary.file}: entry {i} of tokenizer.ggml.merges is {merge!r}, which does not join two tokens "
                "to a third. The file is damaged: convert it again."
            )
        pairs.append(pair)
    tokenizer = Tokenizer(models.BPE(vocabulary.ids, pairs, ignore_merges=split.whole_words))
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    by_gpt2 = split.patterns[-1] == GPT2  # ByteLevel can split by that pattern itself
    steps = [
        pre_tokenizers.Digits(individual_digits=True)
        if pattern == DIGIT
        else pre_tokenizers.Split(Regex(pattern), "isolated")
        for pattern in split.patterns[: len(split.patterns) - by_gpt2]
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=by_gpt2))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    """BPE of SentencePiece. By default a text, and what follows a special token, begins with a space."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary.need("scores", "the scores of its tokens, which give the order of merges")
    prefix = vocabulary.get("add_space_prefix", True)
    unknown = vocabulary.special.get("unk")
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary.ids,
            merges_of_scores(vocabulary.tokens, vocabulary.scores, vocabulary.kinds),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    begin = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*begin, normalizers.Replace(" ", SPACE)])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def merges_of_scores(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> list[tuple[str, str]]:
    """The merges that lead to SentencePiece's tokens, in the order of their scores, the highest first.

    Each way to cut a normal token into two others is a merge. Two cuts of one token have one score; then the cut with
    the smaller ids comes first, as in the tokenizer.json files of such models. SentencePiece itself would take the cut
    that stands further left in the text.
    """
    ids = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == NORMAL}
    found = [
        (-scores[number], number, ids[token[:cut]], ids[token[cut:]])
        for token, number in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    return [(tokens[left], tokens[right]) for _, _, left, right in sorted(found)]
