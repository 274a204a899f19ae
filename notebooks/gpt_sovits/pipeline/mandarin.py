"""Mandarin text to the initials and finals that GPT-SoVITS knows: words by jieba, readings by pypinyin.

Every character has two phonemes, an initial and a final with its tone. A syllable without a consonant has the initial w
or y, or the opening of its vowel (AA, EE, OO). Numbers become words by cn2an; tones change as they do in speech.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import cn2an
from pypinyin import Style, lazy_pinyin
from pypinyin.constants import PINYIN_DICT

with warnings.catch_warnings():  # of its regular expressions, and of pkg_resources where that still exists
    warnings.simplefilter("ignore")
    import jieba
    import jieba.posseg

CONTEXT_CHARACTERS = 8  # before and after, which decide upon a reading
NUMBER = r"\d+(?:\.\d+)?"
DASH = r"\s*[-~–—〜]\s*"
UNITS = {
    **{"km/h": "公里每小时", "m/s": "米每秒", "km": "公里", "cm": "厘米", "mm": "毫米", "m": "米", "kg": "公斤"},
    **{"mg": "毫克", "g": "克", "ml": "毫升", "mL": "毫升", "L": "升", "h": "小时", "min": "分钟", "s": "秒"},
    **{"Hz": "赫兹", "kHz": "千赫", "MHz": "兆赫", "GHz": "吉赫", "W": "瓦", "kW": "千瓦", "V": "伏"},
    **{"°C": "摄氏度", "°F": "华氏度", "°": "度", "m²": "平方米", "m³": "立方米"},
}
UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
MONEY = {"$": "美元", "¥": "元", "€": "欧元", "£": "英镑"}
MEASURES = "个只条本张位次天年家块岁点倍米公斤升瓶杯碗座辆台份双对支头颗片篇首节门名句段层间栋盒箱万千亿美把朵页届"
SPELLERS = "电话|手机|热线|号码|编号|房间|密码|验证码"  # the number after them is said digit by digit
NAMED = {
    **{"+": "加", "=": "等于", "×": "乘", "÷": "除以", "±": "正负", "<": "小于", ">": "大于", "≤": "小于等于"},
    **{
        "≥": "大于等于",
        "≈": "约等于",
        "≠": "不等于",
        "%": "百分号",
        "‰": "千分号",
        "&": "和",
        "@": "艾特",
        "#": "井号",
    },
    **{"$": "美元", "¥": "元", "€": "欧元", "£": "英镑", "°": "度", "α": "阿尔法", "β": "贝塔", "γ": "伽马", "π": "派"},
    **{"μ": "缪", "Ω": "欧姆", "²": "平方", "³": "立方"},
}
MARKS = {"。": ".", "、": ",", ";": ",", ":": ",", "(": ",", ")": ",", "[": ",", "]": ",", "—": "-", "–": "-", "~": "…"}
INTERJECTIONS = {"m": "mu", "n": "en", "ng": "en", "hm": "heng", "hng": "heng", "ê": "ei"}

# single characters whose reading the text around them decides: pattern before, pattern after, reading
CONTEXT = {
    "还": [("", "[书钱债款贷清给]", "huan2"), ("[归偿退返要]", "", "huan2")],
    "长": [("", "[大高得了出]", "zhang3"), ("", "", "chang2")],
    "只": [("[一二两三四五六七八九十百千几多这那每]", "", "zhi1"), ("", "", "zhi3")],
    "行": [("[一二两三四五六七八九十百几每这那第]", "(?![了吗吧不])", "hang2"), ("", "", "xing2")],
    "得": [("[我你他她它们]", "[了到出]", "de2"), ("[我你他她它们咱]", "", "dei3"), ("", "", "de5")],
    "种": [("(?:^|[^一二两三四五六七八九十几多各这那每])", "[了着花树菜地草田]", "zhong4"), ("", "", "zhong3")],
    "为": [("", "[零一二三四五六七八九十两百]", "wei2"), ("[称分名命视变改列选评]", "", "wei2"), ("", "", "wei4")],
    "教": [("", "[我你他她它书课]|学生|英语|数学|语文|中文", "jiao1")],
    "数": [("", "[一了]?[数下]|到", "shu3")],
    "重": [("", "[新复建做写说读]", "chong2")],
    "着": [("", "", "zhe5")],
    "了": [("[吃受走做忘办]不|[吃走做忘办]得", "", "liao3"), ("", "", "le5")],
    "都": [("", "", "dou1")],
    "谁": [("", "", "shei2")],
    "嗯": [("", "", "en1")],
}
# the second syllable of these has lost its tone, which the dictionary of phrases does not know
NEUTRAL = frozenset(
    """
    朋友 东西 明白 知道 喜欢 漂亮 衣服 先生 姑娘 清楚 学生 认识 告诉 时候 事情 关系 消息 休息 地方 眼睛 耳朵 太阳 月亮
    窗户 头发 客气 麻烦 聪明 舒服 热闹 故事 护士 丈夫 妻子 亲戚 生意 行李 力气 脾气 名字 点心 脑袋 打听 打算 打扮 收拾
    商量 招呼 糊涂 老实 精神 干净 凉快 新鲜 痛快 可怜 规矩 主意 毛病 嘴巴 黄瓜 豆腐 葡萄 棉花 粮食 玻璃 师傅 队伍 咳嗽
    学问 福气 运气 晚上 早上 这里 那里 家里 部分 相声 在乎 岁数 喇叭 模糊 大夫 意思 便宜 暖和 骆驼 苍蝇 蘑菇 石榴 工夫
    爸爸 妈妈 哥哥 弟弟 姐姐 妹妹 爷爷 奶奶 叔叔 舅舅 姑姑 宝宝 太太 星星 谢谢
    """.split()
)
FULL_ER = "^儿|[女婴幼孤少胎男妻弃患产侄孙乳生健宠混]儿$"  # here 儿 means a child and keeps its own tone
COMPLEMENT = "[见到懂开着完起出下上来去住动了]"


# --- what is said -------------------------------------------------------------------------------------------------


def number(text: str) -> str:
    """Digits with or without a fraction, in words; spelled with a leading zero or when longer than 12 digits."""
    whole = text.partition(".")[0]
    if len(whole) > 12 or re.match(r"0\d", whole):
        return spelled(text)
    return re.sub("^二(?=[千万亿])", "两", cn2an.an2cn(text, "low"))


def spelled(digits: str) -> str:
    """Every digit by its name."""
    return cn2an.an2cn(digits, "direct")


def _telephone(match: re.Match[str]) -> str:
    return (match["word"] or "") + spelled(re.sub(r"\D", "", match["digits"])).replace("一", "幺")


def _date(match: re.Match[str]) -> str:
    return f"{spelled(match[1])}年{number(match[2].lstrip('0'))}月{number(match[3].lstrip('0'))}日"


def _time(match: re.Match[str]) -> str:
    said = re.sub("^二点", "两点", f"{number(str(int(match[1])))}点")
    for part, unit in ((match[2], "分"), (match[3], "秒")):
        if part and (part != "00" or match[3]):
            said += ("零" if part[0] == "0" and part != "00" else "") + number(str(int(part))) + unit
    return said


def _quantity(amount: str, unit: str) -> str:
    return ("两" if amount == "2" and not unit.endswith("氏度") else number(amount)) + unit


def _share(match: re.Match[str]) -> str:
    """A number of percent or per mille."""
    whole, sign = "百" if match[3] == "%" else "千", "负" if match[1] else ""
    return f"{whole}分之{sign}{number(match[2])}"


def _temperature(match: re.Match[str]) -> str:
    below = "零下" if match[1] else ""
    return below + number(match[2]) + UNITS[match[3]]


def _bare(match: re.Match[str]) -> str:
    """A number, or a version: 1.2.3."""
    return number(match[0]) if match[0].count(".") < 2 else "点".join(map(number, match[0].split(".")))


# the order matters: each rule takes what it knows, and the last read what is left; ASCII, so that \w is no Chinese
RULES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern, re.ASCII), replacement)
    for pattern, replacement in [
        (r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])", lambda m: m[0].replace(",", "")),
        (r"(?P<word>)(?<![\w.])(?P<digits>1[3-9]\d[- ]?\d{4}[- ]?\d{4}|0\d{2,3}-\d{7,8})(?!\w)", _telephone),
        (rf"(?P<word>(?:{SPELLERS})[是为: ]*)(?P<digits>\d{{3,}})", _telephone),
        (r"(?<![\d.])(\d{4})[-/.](0?[1-9]|1[0-2])[-/.](0?[1-9]|[12]\d|3[01])(?![\d.])", _date),
        (rf"(?<!\d)(\d{{4}})年?{DASH}(?=\d{{4}}年)", lambda m: f"{spelled(m[1])}到"),
        (r"(?<!\d)\d{4}(?=年)", lambda m: spelled(m[0])),
        (r"(?<![\d:])([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?(?![\d:])", _time),
        (r"(?<=\d)\s*:\s*(?=\d)", "比"),
        (rf"(?<![\w.-])({NUMBER}%?){DASH}(?={NUMBER}(?![\d-]))", r"\1到"),
        (rf"(-?)(?<![\d.])({NUMBER})([%‰])", _share),
        (rf"(-?)(?<![\d.])({NUMBER})\s?(°[CF])", _temperature),
        (rf"(?:US)?([$¥€£])\s?({NUMBER})([百千万亿]*)", lambda m: _quantity(m[2], m[3] + MONEY[m[1]])),
        (r"(?<![\d/.])(\d{1,4})[/⁄](\d{1,4})(?![\d/.])", lambda m: f"{number(m[2])}分之{number(m[1])}"),
        (rf"(?<![\w.])({NUMBER})\s?({UNIT})(?![A-Za-z\d])", lambda m: _quantity(m[1], UNITS[m[2]])),
        (r"(?<![\w)])[-−](?=\d)", "负"),
        (r"(?<=第)\d+", lambda m: number(m[0]).replace("两", "二")),
        (rf"(?<![\w.])2(?=\s?(?:[{MEASURES}]|小时|分钟|星期))", "两"),
        (r"(?<![A-Za-z\d.])(?<![A-Za-z]-)(?!(?<=[A-Za-z] )\d+ [A-Za-z])\d+(?:\.\d+)*", _bare),
    ]
]


def normalise(text: str) -> str:
    """What is said: characters, Latin words as they are, and the marks , . ! ? - … for pauses.

    Numbers and symbols become characters, but digits after Latin letters stay (H100). It has no other marks.
    """
    text = re.sub(r"\.{2,}", "…", text)
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    text = re.sub(r"[\"“”‘’「」『』《》〈〉【】«»·・•_*^|{}\\]|(?<![A-Za-z])'|'(?![A-Za-z])", "", text)
    parts = re.split("((?<=[A-Za-z])[&+@](?=[A-Za-z]))", text.replace("\n", "."))  # AT&T is English
    said = ("".join(MARKS.get(x) or NAMED.get(x, x) for x in part) for part in parts[::2])
    return "".join(x for pair in zip(said, [*parts[1::2], ""], strict=True) for x in pair)


def readable(character: str) -> bool:
    """Whether it is a Chinese character with a reading."""
    return ord(character) in PINYIN_DICT and character >= "〇"


# --- how it is said -----------------------------------------------------------------------------------------------


class Segmenter(jieba.Tokenizer):
    """jieba without its messages and its cache in the temporary folder, where anybody could have put a file."""

    def initialize(self, dictionary: str | None = None) -> None:
        """Read the dictionary of words, about a second, once."""
        with self.lock:
            if not self.initialized:
                self.FREQ, self.total = self.gen_pfdict(self.get_dict_file())
                self.initialized = True


class Mandarin:
    """Reads Mandarin. Construction reads the dictionary of words, about a second."""

    def __init__(self) -> None:
        self.segmenter = Segmenter()
        self.segmenter.initialize()
        self.tagger = jieba.posseg.POSTokenizer(self.segmenter)

    def phones(self, text: str) -> tuple[list[str], list[int]]:
        """The phonemes of a normalised text without Latin letters, and how many of them each of its characters has."""
        phonemes: list[str] = []
        counts: list[int] = []
        for run in re.findall(r"[,.!?…-]|[^,.!?…-]+", text):
            spoken = [run] if run in ",.!?…-" else [x for pinyin in self.pinyin(run) for x in symbols(pinyin)]
            phonemes += spoken
            counts += [len(spoken) // len(run)] * len(run)
        return phonemes, counts

    def pinyin(self, text: str) -> list[str]:
        """The syllable of every character as it is said, with its tone, v for ü; text: characters and nothing else."""
        tagged = [(word.word, word.flag) for word in self.tagger.cut(text)]
        words: list[list[str]] = []
        place = 0
        for word, tag in tagged:
            end = place + len(word)
            before, after = text[max(0, place - CONTEXT_CHARACTERS) : place], text[end : end + CONTEXT_CHARACTERS]
            words.append(self._read(word, tag, before, after))
            place = end
        syllables = [syllable for word in words for syllable in word]
        starts = [place for word, _ in tagged for place in range(len(word))]
        _yi_and_bu(text, starts, syllables)
        self._third_tones([word for word, _ in tagged], syllables)
        _er(text, [word for word, _ in tagged], syllables)
        return syllables

    def _read(self, word: str, tag: str, before: str, after: str) -> list[str]:
        if len(word) == 1:
            if (word, tag) in (("地", "uv"), ("得", "ud")) and not re.search("[我你他她它们咱]$", before):
                return ["de5"]
            for first, then, reading in CONTEXT.get(word, ()):
                if re.search(f"(?:{first})$", before) and re.match(then, after):
                    return [reading]
        said = lazy_pinyin(word, style=Style.TONE3, neutral_tone_with_five=True)
        if len(said) != len(word):  # characters with two syllables
            said = [lazy_pinyin(x, style=Style.TONE3, neutral_tone_with_five=True)[0] for x in word]
        if re.search("[一二两三四五六七八九十几每这那]行$", word):
            said[-1] = "hang2"
        for place in range(1, len(word), 2):
            pair = word[place - 1 : place + 1]
            if pair in NEUTRAL or re.search("[跑说走做写吃看玩唱睡来过]得", pair):
                said[place] = said[place][:-1] + "5"
        return [re.sub("^([jqxy])u", r"\1v", syllable) for syllable in said]

    def _third_tones(self, words: list[str], syllables: list[str]) -> None:
        """A third tone before another becomes the second: inside words first, by their parts, then from the right."""
        place, borders = 0, []
        for word in words:
            pairs = list(range(len(word) - 1))
            if len(word) == 3 and self.segmenter.FREQ.get(word[1:], 0) > self.segmenter.FREQ.get(word[:2], 0):
                pairs.reverse()  # 小|老虎, but 展览|馆
            elif len(word) > 3:
                pairs = [*pairs[::2], *pairs[1::2]]  # by twos
            for pair in pairs:
                _rise(syllables, place + pair)
            place += len(word)
            borders.append(place - 1)
        for border in reversed(borders[:-1]):
            _rise(syllables, border)


def _rise(syllables: list[str], place: int) -> None:
    if syllables[place][-1] == syllables[place + 1][-1] == "3":
        syllables[place] = syllables[place][:-1] + "2"


def _er(text: str, words: list[str], syllables: list[str]) -> None:
    """儿 that only colours the syllable before it has that one's tone."""
    place = 0
    for word in words:
        place += len(word)
        end = place - 1
        if word[-1] == "儿" and end and not re.search(FULL_ER, word if len(word) > 1 else text[end - 1 : end + 1]):
            syllables[end] = "er" + syllables[end - 1][-1]


