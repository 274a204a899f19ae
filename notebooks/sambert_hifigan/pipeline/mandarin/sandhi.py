"""How syllables change in speech: 儿 that colours a vowel, 一 and 不, neutral tones, and third tones in a row."""

from __future__ import annotations

import re
from itertools import pairwise

from .lexicon import FULL_ER, REDUPLICATED
from .syllables import Syllable, Word

NUMERALS = "零一二三四五六七八九十百千万亿两几半多"
CONTEXT_CHARACTERS = 8  # before and after 一 and 不, which decide their tones
LOST_FALLING = ("个", "下")  # they have lost their fourth tone, which 一 and 不 still obey
# words that end with 一 and go on with a measure word, which it obeys
BEFORE_MEASURES = ("同一", "某一", "每一", "这一", "那一", "哪一", "任一", "另一", "有一")
# 一 counts and keeps its tone after the first of these, or before the second
COUNTED = "[第零一二三四五六七八九十幺初周期]$|星期$|礼拜$|[百千万亿]零$|点$"
ORDINAL = "[零一二三四五六七八九幺]|[月号楼级班审]|年级|等[奖功]|把手|十|分之|点[零一二三四五六七八九]"
# 不 between such a verb and such a complement has no tone: 看不见, 追不上. 来 and 去 alone are complements of few verbs
POSSIBLE = [
    (
        "[看听打吃买找做说走来去进出赶用对差舍记想受靠了追爬跑拿睡办抓忍跟装坐跳写读学猜搬推拉喊叫问答站停离救修卖喝"
        "穿借划管禁经顶数放住过回下上行]$",
        "[见到懂开着完起出下上及多住动清了成够好惯掉透]|[回过进]来|[回过进]去",
    ),
    ("[进出上下回过合谈划]$", "[来去](?!不)"),
    ("[巴怪恨由舍免顾见值]$", "得"),
    ("[^我你他她它们也都就还有]$", "了(?!解)"),
]


def colour(words: list[Word]) -> list[Word]:
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


def one_and_not(words: list[Word]) -> None:
    """Set the tones of 一 and 不 by the syllable that follows."""
    syllables = [syllable for word in words for syllable in word]
    last = [_ends_with_one(word) and place == len(word) - 1 for word in words for place in range(len(word))]
    text = "".join(syllable.text[:1] or " " for syllable in syllables)
    for i, (syllable, following) in enumerate(pairwise([*syllables, Syllable("", "", 0)])):
        before, after = text[max(0, i - CONTEXT_CHARACTERS) : i], text[i + 1 : i + CONTEXT_CHARACTERS]
        falling = following.tone == 4 or following.text in LOST_FALLING
        doubled = bool(before) and before[-1] == after[:1] and before[-1] not in NUMERALS
        doubled = doubled and before[-2:-1] != "一"  # 一个一个
        if syllable.text == "一":
            month = re.search("月$", before) and after[:1] == "日"
            if doubled:
                syllable.tone = 5
            elif last[i] or following.tone == 0 or re.search(COUNTED, before) or re.match(ORDINAL, after) or month:
                syllable.tone = 1
            else:
                syllable.tone = 2 if falling else 4
        elif syllable.text == "不":
            complement = any(re.search(verb, before) and re.match(end, after) for verb, end in POSSIBLE)
            syllable.tone = 5 if doubled or complement else 2 if falling else 4


def _ends_with_one(word: Word) -> bool:
    """Whether 一 is the last character of a word that does not ask for a measure word: 统一, but not 同一."""
    text = "".join(syllable.text for syllable in word)
    return len(word) > 1 and text.endswith("一") and not text.endswith(BEFORE_MEASURES)


def neutral(words: list[Word]) -> None:
    """Set neutral tones: of the second syllable in doubled verbs (看看), and of 个 after a numeral."""
    for word in words:
        texts = [syllable.text for syllable in word]
        if len(word) == 2 and texts[0] == texts[1] and texts[0] in REDUPLICATED:
            word[0].tone, word[1].tone = 2 if word[0].tone == 3 else word[0].tone, 5
    for before, syllable in pairwise(syllable for word in words for syllable in word):
        if syllable.text == "个" and before.text and before.text[0] in NUMERALS + "这那哪每某":
            syllable.tone = 5


def third_tones(tree: list | Syllable) -> tuple[Syllable, Syllable]:
    """Third-tone sandhi: a third tone before another becomes the second, in the smallest parts first, from the right.

    Returns the first and the last syllable of the tree.
    """
    if isinstance(tree, Syllable):
        return tree, tree
    ends = [third_tones(part) for part in tree]
    for (_, left), (right, _) in reversed(list(pairwise(ends))):
        if left.tone == right.tone == 3:
            left.tone = 2
    return ends[0][0], ends[-1][1]
