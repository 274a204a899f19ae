"""What is of no single language: accents, marks, and what is written in short in any text."""

from __future__ import annotations

import re
import unicodedata

PAUSES = ",.!?…-"  # marks that the models have learned as pauses
MONTHS = """
January February March April May June July August September October November December
""".split()
# fmt: off
ABBREVIATIONS = {  # before a full stop: what they are read as
    "Mr": "mister", "Mrs": "missus", "Ms": "miz", "Dr": "doctor", "Prof": "professor", "St": "saint",
    "Jr": "junior", "Sr": "senior", "Gen": "general", "Col": "colonel", "Capt": "captain", "Lt": "lieutenant",
    "Sgt": "sergeant", "Rev": "reverend", "Hon": "honourable", "Sen": "senator", "Rep": "representative",
    "vs": "versus", "etc": "et cetera", "approx": "approximately", "dept": "department", "est": "established",
    "Inc": "incorporated", "Ltd": "limited", "Corp": "corporation", "Mt": "mount", "Ave": "avenue", "Fig": "figure",
    "e.g": "for example", "i.e": "that is", "a.m": "A M", "p.m": "P M",
} | {month[:3]: month for month in MONTHS if month != "May"}
SYMBOL_NAMES = {
    "&": " and ", "+": " plus ", "=": " equals ", "@": " at ", "#": " number ", "<": " less than ",
    ">": " greater than ", "×": " times ", "÷": " divided by ", "±": " plus or minus ", "%": " percent ",
    "°": " degrees ", "$": " dollars ", "£": " pounds ", "€": " euros ", "¥": " yen ", "²": " squared ",
    "³": " cubed ", "α": " alpha ", "β": " beta ", "γ": " gamma ", "π": " pi ", "μ": " mu ", "Ω": " omega ",
}
# fmt: on


def unaccented(text: str) -> str:
    """Latin letters without their marks: "café" is "cafe"."""
    text = text.translate(str.maketrans({"ß": "ss", "ø": "o", "æ": "ae", "œ": "oe", "ł": "l", "đ": "d", "ð": "th"}))
    text = text.translate(str.maketrans({"Ø": "O", "Æ": "Ae", "Œ": "Oe", "Ł": "L", "Đ": "D", "þ": "th", "ı": "i"}))
    return "".join(x for x in unicodedata.normalize("NFD", text) if not unicodedata.combining(x))


def tidy(text: str) -> str:
    """The text with single spaces and single pauses: of several the first that ends a sentence, or the first.

    There is no pause at the beginning.
    """
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"[,.!?…-][ ,.!?…-]*", lambda m: (re.findall("[.!?…]", m[0]) or m[0])[0] + " ", text)
    text = re.sub(r" +(?=[,.!?…-])", "", text)
    return text.lstrip(" ,.!?…-").rstrip()
