"""What is said, by which phones, in which language, and where a text is cut."""

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypinyin import Style, lazy_pinyin
from pypinyin.constants import PINYIN_DICT

from notebooks.gpt_sovits.pipeline import english, mandarin_phonemes
from notebooks.gpt_sovits.pipeline.constants import VERSIONS
from notebooks.gpt_sovits.pipeline.frontend import HOW, LANGUAGES, MAX_LETTERS, Frontend, split
from notebooks.gpt_sovits.pipeline.mandarin import readable
from notebooks.gpt_sovits.pipeline.mandarin.syllables import syllables_of
from tests.references import files, section

ROOT = Path(__file__).parents[2]
FILES = [path for path in files("gpt_sovits") if section(path, "symbols")]
FRONTENDS = {version: Frontend(version) for version in VERSIONS}


def cases(table: str):
    """Runs a test once for every line `text = expected` of a table."""
    found = [line.strip().split(" = ") for line in table.splitlines() if line.strip()]
    return pytest.mark.parametrize(("text", "expected"), found, ids=[f"{i}" for i in range(len(found))])


def said(text: str, language: str = "auto", version: str = "v2") -> str:
    """The symbols of a text; a bar between pieces, each with its language."""
    frontend = FRONTENDS[version]
    pieces = frontend.pieces(text, language)
    return " | ".join(" ".join([p.language, *(frontend.symbols[i] for i in p.phones)]) for p in pieces)


def written(text: str, language: str = "auto") -> str:
    """The normalised text of all pieces."""
    return "|".join(piece.text for piece in FRONTENDS["v2"].pieces(text, language))


@pytest.fixture(scope="module")
def reader() -> mandarin_phonemes.Mandarin:
    return mandarin_phonemes.Mandarin()


@pytest.fixture(scope="module")
def english_reader() -> english.English:
    return english.English()


# Tables


def test_there_is_reference_data():
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_symbols_are_those_of_the_authors(path):
    stored = section(path, "symbols")
    assert stored.keys() <= VERSIONS.keys()
    for version, symbols in stored.items():
        assert FRONTENDS[version].symbols == symbols.tolist()


def test_v2pro_has_the_symbols_of_v2():
    assert FRONTENDS["v2Pro"].symbols == FRONTENDS["v2"].symbols and len(set(FRONTENDS["v2"].symbols)) == 732


# English


@cases(
    """
    Hello, world! = en HH AH0 L OW1 , W ER1 L D !
    A cat and a dog. = en AH0 K AE1 T AH0 N D AH0 D AO1 G .
    Plan A works. = en P L AE1 N EY1 W ER1 K S .
    We record a record. = en W IY1 R AH0 K AO1 R D AH0 R EH1 K ER0 D .
    I read it, I have read it. = en AY1 R IY1 D IH1 T , AY1 HH AE1 V R EH1 D IH1 T .
    They use it, a use of it. = en DH EY1 Y UW1 Z IH1 T , AH0 Y UW1 S AH1 V IH1 T .
    Rock 'n' roll, don't! = en R AA1 K EH1 N R OW1 L , D OW1 N T !
    """
)
def test_english_words(text, expected):
    assert said(text, "en") == expected


@cases(
    """
    NASA = N AE1 S AH0
    AI = EY1 AY1
    GPUs = JH IY1 P IY1 Y UW1 Z
    UK's = Y UW1 K EY1 Z
    llama's = L AA1 M AH0 Z
    speech's = S P IY1 CH AH0 Z
    chatbot = CH AE1 T B AA2 T
    OpenVINO = OW1 P AH0 N V IY1 N OW0
    npz = EH1 N P IY1 Z IY1
    tokenizer = T OW1 K AH0 N AY2 Z ER0
    moonlamp = M UW1 N L AE1 M P
    """
)
def test_words_that_no_dictionary_has(english_reader, text, expected):
    assert " ".join(english_reader.word(text)) == expected


def test_the_network_of_g2p_en_speaks_as_it_was_trained(english_reader):
    """Most of the dictionary's words are guessed as the dictionary says them."""
    known = english_reader.words
    words = [word for word in sorted(known) if word.isalpha() and len(word) > 3][::1500]
    right = [list(english_reader.guess(word)) in known[word] for word in words]
    assert len(words) > 60 and np.mean(right) > 0.5


