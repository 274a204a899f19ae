"""What is said, how it is read, in which tones, and how the acoustic model is told."""

import re
import tracemalloc
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from pypinyin.constants import PHRASES_DICT, PINYIN_DICT

from notebooks.sambert_hifigan.pipeline.frontend import (
    MAX_CHARACTERS,
    SPECIAL,
    Frontend,
    Symbol,
    Unspeakable,
    initial_and_final,
    normalise,
    standard_tables,
)
from notebooks.sambert_hifigan.pipeline.mandarin import lexicon
from notebooks.sambert_hifigan.pipeline.mandarin.readings import by_dictionary
from notebooks.sambert_hifigan.pipeline.mandarin.syllables import syllables_of
from tests.references import files, section

ROOT = Path(__file__).parents[2]
FILES = [path for path in files("kantts") if "frontend/symbols" in np.load(path)]
SECTION = {"emotion": "emo_category", "speaker": "speaker_category"}  # the authors' names of streams


def cases(table: str):
    """Runs a test once for every `text = expected` of a table; "; " and ends of lines part them."""
    found = [case.strip().split(" = ") for case in re.split("; |\n", table) if case.strip()]
    return pytest.mark.parametrize(("text", "expected"), found, ids=[f"{i}" for i in range(len(found))])


@pytest.fixture(scope="module")
def frontend() -> Frontend:
    return Frontend(standard_tables(["F7", "M1"]))


def said(frontend: Frontend, text: str) -> str:
    """The pinyin of a text: words apart, a bar between feet, the break after each phrase but the last."""
    phrases = [
        " | ".join(" ".join("".join(f"{s.pinyin}{s.tone}" for s in word) for word in foot) for foot in feet)
        + f" {pause}"
        for feet, pause in frontend.read(text)
    ]
    return " ".join(phrases).removesuffix(" #4")


def syllables(frontend: Frontend, text: str) -> str:
    """The pinyin of a text, syllable by syllable."""
    return " ".join(
        f"{s.pinyin}{s.tone}" for feet, _ in frontend.read(text) for foot in feet for word in foot for s in word
    )


# Reference data


def test_there_is_reference_data():
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_symbols_become_the_ids_of_the_authors(path):
    stored = section(path, "frontend")
    known = {"symbols", *(f"{kind}_{SECTION.get(s, s)}" for kind in ("ids", "table") for s in Symbol._fields)}
    assert stored.keys() <= known
    text = str(stored["symbols"]).split("\t")[-1]
    symbols = [Symbol.parse(one) for one in text.split()]
    assert " ".join(map(str, symbols)) == text
    speakers = list(dict.fromkeys(symbol.speaker for symbol in symbols))
    tables = standard_tables(speakers, mask="@[MASK]" in stored["table_sy"])
    for stream in Symbol._fields:
        name = SECTION.get(stream, stream)
        if f"table_{name}" in stored:
            assert tables[stream] == stored[f"table_{name}"].tolist()
        *ids, end = stored[f"ids_{name}"].tolist()
        assert Frontend.ids(_only(tables), symbols)[stream] == ids
        assert tables[stream][end] == "~"


def _only(tables: dict[str, list[str]]) -> Frontend:
    """A front end that knows tables and no words."""
    frontend = Frontend.__new__(Frontend)
    frontend.tables = {stream: {entry: i for i, entry in enumerate(entries)} for stream, entries in tables.items()}
    return frontend


def test_text_becomes_the_symbols_of_the_authors(frontend):
    path = ROOT / "tests" / "oracles" / "kantts" / "io.npz"
    assert " ".join(map(str, frontend.symbols("你好，世界。"))) == str(np.load(path)["frontend/symbols"])


# Symbols


def test_places_in_the_syllable_and_in_the_word(frontend):
    symbols = frontend.symbols("我爱展览馆", "M1", "happy")
    assert [str(symbol) for symbol in symbols[:2]] == [
        "{w_c$tone3$s_begin$word_begin$emotion_happy$M1}",
        "{o_c$tone3$s_end$word_end$emotion_happy$M1}",
    ]
    *museum, end = symbols[-7:]
    assert [symbol.word_segment for symbol in museum] == ["word_begin", *["word_middle"] * 4, "word_end"]
    assert [symbol.syllable_flag for symbol in museum] == ["s_begin", "s_end"] * 3
    assert str(end) == "{#4$tone_none$s_none$word_none$emotion_none$M1}"


