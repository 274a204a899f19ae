"""Numbers in Chinese characters: quantities by cn2an, telephone numbers and years digit by digit."""

from __future__ import annotations

import re

import cn2an

DIGITS = "零一二三四五六七八九"
TELEPHONE_DIGITS = DIGITS.replace("一", "幺")
MAX_DIGITS = 16  # of a number that cn2an reads as a quantity; a longer one is read digit by digit


def cardinal(digits: str) -> str:
    """The digits read as a quantity: "105" is 一百零五. A leading zero or too many digits are read digit by digit."""
    if len(digits) > MAX_DIGITS or (len(digits) > 1 and digits[0] == "0"):
        return spelled(digits)
    return re.sub("^二(?=[千万亿])", "两", cn2an.an2cn(digits, "low"))


def spelled(digits: str, names: str = DIGITS) -> str:
    """The names of all digits. Any other character becomes a space."""
    return "".join(names[int(x)] if x.isdigit() else " " for x in digits)


def number(text: str) -> str:
    """A number with or without a fraction: "3.14" is 三点一四, "1.2.3" a version, 一点二点三."""
    whole, *fractions = text.split(".")
    read_fraction = spelled if len(fractions) == 1 else cardinal
    return "点".join([cardinal(whole), *map(read_fraction, fractions)])