@cases(
    """
    It cost $250.50, £1, $0.05 and €3 million. = It cost two hundred fifty dollars and fifty cents, one pound, five cents and three million euros.
    25% of 1,234,567 = twenty five percent of one million two hundred thirty four thousand five hundred sixty seven.
    At 5:30 p.m., 7 am, 10:05 or 9:00. = At five thirty P M, seven A M, ten oh five or nine o'clock.
    May 3, 2024, 2005, 1905, 1900 and 2000. = May third, twenty twenty four, two thousand five, nineteen oh five, nineteen hundred and two thousand.
    2024-05-03 = May third, twenty twenty four.
    The 1990s and the '80s = The nineteen nineties and the eighties.
    1st, 2nd, 3rd, 12th, 20th, 101st = first, second, third, twelfth, twentieth, one hundred first.
    Dr. Smith vs. Mrs. Jones, etc. = doctor Smith versus missus Jones, et cetera.
    No. 5 is -3.14, 1/2, 3/4 and 007. = number five is minus three point one four, one half, three quarters and zero zero seven.
    5-10 km at 1 kg & 5 m/s = five to ten kilometers at one kilogram and five meters per second.
    Call 555-1234! = Call five five five, one two three four!
    GPT-4 on an H100, a 5-year-old. = GPT four on an H one hundred, a five year old.
    me.you@example.com, www.python.org, 24/7 = me dot you at example dot com, W W W dot python dot org, twenty four seven.
    the U.S. economy = the U S economy.
    Café (Zürich)... "yes"?! = Cafe, Zurich… yes?
    12345678901234567890 = one two three four five six seven eight nine zero one two three four five six seven eight nine zero.
    """  # noqa: E501
)
def test_english_as_it_is_said(text, expected):
    assert written(text, "en") == expected


# Mandarin


@cases(
    """
    你好,世界! = zh n i2 h ao3 , sh ir4 j ie4 !
    云彩和鱼,月亮圆 = zh y vn2 c ai5 h e2 y v2 , y ve4 l iang5 y van2 .
    安欧额二 = zh AA an1 OO ou1 EE e2 EE er4 .
    烟叶,英文,我 = zh y En1 y E4 , y ing1 w en2 , w o3 .
    诗思日女绿卷 = zh sh ir1 s i01 r ir4 n v3 l v4 j van3 .
    """
)
def test_mandarin_has_initials_and_finals(text, expected):
    assert said(text, "zh") == expected


def test_every_reading_of_every_character_is_in_the_table():
    known = set(FRONTENDS["v1"].symbols)
    for code in PINYIN_DICT:
        if readable(chr(code)):
            pinyin = lazy_pinyin(chr(code), style=Style.TONE3, neutral_tone_with_five=True)
            for syllable in syllables_of(chr(code), pinyin):
                assert known.issuperset(mandarin_phonemes.symbols(f"{syllable.pinyin}{syllable.tone}")), chr(code)


@cases(
    """
    银行行走 = yin2 hang2 xing2 zou3
    睡得好 = shui4 de5 hao3
    五只 = wu3 zhi1
    展览馆 = zhan2 lan2 guan3
    一个人 = yi2 ge5 ren2
    看不见 = kan4 bu5 jian4
    花儿 = hua1 er1
    一点儿 = yi4 dian3 er3
    馅儿饼 = xian4 er4 bing3
    女儿 = nv3 er2
    """
)
def test_every_character_has_a_syllable(reader, text, expected):
    """The tests of `utils.speech.mandarin` say more of readings and tones."""
    assert " ".join(reader.pinyin(text)) == expected


@cases(
    """
    2024年5月3日,2024-05-03 = 二零二四年五月三日,二零二四年五月三日.
    现在15:30,2:05 = 现在十五点三十分,两点零五分.
    涨了3.5%,-3°C = 涨了百分之三点五,零下三摄氏度.
    ¥12.50,$2亿；1,234元 = 十二点五零元,两亿美元,一千二百三十四元.
    2个人,第2名,2000米 = 两个人,第二名,两千米.
    1/2,比分3:2,5~10天 = 二分之一,比分三比二,五到十天.
    电话13812345678 = 电话幺三八幺二三四五六七八.
    跑100m用12.5s,8m/s = 跑一百米用十二点五秒,八米每秒.
    版本1.2.3,007 = 版本一点二点三,零零七.
    《红楼梦》——“好”…… = 红楼梦-好…
    AT&T和3+4 = AT and T|和三加四.
    全角：１２３！ = 全角,一百二十三!
    """
)
def test_mandarin_as_it_is_said(text, expected):
    assert written(text, "zh") == expected


def test_every_character_has_its_phones():
    for piece in FRONTENDS["v2"].pieces("我用GPT-4,写了3个程序。花儿开了!", "zh"):
        if piece.language == "zh":
            marks = [x in ",.!" for x in piece.text]
            assert piece.word2ph.tolist() == [1 if mark else 2 for mark in marks]
            assert piece.word2ph.sum() == len(piece.phones)
        else:
            assert piece.word2ph is None