def test_breaks(frontend):
    symbols = frontend.symbols("今天天气好，我们去公园。你呢？")
    assert [symbol.sy for symbol in symbols if symbol.sy[0] == "#"] == ["#1", "#3", "#1", "#4", "#4"]
    assert all(
        symbol[1:5] == ("tone_none", "s_none", "word_none", "emotion_none") for symbol in symbols if symbol.sy[0] == "#"
    )


def test_the_tone_is_on_initial_and_final(frontend):
    assert [symbol.tone for symbol in frontend.symbols("妈妈骂马吗")[:-1] if symbol.sy[0] != "#"] == [
        f"tone{tone}" for tone in (1, 1, 5, 5, 4, 4, 3, 3, 5, 5)
    ]


@cases(
    """
    xi = xx_c i_c; zi = z_c ii_c; shi = sh_c ih_c; ri = r_c ih_c; nv = n_c v_c; lve = l_c ve_c; jvan = j_c van_c
    yvn = y_c vn_c; gui = g_c uei_c; liu = l_c iou_c; dun = d_c uen_c; a = ga a_c; e = ge e_c; o = go o_c
    er = ge er_c; yi = y_c i_c; wu = w_c u_c; yong = y_c ong_c; you = y_c ou_c; huar = h_c uar_c; shir = sh_c ihr_c
    ger = g_c er_c; zir = z_c iir_c; huir = h_c ueir_c; yvanr = y_c vanr_c
    """
)
def test_initials_and_finals(text, expected):
    assert " ".join(initial_and_final(text)) == expected


def test_every_reading_of_the_dictionaries_has_symbols(frontend):
    known = [*map(chr, PINYIN_DICT), *PHRASES_DICT, *lexicon.READINGS, *lexicon.SINGLE, *lexicon.LETTERS]
    every = {(s.pinyin, s.tone) for text in known for s in by_dictionary(text, "", "")}
    inside = {reading for rules in lexicon.CONTEXT.values() for *_, reading in rules}
    every |= {
        (s.pinyin, s.tone) for reading in inside for s in syllables_of("字字"[: len(reading.split())], reading.split())
    }
    assert len({pinyin for pinyin, _ in every}) > 400
    assert [
        pinyin
        for pinyin, _ in every
        if not {f"@{phoneme}" for phoneme in initial_and_final(pinyin)} <= frontend.tables["sy"].keys()
    ] == []
    assert {tone for _, tone in every} == {1, 2, 3, 4, 5}


def test_a_symbol_that_the_checkpoint_does_not_have(frontend):
    with pytest.raises(ValueError, match="speaker 'Nobody' is not one that this checkpoint has. Choose one of F7, M1."):
        frontend.ids(frontend.symbols("你好", "Nobody"))
    with pytest.raises(ValueError, match="emotion 'emotion_bored' is not one .* none, neutral, angry"):
        frontend.ids(frontend.symbols("你好", emotion="bored"))
    with pytest.raises(ValueError, match="speaker '~'"):
        frontend.ids(frontend.symbols("你好", "~"))
    with pytest.raises(ValueError, match="is no symbol: it has the form {sy[$]tone"):
        Symbol.parse("{b_c$tone1}")
    with pytest.raises(ValueError, match="The tables lack tone"):
        Frontend({key: value for key, value in standard_tables(["F7"]).items() if key != "tone"})


def test_early_checkpoints_have_no_mask():
    early, late = standard_tables(["a"], mask=False), standard_tables(["a"])
    assert all(late[stream] == [*early[stream], SPECIAL[-1]] for stream in Symbol._fields)
    assert [len(late[stream]) for stream in Symbol._fields] == [147, 10, 8, 8, 36, 4]


# How it is read (the tests of `utils.speech.mandarin` say more)


@cases(
    """
    银行行长 = yin2 hang2 hang2 zhang3; 我好，你好 = wo2 hao3 ni2 hao3; 一个人不去 = yi2 ge5 ren2 bu2 qv4
    小孩儿的女儿 = xiao3 hair2 de5 nv3 er2; 睡得好 = shui4 de5 hao3
    """
)
def test_readings_and_tones(frontend, text, expected):
    assert syllables(frontend, text) == expected


