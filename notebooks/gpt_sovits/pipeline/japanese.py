"""Japanese text to phonemes with the rise and fall of pitch, by Open JTalk (pyopenjtalk-plus, its dictionary inside).

Pitch is marked as by Kurihara et al. ("Prosodic features control by symbols as input of sequence-to-sequence acoustic
modeling for neural TTS", 2021): [ before it rises, ] before it falls.
"""

from __future__ import annotations

import re

import pyopenjtalk

MARKS = str.maketrans("。、！？；：（）・~〜\n", ".,!?,,,,,…….", "「」『』《》〈〉【】“”\"'’‘")
# fmt: off
SYMBOL_NAMES = {
    "%": "パーセント", "&": "アンド", "+": "プラス", "=": "イコール",
    "$": "ドル", "¥": "円", "€": "ユーロ", "£": "ポンド",
    "@": "アット", "°": "度", "×": "かける", "÷": "わる", "²": "二乗", "³": "三乗",
    "α": "アルファ", "β": "ベータ", "γ": "ガンマ", "π": "パイ", "μ": "ミュー", "Ω": "オメガ",
}
# fmt: on


def normalise(text: str) -> str:
    """A text in kana, kanji and numbers, Latin words as they are, and the marks , . ! ? - … for pauses."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"([$¥€£])\s?(\d+(?:\.\d+)?)", r"\2\1", text)
    text = re.sub(r"(?<!\d)([01]?\d|2[0-4]):([0-5]\d)(?!\d)", _time, text)
    text = re.sub(r"(?<!\d)(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?!\d)", r"\1年\2月\3日", text)
    text = re.sub(r"\.{2,}", "…", text).translate(MARKS)
    text = re.sub(r"[;:()]", ",", text)
    text = re.sub(r"(?<=\d)\.(?=\d)", "点", text)
    return "".join(SYMBOL_NAMES.get(x, x) for x in text)


def _time(match: re.Match[str]) -> str:
    minutes = "" if match[2] == "00" else f"{int(match[2])}分"
    return f"{int(match[1])}時{minutes}"


def readable(character: str) -> bool:
    """Whether a Chinese character is one that Japanese is usually written with, as JIS X 0208 lists them."""
    try:
        return bool(character.encode("shift_jis"))
    except UnicodeEncodeError:
        return False


def phones(text: str, pitch: bool) -> list[str]:
    """The phonemes of a normalised text without Latin letters.

    pitch: mark its rise and fall; the border between two accent phrases, for which the table has no symbol, is UNK, as
    when the released checkpoints were trained. Devoiced vowels are I and U without, and like others with pitch.
    """
    symbols: list[str] = []
    for run in re.findall(r"[,.!?…-]|[^,.!?…-]+", text):
        if run in ",.!?…-":
            symbols.append(run)
        elif run.strip():
            read = pyopenjtalk.g2p_prosody(run) if pitch else pyopenjtalk.g2p(run, join=False)
            symbols += [symbol for phone in read for symbol in _symbols(phone, pitch)]
    return symbols


def _symbols(phone: str, pitch: bool) -> list[str]:
    if phone in ("^", "$", "{", "}"):
        return []
    if phone in "AEO" or (pitch and phone in "IU"):
        return [phone.lower()]
    if phone in ("kw", "gw", "ty", "fy", "vy"):  # of loan words: the table has their parts
        return list(phone)
    return [{"#": "UNK", "unk": "UNK", "pau": ",", "sp": ",", "_": ","}.get(phone, phone)]