# Japanese


def test_japanese_with_pitch():
    assert said("こんにちは、世界。", "ja") == "ja k o [ N n i ch i w a , s e ] k a i ."
    assert said("橋と箸です", "ja") == "ja h a [ sh i ] t o UNK h a ] sh i d e s u ."


def test_japanese_without_pitch_in_v1():
    assert said("橋と箸です", "ja", "v1") == "ja h a sh i t o h a sh i d e s U ."


@cases(
    """
    10:30に100円 = 10時30分に100円.
    $5の50% = 5ドルの50パーセント.
    「1,000」…2024-05-03 = 1000…2024年05月03日.
    Tシャツ = Tシャツ.
    """
)
def test_japanese_as_it_is_said(text, expected):
    assert written(text, "ja") == expected


# Mixtures


@cases(
    """
    我用GPT-4写。It works! 对吧? = zh w o3 y ong4 | en JH IY1 P IY1 T IY1 F AO1 R | zh x ie3 . | en IH1 T W ER1 K S ! | zh d ui4 b a5 ?
    我说Hello，他说こんにちは。 = zh w o3 sh uo1 | en HH AH0 L OW1 , | zh t a1 sh uo1 | ja k o [ N n i ch i w a .
    iPhone 15 Pro很贵 = en AY1 F OW2 N F IH0 F T IY1 N P R OW1 | zh h en3 g ui4 .
    Hello world 好 = en HH AH0 L OW1 W ER1 L D | zh h ao3 .
    東京です。東京 = ja t o [ o ky o o d e ] s u . | zh d ong1 j ing1 .
    """  # noqa: E501
)
def test_languages_are_told_by_their_script(text, expected):
    assert said(text, "auto") == expected


def test_a_language_that_is_given_is_not_told():
    assert said("東京", "ja") == "ja t o [ o ky o o ." and said("東京", "zh") == "zh . d ong1 j ing1 ."


def test_a_short_text_gets_a_mark_before_it_in_v2():
    assert (
        said("Hi", "en", "v2") == said("Hi", "en", "v2Pro") == "en . HH AY1 ." and said("Hi", "en", "v1")[:5] == "en HH"
    )
    (piece,) = FRONTENDS["v2"].pieces("好", "zh")
    assert piece.text == ".好." and piece.word2ph.tolist() == [1, 2, 1]
    assert said("Hello you", "en") == "en HH AH0 L OW1 Y UW1 ."


def test_emoji_are_left_out_and_marks_do_not_repeat():
    assert (
        written("...你好😀!!! 。", "zh") == ".你好!"
        and written("Wow 😀, ?! really -- yes", "en") == "Wow? really- yes."
    )


SCRIPTS = st.sampled_from(
    "abzAIT '’-.,!?…:;()%$€°@&/0123459½ é\n你好不一个儿长行得月日，。《》漢々こんはアーッっョゔ😀"
) | st.characters(max_codepoint=0x9FFF, exclude_categories=("Cs",))


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.text(SCRIPTS, max_size=30), st.sampled_from(LANGUAGES), st.sampled_from(["v1", "v2"]))
def test_whatever_is_written_is_said_or_refused(text, language, version):
    frontend = FRONTENDS[version]
    try:
        pieces = frontend.pieces(text, language)
    except ValueError as error:
        assert re.match("The text has '|There is nothing to say in ", str(error))
        return
    assert pieces
    for piece in pieces:
        assert piece.phones.dtype == np.int64 and 0 <= piece.phones.min() and piece.phones.max() < VERSIONS[version]
        if piece.language == "zh":
            assert len(piece.word2ph) == len(piece.text) and piece.word2ph.sum() == len(piece.phones)


# Bad input


@pytest.mark.parametrize(
    ("text", "language", "message"),
    [
        ("", "en", "There is nothing to say in '': give a text with words."),
        ("?! 😀", "zh", "There is nothing to say in '?! 😀'"),
        ("ー", "ja", "There is nothing to say in 'ー'"),
        ("Hello", "de", "Language 'de' is not known. Choose one of en, zh, ja, auto."),
        ("Hi мир", "auto", r"The text has 'м' \(CYRILLIC SMALL LETTER EM\), .* Write it in Latin letters"),
        ("你好", "en", r"The text has '你' .* with language 'en'. Take the language 'auto'."),
        ("你好こ", "zh", r"The text has 'こ' \(HIRAGANA LETTER KO\), .* Take the language 'auto'."),
    ],
)
def test_what_cannot_be_said_is_named(text, language, message):
    with pytest.raises(ValueError, match="^" + message.replace("?!", r"\?!")):
        FRONTENDS["v2"].pieces(text, language)