def test_latin_letters_are_spelled(frontend):
    assert said(frontend, "T恤") == "ti4 xv4"
    assert syllables(frontend, "café GPS") == "xi1 ei1 ai2 fu5 yi4 ji4 pi4 ai2 si5"


def test_words_and_feet(frontend):
    assert said(frontend, "我在北京大学读书。") == "wo3 zai4 | bei3jing1da4xve2 | du2shu1"
    assert said(frontend, "一个人一起去") == "yi2ge5 ren2 | yi4qi3 qv4"
    assert said(frontend, "桌子上的书，很好") == "zhuo1zi5 shang4 de5 | shu1 #3 hen2 hao3"


# What is said


@cases(
    """
    第1、第2 = 第一,第二; 13812345678 = 幺三八 幺二三四 五六七八; A380 = A三八零; ①② = 一 二; Ⅳ = 四
    “好”（是）……嗯——对！ = 好,是,嗯,对; 列奥纳多·达芬奇 = 列奥纳多 达芬奇; ＡＢＣ１２ = ABC十二; 好。不好。 = 好.不好
    北京-上海 = 北京 上海; Wi-Fi？好 = WI FI.好
    """
)
def test_what_is_said(text, expected):
    assert normalise(text) == expected


# Sentences


def test_sentences(frontend):
    text = "“你好！”他说。3.5元？\n\n……\nYes. 再见"
    assert list(frontend.sentences(text)) == ["“你好！”", "他说。", "3.5元？", "Yes.", "再见"]


@pytest.mark.parametrize("text", ["", "  \n", "。。。！？", "“”——（）"])
def test_nothing_to_say(frontend, text):
    for method in (frontend.sentences, frontend.symbols):
        with pytest.raises(ValueError, match="There is nothing to say in .*: give a text with words."):
            method(text)


def test_what_cannot_be_said_is_named(frontend):
    found = []
    try:
        frontend.sentences("你好。😀한❤️")
    except Unspeakable as error:
        found = error.characters
    assert found == ["😀", "한", "❤"]


def test_the_sentence_that_names_what_cannot_be_said(frontend):
    text = "你好。" * 3 + "😀한😀\0❤️"
    for method in (frontend.sentences, frontend.symbols):
        with pytest.raises(
            Unspeakable, match=r"😀 \(GRINNING FACE\), 한 \(HANGUL SYLLABLE HAN\), .*U\+0000.* HEART"
        ) as error:
            method(text)
        assert error.value.characters == ["😀", "한", "\0", "❤"]
    left = text.translate(dict.fromkeys(map(ord, error.value.characters)))
    assert list(frontend.sentences(left)) == ["你好。"] * 3
    with pytest.raises(Unspeakable, match="and 22 more. Leave them out"):
        frontend.sentences("".join(map(chr, range(0x430, 0x450))))


def test_nothing_is_lost_where_a_long_sentence_is_cut(frontend):
    text = "我们去北京大学读书，" * 20 + "银行" * 100 + "A" * 200 + "1,000,000元" * 10
    pieces = list(frontend.sentences(text))
    assert "".join(pieces) == text and max(map(len, pieces)) <= MAX_CHARACTERS
    assert all(piece.startswith(("我们", "银行", "A", "1")) for piece in pieces)
    assert max(len(frontend.symbols(piece)) for piece in pieces) < 800


def test_a_novel_streams(frontend):
    line = "第一章，他慢慢地走进了银行，行长说：“你好！”那一年是2024年。"
    novel = (line * 4 + "\n") * (100_000 // len(line) // 4 + 1)
    assert len(novel) >= 100_000
    list(islice(frontend.sentences(line), 5))
    tracemalloc.start()
    sentences = frontend.sentences(novel)
    assert next(sentences) == line.partition("！")[0] + "！”"
    count = 1 + sum(1 for _ in islice(sentences, 2000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 2001 and peak < 2**21  # bytes, beside the text itself


def test_one_long_phrase_is_read(frontend):
    assert len(frontend.symbols("啊" * 2000)) > 4000
