"""Chinese text to syllables. jieba finds the words and pypinyin their readings; context and tone sandhi are our own.

jieba's dictionary of frequencies is read from its package. The cache that jieba keeps in the temporary folder is
neither written nor read, since any user of the machine could have put a file there.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from pypinyin import Style, lazy_pinyin
from pypinyin.constants import PHRASES_DICT, PINYIN_DICT

from .lexicon import CONTEXT, FULL_ER, LETTERS, NEUTRAL, READINGS, REDUPLICATED, SINGLE

with warnings.catch_warnings():  # of its regular expressions, and of pkg_resources where that still exists
    warnings.simplefilter("ignore")
    import jieba

MAX_PHRASE_CHARACTERS = max(map(len, PHRASES_DICT))
CONTEXT_CHARACTERS = 8  # before and after a word, which may decide its reading
NUMERALS = "零一二三四五六七八九十百千万亿两几半多"
ENCLITICS = set("的地得了着过们吗呢吧啊呀哇嘛么啦呗上下里中个")  # pronounced with the word before them


@dataclass
class Syllable:
    """A spoken syllable."""

    text: str  # the character, with a 儿 that only colours it ("花儿"), or a Latin letter
    pinyin: str  # without the tone, with "v" for ü, and with "r" at the end when er-coloured
    tone: int  # after tone sandhi: 1 to 4, or 5 for the neutral tone


Word = list[Syllable]
Foot = list[Word]  # a prosodic word: words pronounced without a pause


class Segmenter(jieba.Tokenizer):
    """jieba without its cache file and its messages."""

    def initialize(self, dictionary: str | None = None) -> None:
        """Read the dictionary of 350,000 words once, which takes about a second."""
        with self.lock:
            if not self.initialized:
                self.FREQ, self.total = self.gen_pfdict(self.get_dict_file())
                self.initialized = True


def readable(character: str) -> bool:
    """Whether a Chinese character has a reading, or a capital Latin letter a name."""
    return character in LETTERS or ord(character) in PINYIN_DICT


class Reader:
    """Reads phrases, which are normalised text without punctuation."""

    def __init__(self) -> None:
        self.segmenter = Segmenter()
        self.segmenter.initialize()

    def words(self, text: str) -> list[str]:
        """The words of a text. A Latin letter is a word of its own; spaces are left out."""
        pieces = re.findall(r"[A-Z]|[^A-Z\s]+", text)
        return [word for piece in pieces for word in self.segmenter.cut(piece)]

    def read(self, phrase: str) -> list[Foot]:
        """The prosodic words of a phrase, whose characters must be `readable` or spaces."""
        words = list(self._readings(self.words(phrase)))
        words = _er_coloured(words)
        syllables = [syllable for word in words for syllable in word]
        _yi_and_bu(syllables)
        _reduplicated(words)
        feet = _feet(words)
        _third_tones([[[self._halves(word) for word in foot] for foot in feet]])
        return feet

    def _readings(self, words: list[str]) -> Iterator[Word]:
        phrase, end = "".join(words), 0
        for word in words:
            start, end = end, end + len(word)
            before = phrase[max(0, start - CONTEXT_CHARACTERS) : start]
            syllables = _by_dictionary(word, before, phrase[end : end + CONTEXT_CHARACTERS])
            if word in NEUTRAL:
                syllables[-1].tone = 5
            yield syllables

    def _halves(self, word: Word) -> list:
        """A word as a tree of its parts, such as 展览|馆 or 小|老虎; longer words are cut into pairs of syllables."""
        if len(word) < 3:
            return word
        texts = [syllable.text for syllable in word]
        frequency = self.segmenter.FREQ.get
        later = len(word) == 3 and frequency("".join(texts[1:]), 0) > 2 * frequency("".join(texts[:2]), 0)
        cuts = [0, 1 if later else 2, *range(4, len(word), 2), len(word)]
        return [word[begin:end] for begin, end in pairwise(cuts)]


def _syllables(text: str, pinyin: list[str]) -> Word:
    texts = text if len(text) == len(pinyin) else [text, *[""] * (len(pinyin) - 1)]  # the letter W is three syllables
    return [Syllable(one, _plain(reading[:-1]), int(reading[-1])) for one, reading in zip(texts, pinyin, strict=True)]


def _by_dictionary(word: str, before: str, after: str) -> Word:
    """The syllables of a word: the longest known phrase is read first. before, after: text that may decide readings."""
    syllables: Word = []
    alone = SINGLE.get(word)
    while word:
        lengths = range(min(len(word), MAX_PHRASE_CHARACTERS), 1, -1)
        known = (word[:n] for n in lengths if word[:n] in READINGS or word[:n] in PHRASES_DICT)
        piece = next(known, word[0])
        rest = word[len(piece) :] + after
        reading = _in_context(piece, before, rest) or READINGS.get(piece) or LETTERS.get(piece) or alone
        syllables += _syllables(piece, reading.split() if reading else _pinyin(piece))
        before, word = before + piece, word[len(piece) :]
    return syllables


def _in_context(piece: str, before: str, after: str) -> str | None:
    for first, then, reading in CONTEXT.get(piece, ()):
        if re.search(f"(?:{first})$", before) and re.match(then, after):
            return reading
    return None


def _pinyin(piece: str) -> list[str]:
    return lazy_pinyin([piece], style=Style.TONE3, neutral_tone_with_five=True)


def _plain(syllable: str) -> str:
    """A syllable as it is pronounced: ü is v also after j, q, x and y, and interjections have a vowel."""
    syllable = {"hm": "heng", "hng": "heng", "m": "mu", "n": "en", "ng": "en", "ê": "ei"}.get(syllable, syllable)
    return re.sub("^([jqxy])u", r"\1v", syllable)


def _er_coloured(words: list[Word]) -> list[Word]:
    """Merge each 儿 with the syllable that it colours. A 儿 that means a child (女儿) stays a syllable."""
    coloured: list[Word] = []
    for word in words:
        text = "".join(syllable.text for syllable in word)
        if text == "儿" and coloured and not coloured[-1][-1].pinyin.endswith("r"):
            text, word = "".join(syllable.text for syllable in coloured[-1]) + "儿", coloured.pop() + word
        while (at := _er(word, text)) > 0:
            before = word[at - 1]
            word[at - 1 : at + 1] = [Syllable(before.text + "儿", before.pinyin + "r", before.tone)]
        coloured.append(word)
    return coloured


def _er(word: Word, text: str) -> int:
    """The place in a word of a 儿 that colours the syllable before it, or 0."""
    if re.search(FULL_ER, text):
        return 0
    return next(
        (i for i, syllable in enumerate(word) if i and syllable.text == "儿" and not word[i - 1].pinyin.endswith("r")),
        0,
    )


def _yi_and_bu(syllables: Word) -> None:
    """Set the tones of 一 and 不 by the syllable that follows. 个 counts as the fourth tone that it has lost."""
    text = "".join(syllable.text[:1] or " " for syllable in syllables)
    for i, (syllable, following) in enumerate(pairwise([*syllables, Syllable("", "", 0)])):
        before, after = text[max(0, i - CONTEXT_CHARACTERS) : i], text[i + 1 : i + CONTEXT_CHARACTERS]
        falling = following.tone == 4 or following.text == "个"
        doubled = bool(before) and before[-1] == after[:1] and before[-1] not in NUMERALS
        doubled = doubled and before[-2:-1] != "一"  # 一个一个
        if syllable.text == "一":
            counted = re.search("[第零一二三四五六七八九十幺初周期]$|星期$|礼拜$|[百千万亿]零$|点$", before)
            ordinal = re.match(
                "[零一二三四五六七八九幺]|[月号楼级班审]|年级|等[奖功]|把手|十|分之|点[零一二三四五六七八九]", after
            )
            month = re.search("月$", before) and after[:1] == "日"
            if doubled:
                syllable.tone = 5
            elif not after or following.tone == 0 or counted or ordinal or month:
                syllable.tone = 1
            else:
                syllable.tone = 2 if falling else 4
        elif syllable.text == "不":
            complement = re.search("[看听打吃买找做说走来去进出赶用对差舍记想受靠了]$", before) and re.match(
                "[见到懂开着完起出下上来去及多得住动清了]", after
            )
            syllable.tone = 5 if doubled or complement else 2 if falling else 4


def _reduplicated(words: list[Word]) -> None:
    """Set neutral tones: of the second syllable in doubled verbs (看看), and of 个 after a numeral."""
    for word in words:
        texts = [syllable.text for syllable in word]
        if len(word) == 2 and texts[0] == texts[1] and texts[0] in REDUPLICATED:
            word[0].tone, word[1].tone = 2 if word[0].tone == 3 else word[0].tone, 5
    for before, syllable in pairwise(syllable for word in words for syllable in word):
        if syllable.text == "个" and before.text and before.text[0] in NUMERALS + "这那哪每某":
            syllable.tone = 5


def _feet(words: list[Word]) -> list[Foot]:
    """Group words into prosodic words of two syllables or more where possible, by a heuristic."""
    feet: list[Foot] = []
    for word in words:
        length = sum(map(len, feet[-1])) if feet else 2
        leans = (
            feet and len(word) == 1 and (word[0].text in ENCLITICS or feet[-1][-1][-1].text + word[0].text == "个人")
        )
        if feet and (length < 2 or leans):
            feet[-1].append(word)
        else:
            feet.append([word])
    if len(feet) > 1 and sum(map(len, feet[-1])) == 1 and sum(map(len, feet[-2])) < 4:
        feet[-2:] = [feet[-2] + feet[-1]]
    return feet


def _third_tones(tree: list | Syllable) -> tuple[Syllable, Syllable]:
    """Third-tone sandhi: a third tone before another becomes the second, in the smallest parts first, from the right.

    Returns the first and the last syllable of the tree.
    """
    if isinstance(tree, Syllable):
        return tree, tree
    ends = [_third_tones(part) for part in tree]
    for (_, left), (right, _) in reversed(list(pairwise(ends))):
        if left.tone == right.tone == 3:
            left.tone = 2
    return ends[0][0], ends[-1][1]