def _yi_and_bu(text: str, starts: list[int], syllables: list[str]) -> None:
    """The tones of 一 and 不, by what follows, and 个, which has lost its own. starts: places in words."""
    for i, character in enumerate(text):
        before, after = text[max(0, i - CONTEXT_CHARACTERS) : i], text[i + 1 : i + 1 + CONTEXT_CHARACTERS]
        if character == "个" and re.search("[一二两三四五六七八九十百千万几半这那哪每]$", before):
            syllables[i] = "ge5"
        falling = bool(after) and (syllables[i + 1][-1] == "4" or after[0] == "个")
        doubled = before[-1:] == after[:1] != "" and before[-2:-1] != "一"  # 看一看, but 一个一个
        if character == "一":
            last = starts[i] > 0 and (not after or starts[i + 1] == 0)  # 统一
            if last or _counted(before, after):
                syllables[i] = "yi1"
            else:
                syllables[i] = "yi5" if doubled else "yi2" if falling else "yi4"
        elif character == "不":
            complement = starts[i] == 1 and re.match(COMPLEMENT, after)
            syllables[i] = "bu5" if doubled or complement else "bu2" if falling else "bu4"


def _counted(before: str, after: str) -> bool:
    """Whether 一 between them is a digit, an ordinal, or the last character."""
    if not after or re.search("[第零一二三四五六七八九十百千万亿幺初周期点]$|星期$|礼拜$", before):
        return True
    if before[-1:] == "月" and after[0] == "日":
        return True
    return bool(re.match("[零一二三四五六七八九十幺月号]|点[零一二三四五六七八九]|分之", after))


def symbols(pinyin: str) -> tuple[str, str]:
    """Initial and final of a syllable with its tone: "zhong1" is zh, ong1; "ai4" AA, ai4; "yan2" y, En2."""
    syllable, tone = pinyin[:-1], pinyin[-1]
    syllable = INTERJECTIONS.get(syllable, syllable)
    initial, final = re.fullmatch("(zh|ch|sh|[bpmfdtnlgkhjqxrzcsyw]?)(.+)", syllable).groups()
    if final == "i" and initial in ("z", "c", "s", "zh", "ch", "sh", "r"):
        final = "i0" if len(initial) == 1 and initial != "r" else "ir"
    elif initial in ("j", "q", "x"):
        final = re.sub("^u", "v", final)
    elif initial == "y":
        final = {"an": "En", "e": "E"}.get(final, re.sub("^u", "v", final))
    return initial or final[0].upper() * 2, final + tone