def test_unknown_versions_and_ways_to_cut_are_named():
    with pytest.raises(ValueError, match="Version 'v3' is not known. Choose one of v1, v2, v2Pro."):
        Frontend("v3")
    with pytest.raises(ValueError, match="'words' is no way to cut a text. Choose one of sentences, none"):
        split("Hello.", "words")


# Cutting

TEXT = 'Dr. Smith came at 5 p.m. today. "Hi!" It was 3.14, then? 你好，世界。再见！ ...'


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("none", [TEXT]),
        (
            "sentences",
            ["Dr. Smith came at 5 p.m. today.", '"Hi!"', "It was 3.14, then?", "你好，世界。", "再见！"],
        ),
        ("four", ['Dr. Smith came at 5 p.m. today. "Hi!" It was 3.14, then?', "你好，世界。再见！ ..."]),
        ("fifty", ['Dr. Smith came at 5 p.m. today. "Hi!" It was 3.14, then? 你好，世界。再见！ ...']),
        ("chinese_stops", [TEXT[: TEXT.index("再")], "再见！ ..."]),
        ("english_stops", ["Dr. Smith came at 5 p.m. today.", '"Hi!" It was 3.14, then? 你好，世界。再见！ ...']),
        (
            "punctuation",
            ["Dr. Smith came at 5 p.m. today.", '"Hi!"', "It was 3.14,", "then?", "你好，", "世界。", "再见！"],
        ),
    ],
)
def test_where_a_text_is_cut(how, expected):
    assert split(TEXT, how) == expected


def test_fifty_characters_come_together():
    pieces = split("一二三四五六七八九，" * 13, "fifty")
    assert [len(piece) for piece in pieces] == [60, 70]


def test_what_is_too_long_is_cut_after_marks_then_words_then_anywhere():
    assert [len(piece) for piece in split("字" * 250, "none")] == [100, 100, 50]
    assert [len(piece) for piece in split("word " * 100, "none")] == [299, 199]
    assert [len(piece) for piece in split("word, " * 30 + "word " * 50, "none")] == [179, 249]
    assert split("", "none") == split("?!", "sentences") == []


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.text(SCRIPTS, max_size=500), st.sampled_from(list(HOW)))
def test_nothing_that_is_said_is_lost_and_nothing_is_too_long(text, how):
    pieces = split(text, how)
    assert "".join(filter(str.isalnum, "".join(pieces))) == "".join(filter(str.isalnum, text))
    assert all(len(piece) <= MAX_LETTERS and any(map(str.isalnum, piece)) for piece in pieces)


# Use elsewhere


def test_no_call_goes_to_the_network(monkeypatch):
    def refuse(*args):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert len(Frontend().pieces("Frobnicator 说 こんにちは", "auto")) == 3


def test_the_files_run_alone_in_another_folder(tmp_path):
    folder = tmp_path / "voice"
    folder.mkdir()
    pipeline = ROOT / "notebooks" / "gpt_sovits" / "pipeline"
    for name in ("frontend", "text", "english", "mandarin_phonemes", "japanese", "constants"):
        shutil.copy(pipeline / f"{name}.py", folder)
    shutil.copy(pipeline / "symbols.json", folder)
    shutil.copytree(pipeline / "mandarin", folder / "mandarin", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import sys, json; from voice.frontend import Frontend; text = 'Hello 你好 こんにちは'\n"
    code += "print(json.dumps([p.phones.tolist() for p in Frontend().pieces(text, 'auto')]), 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, encoding="utf-8"
    )
    ids, torch = done.stdout.rsplit(maxsplit=1)
    pieces = FRONTENDS["v2"].pieces("Hello 你好 こんにちは", "auto")
    assert json.loads(ids) == [piece.phones.tolist() for piece in pieces] and torch == "False"


def test_ordinals_and_years():
    assert [english.ordinal(x) for x in (1, 8, 12, 30, 43)] == [
        "first",
        "eighth",
        "twelfth",
        "thirtieth",
        "forty third",
    ]
    assert [english.year(x) for x in (1066, 1800, 2000, 2010)] == [
        "ten sixty six",
        "eighteen hundred",
        "two thousand",
        "twenty ten",
    ]
    assert (
        english.cardinal(10**15 - 1).startswith("nine hundred ninety nine trillion") and english.cardinal(0) == "zero"
    )
