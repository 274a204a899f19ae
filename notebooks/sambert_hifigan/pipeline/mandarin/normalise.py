"""Text normalisation: written text becomes Chinese characters, Latin words or letters, and marks for pauses.

Numbers, dates, times, money, units, formulas and symbols become Chinese characters. The order of the rules matters:
each replaces what it matches, and the last ones replace the remaining numbers.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Literal

from .numbers import DIGITS, TELEPHONE_DIGITS, cardinal, number, spelled

NUMBER = r"\d+(?:\.\d+)?"
DASH = r"\s*[-~–—〜]{1,2}\s*"
# a number after one of these words is read digit by digit
SPELLED_AFTER = "电话|手机|热线|致电|拨打|号码|邮编|编号|房间|[尾账帐卡学工证]号|密码|验证码|QQ"
COUNTED = "[百千万亿]*(?:[元块个台部多%间平]|美元)"  # after it, they count
YEAR = r"1\d{3}|20\d{2}"

# fmt: off
UNITS = {
    "km/h": "公里每小时", "km/s": "公里每秒", "m/s": "米每秒", "km2": "平方公里", "km²": "平方公里", "cm2": "平方厘米",
    "cm²": "平方厘米", "m2": "平方米", "m²": "平方米", "m3": "立方米", "m³": "立方米", "km": "公里", "cm": "厘米",
    "mm": "毫米", "nm": "纳米", "μm": "微米", "m": "米", "kg": "公斤", "mg": "毫克", "μg": "微克", "g": "克", "t": "吨",
    "mL": "毫升", "ml": "毫升", "L": "升", "h": "小时", "min": "分钟", "ms": "毫秒", "s": "秒", "kHz": "千赫",
    "MHz": "兆赫", "GHz": "吉赫", "Hz": "赫兹", "kWh": "千瓦时", "kW": "千瓦", "MW": "兆瓦", "W": "瓦", "V": "伏",
    "mAh": "毫安时", "kPa": "千帕", "Pa": "帕", "kcal": "千卡", "cal": "卡", "dB": "分贝", "°C": "摄氏度",
    "°F": "华氏度", "°": "度",
}
# fmt: on
UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
# fmt: off
MONEY = {"¥": "元", "US$": "美元", "HK$": "港元", "$": "美元", "€": "欧元", "£": "英镑"}
# before these 2 is 两; before month, day, floor and the like it is 二
MEASURES = (
    "个只条本张位次天年种家块元岁点周倍米公里厘毫克吨斤升瓶杯碗座辆台部件份双对支枝架艘匹头口颗粒片篇首节门套名"
    "句段场层间栋盒箱包袋万千亿美欧英港秒把根朵棵束页封届顿趟遍回番轮道"
)
TWO = f"小时|分钟|星期|平方|立方|[{MEASURES}]"
SYMBOL_NAMES = {  # symbols that are pronounced wherever they stand
    "+": "加", "=": "等于", "×": "乘", "÷": "除以", "±": "正负", "<": "小于", ">": "大于", "≤": "小于等于",
    "≥": "大于等于", "≈": "约等于", "≠": "不等于", "√": "根号", "∞": "无穷大", "%": "百分号", "‰": "千分号",
    "&": "和", "@": "艾特", "#": "井号", "*": "星号", "_": "下划线", "/": "斜杠", "\\": "反斜杠", "|": "竖线",
    "$": "美元", "¥": "元", "€": "欧元", "£": "英镑", "°": "度", "²": "平方", "³": "立方", "−": "减", "⁄": "分之",
    "α": "阿尔法", "β": "贝塔", "γ": "伽马", "δ": "德尔塔", "Δ": "德尔塔", "ε": "艾普西隆", "θ": "西塔",
    "λ": "兰姆达", "μ": "缪", "π": "派", "ρ": "柔", "σ": "西格马", "Σ": "西格马", "φ": "斐", "ω": "欧米伽",
    "Ω": "欧米伽", "→": "到", "○": "零", "〇": "零",
}
# fmt: on
MARKS = (
    dict.fromkeys(",;:、()[]{}【】〔〕", ",")  # read as a comma
    | dict.fromkeys(".。", ".")
    | {"–": "—"}
    | dict.fromkeys("\"'`“”‘’„‟《》〈〉«»「」『』〝〞·•・‧~〜", " ")  # quotes, the dot in foreign names
)


def _year(match: re.Match[str]) -> str:
    return re.sub(r"\d+", lambda year: spelled(year[0]), re.sub(DASH, "到", match[0]))


def _date(match: re.Match[str]) -> str:
    year, _, month, day = match.groups()
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return match[0]
    return f"{spelled(year)}年{cardinal(month.lstrip('0'))}月{cardinal(day.lstrip('0'))}日"


def _time(match: re.Match[str]) -> str:
    hour, *rest = (part for part in match.groups() if part)
    text = re.sub("^二点", "两点", cardinal(hour.lstrip("0") or "0") + "点")
    if any(int(part) for part in rest):
        for part, unit in zip(rest, "分秒", strict=False):
            text += ("零" if part[0] == "0" and part != "00" else "") + cardinal(part.lstrip("0") or "0") + unit
    return text


def _telephone(match: re.Match[str]) -> str:
    digits = re.sub(r"^(1\d\d)(\d{4})(\d{4})$", r"\1 \2 \3", match["digits"])  # a mobile number in threes and fours
    plus = "加" if digits[0] == "+" else ""
    return match[0].replace(match["digits"], plus + spelled(digits.lstrip("+"), TELEPHONE_DIGITS))


def _quantity(amount: str, unit: str) -> str:
    return ("两" if amount == "2" and unit not in ("摄氏度", "华氏度") else number(amount)) + unit


def _percentage(match: re.Match[str]) -> str:
    denominator = "千" if match[3] == "‰" else "百"
    sign = "负" if match[1] else ""
    return f"{denominator}分之{sign}{number(match[2])}"


def _temperature(match: re.Match[str]) -> str:
    return ("零下" if match[1] else "") + _quantity(match[2], UNITS[match[3]])


def _after_letters(match: re.Match[str]) -> str:
    return spelled(match[0], TELEPHONE_DIGITS) if len(match[0]) > 2 else cardinal(match[0])


Rules = list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]


def _compiled(rules: list) -> Rules:
    """With re.ASCII, \\w matches no Chinese character."""
    return [(re.compile(pattern, re.ASCII), replacement) for pattern, replacement in rules]


RULES = _compiled(
    [
        # telephone numbers, and numbers after a word such as 密码
        (r"(?<![\w.])(?P<digits>(?:\+?86[- ]?)?1[3-9]\d[- ]?\d{4}[- ]?\d{4})(?!\w)", _telephone),
        (r"(?<![\w.])(?P<digits>0\d{2,3}[- ]\d{7,8}|[48]00[- ]\d{3,4}[- ]?\d{3,4})(?!\w)", _telephone),
        (
            rf"(?:{SPELLED_AFTER})(?:号码?|[前后末][两二三四五六七八]位|[是为: ])*(?P<digits>\d{{3,}})"
            rf"(?!\d|\.\d|{COUNTED})",
            _telephone,
        ),
        (r"[打拨](?P<digits>1[12]\d|1[02]\d{3})(?![\d.元个分])", _telephone),
        # dates, years, times
        (r"(?<![\d.])(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?![\d.])", _date),
        (rf"(?<![\d.])(?:{YEAR})年?{DASH}(?:{YEAR})(?!\d)年?", _year),
        (r"(?<![\d.])(?:1[1-9]\d\d|20\d\d|10[1-9]\d|10\d[1-9])(?=年)", _year),
        (r"(?<![\d.])(?:0\d|[6-9][1-9])(?=年(?![代来前后内间多]))", _year),
        (r"(?<![\d:])(?<!比分)(?<!比分[是为])(?<!以)([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?(?![\d:])", _time),
        (r"(?<=\d)\s*:\s*(?=\d)", "比"),
        # ranges except in sums, then quantities with a unit
        (r"(?<=\d)\s*[-−]\s*(?=\d+\s*=)", "减"),
        (rf"(?<![\w.-])({NUMBER}){DASH}({NUMBER})%", r"\1%到\2%"),
        (rf"(?<![\w.-])({NUMBER}(?:%|{UNIT})?){DASH}(?={NUMBER}(?![\d-]))", r"\1到"),
        (rf"(?<=[点分秒日月年]){DASH}(?=[\d{DIGITS}两十])", "到"),
        (rf"([-−]?)({NUMBER})([%‰])", _percentage),
        (rf"([-−]?)(?<![\d.])({NUMBER})\s?(°C|°F)", _temperature),
        (rf"(US\$|HK\$|[$¥€£])\s?({NUMBER})([百千万亿]*)", lambda m: _quantity(m[2], m[3] + MONEY[m[1]])),
        (r"(?<=\d) (?=\d+⁄)", "又"),
        (r"(?<![\d/.])(\d+)[/⁄](\d+)(?![\d/.])", lambda m: f"{cardinal(m[2])}分之{cardinal(m[1])}"),
        (
            rf"(?<![\w.])({NUMBER})([百千万亿]*)\s?({UNIT})(?![A-Za-z\d])",
            lambda m: _quantity(m[1], m[2] + UNITS[m[3]]),
        ),
        # formulas
        (r"(?<=\d)\s*[*x]\s*(?=\d)", "乘"),
        (r"(?<=\d)²", "的平方"),
        (r"(?<=\d)³", "的立方"),
        (r"(?<![\w)])[-−](?=\d)", "负"),
        # remaining numbers
        (r"(?<=第)\d+", lambda m: re.sub("^两", "二", cardinal(m[0]))),
        (rf"(?<![\w.])2(?=\s?(?:{TWO}))", "两"),
        (r"(?<![A-Za-z\d.-])(?!\d+0000(?!\d))\d{9,}(?![\d.万亿元人个])", lambda m: spelled(m[0], TELEPHONE_DIGITS)),
    ]
)
LATIN_RULES = {
    "words": _compiled(  # a number after a Latin word belongs to it: H100, GPT-4, iPhone 15 Pro
        [
            (
                r"(?<![A-Za-z\d.])(?<![A-Za-z]-)(?!(?<=[A-Za-z] )\d+ [A-Za-z])\d+(?:\.\d+)*",
                lambda m: number(m[0]),
            ),
        ]
    ),
    "letters": _compiled(
        [
            (r"(?:(?<=[A-Za-z])|(?<=[A-Za-z]-))\d+(?!\d|\.\d)", _after_letters),
            (r"\d+(?:\.\d+)*", lambda m: number(m[0])),
            (r"(?<=\w)\.(?=\w)", "点"),
        ]
    ),
}
_WORD_SIGN = re.compile(r"(?<=[A-Za-z])[&+@'](?=[A-Za-z])")  # a sign inside a Latin word: AT&T, don't


def normalise(text: str, latin: Literal["words", "letters"] = "words") -> str:
    """What is said: Chinese characters, Latin words or letters, spaces between words, and marks for pauses.

    Marks are , . ! ? … — and the hyphen. latin: "words" keeps Latin words with the digits and signs in them (GPT-4,
    AT&T); with "letters" they are capital letters to be spelled, and digits and signs among them become characters. Any
    other character without a reading stays as it is.
    """
    text = re.sub(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])", lambda m: m[0].replace(",", ""), text)
    text = "".join(map(_compatible, unicodedata.normalize("NFC", text)))
    text = re.sub(r"[^\S\n]+", " ", text).replace("\n", ".")
    text = re.sub(r"\.{2,}", "…", text)
    for pattern, replacement in (*RULES, *LATIN_RULES[latin]):
        text = pattern.sub(replacement, text)
    if latin == "letters":
        return "".join(map(_pronounced, text)).upper()
    signs = [*_WORD_SIGN.findall(text), ""]
    parts = ("".join(map(_pronounced, part)) for part in _WORD_SIGN.split(text))
    return "".join(x for pair in zip(parts, signs, strict=True) for x in pair)


def _compatible(character: str) -> str:
    """The usual form of a full-width letter, ㎡ or a circled number; "" for a character without width."""
    if unicodedata.category(character) == "Cf" or "\ufe00" <= character <= "\ufe0f":
        return ""  # zero width
    if character in "²³…":
        return character
    usual = unicodedata.normalize("NFKC", character)
    if unicodedata.category(character) in ("No", "Nl") and character != "〇":
        value = unicodedata.numeric(character, 0.5)
        return f" {int(value)} " if value == int(value) else f" {usual}"  # apart from digits beside it
    return usual


def _pronounced(character: str) -> str:
    """One character after the rules: itself, its name, a mark or a word boundary."""
    if character in SYMBOL_NAMES:
        return SYMBOL_NAMES[character]
    if character in MARKS:
        return MARKS[character]
    base, *marks = unicodedata.normalize("NFD", character)
    if base.isascii() and base.isalpha() and all(map(unicodedata.combining, marks)):
        return base  # café: the mark of the letter is not spelled
    return character
