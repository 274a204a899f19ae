"""What is said, how it is read, in which tones, and how the acoustic model is told."""

import json
import os
import re
import subprocess
import sys
import tracemalloc
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from pypinyin.constants import PHRASES_DICT, PINYIN_DICT

from notebooks.sambert_hifigan.pipeline import lexicon, readings
from notebooks.sambert_hifigan.pipeline.frontend import (
    MAX_CHARACTERS,
    SPECIAL,
    Frontend,
    Symbol,
    Unspeakable,
    initial_and_final,
    standard_tables,
)
from notebooks.sambert_hifigan.pipeline.normalise import normalise
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
    every = {(s.pinyin, s.tone) for text in known for s in readings._by_dictionary(text, "", "")}
    inside = {reading for rules in lexicon.CONTEXT.values() for *_, reading in rules}
    every |= {
        (s.pinyin, s.tone)
        for reading in inside
        for s in readings._syllables("字字"[: len(reading.split())], reading.split())
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


# How characters are read


@cases(
    """
    银行行长 = yin2 hang2 hang2 zhang3; 重庆重要 = chong2 qing4 zhong4 yao4; 他长大了 = ta1 zhang3 da4 le5
    绳子很长 = sheng2 zi5 hen3 chang2; 音乐快乐 = yin1 yve4 kuai4 le4; 了解了 = liao2 jie3 le5
    睡觉觉得 = shui4 jiao4 jve2 de5; 还没还书 = hai2 mei2 huan2 shu1; 把钱还给他 = ba3 qian2 huan2 gei3 ta1
    我得走 = wo3 dei2 zou3; 跑得快 = pao3 de5 kuai4; 他得了奖 = ta1 de2 le5 jiang3; 慢慢地走 = man4 man4 de5 zou3
    高兴地说 = gao1 xing4 de5 shuo1; 土地 = tu3 di4; 睡着了 = shui4 zhao2 le5; 看着他 = kan4 zhe5 ta1
    着急 = zhao2 ji2; 着手 = zhuo2 shou3; 三只猫 = san1 zhi1 mao1; 只要 = zhi3 yao4; 为人民 = wei4 ren2 min2
    称为 = cheng1 wei2; 长度为三米 = chang2 du4 wei2 san1 mi3; 一行字 = yi4 hang2 zi4; 行不行 = xing2 bu5 xing2
    教他 = jiao1 ta1; 教室 = jiao4 shi4; 校长 = xiao4 zhang3
    得到 = de2 dao4; 成长 = cheng2 zhang3; 他长得高 = ta1 zhang3 de5 gao1; 血管 = xve4 guan3
    种树 = zhong4 shu4; 三种花 = san1 zhong3 hua1; 干净 = gan1 jing5
    干活 = gan4 huo2; 空气 = kong1 qi4; 有空 = you3 kong4; 放假 = fang4 jia4; 假如 = jia3 ru2; 会计 = kuai4 ji4
    参差 = cen1 ci1; 角色 = jve2 se4; 朝阳区 = chao2 yang2 qv1; 没收 = mo4 shou1; 没有 = mei2 you3
    倒水 = dao4 shui3; 孔子 = kong2 zi3; 桌子 = zhuo1 zi5; 重新重读 = chong2 xin1 chong2 du2
    首都都是 = shou3 du1 dou1 shi4; 嗯 = en4; 绿 = lv4; 军乐 = jvn1 yve4; 便宜方便 = pian2 yi5 fang1 bian4
    """
)
def test_characters_with_several_readings(frontend, text, expected):
    assert syllables(frontend, text) == expected


@cases(
    """
    你好 = ni2 hao3; 展览馆 = zhan2 lan2 guan3; 小老虎 = xiao3 lao2 hu3; 胆小鬼 = dan2 xiao2 gui3
    我很好 = wo3 hen2 hao3; 我想你 = wo3 xiang2 ni3; 买水果 = mai3 shui2 guo3; 老李买好酒 = lao2 li3 mai2 hao2 jiu3
    我好，你好 = wo2 hao3 ni2 hao3; 两把雨伞 = liang2 ba3 yv2 san3; 五五五五 = wu2 wu3 wu2 wu3
    美好生活 = mei2 hao3 sheng1 huo2
    """
)
def test_third_tones(frontend, text, expected):
    assert syllables(frontend, text) == expected


@cases(
    """
    一天 = yi4 tian1; 一年 = yi4 nian2; 一百 = yi4 bai3; 一万 = yi2 wan4; 一个 = yi2 ge5; 第一 = di4 yi1
    统一 = tong3 yi1; 十一个 = shi2 yi1 ge5; 看一看 = kan4 yi5 kan4; 一月一日 = yi1 yve4 yi1 ri4
    一个一个地跳 = yi2 ge5 yi2 ge5 de5 tiao4; 数到十一 = shu3 dao4 shi2 yi1
    二零一一年 = er4 ling2 yi1 yi1 nian2; 星期一 = xing1 qi1 yi1; 不是 = bu2 shi4; 不好 = bu4 hao3
    好不好 = hao3 bu5 hao3; 看不见 = kan4 bu5 jian4; 我不 = wo3 bu4; 不一样 = bu4 yi2 yang4
    说一不二 = shuo1 yi2 bu2 er4; 了不起 = liao3 bu5 qi3
    """
)
def test_one_and_not(frontend, text, expected):
    assert syllables(frontend, text) == expected


@cases(
    """
    爸爸妈妈 = ba4 ba5 ma1 ma5; 姐姐 = jie3 jie5; 看看 = kan4 kan5; 想想 = xiang2 xiang5; 天天 = tian1 tian1
    人人 = ren2 ren2; 我们的 = wo3 men5 de5; 石头 = shi2 tou5; 朋友知道 = peng2 you5 zhi1 dao5; 喜欢 = xi3 huan5
    原子 = yvan2 zi3; 哪里 = na2 li5
    """
)
def test_neutral_tones(frontend, text, expected):
    assert syllables(frontend, text) == expected


@cases(
    """
    花儿 = huar1; 一会儿 = yi2 huir4; 这儿 = zher4; 小孩儿 = xiao3 hair2; 有点儿 = you2 dianr3; 慢慢儿 = man4 manr1
    馅儿饼 = xianr4 bing3; 没事儿 = mei2 shir4; 聊天儿 = liao2 tianr1; 女儿 = nv3 er2; 儿子 = er2 zi5
    幼儿园 = you4 er2 yvan2; 新生儿 = xin1 sheng1 er2; 花儿儿 = huar1 er2
    """
)
def test_er(frontend, text, expected):
    assert syllables(frontend, text) == expected


def test_a_syllable_knows_its_characters(frontend):
    feet, _ = frontend.read("小孩儿W")[0]
    assert [s.text for foot in feet for word in foot for s in word] == ["小", "孩儿", "W", "", ""]


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
    0 10 15 105 = 零 十 十五 一百零五; 1010 10000 100015 = 一千零一十 一万 十万零一十五; 200000000 = 两亿
    1000000000000 = 一万亿; 1,234,567 = 一百二十三万四千五百六十七; 007 = 零零七; 第1、第2 = 第一,第二
    2个2月2号2楼 = 两个二月二号二楼; 22个 = 二十二个; 2小时 = 两小时; 3.14 = 三点一四; -5 = 负五
    气温-3到5℃ = 气温负三到五摄氏度; -5℃ = 零下五摄氏度; 50% = 百分之五十; -1.5% = 百分之负一点五; 2‰ = 千分之二
    3/4 = 四分之三; 3½ = 三又二分之一; 2024年5月1日 = 二零二四年五月一日; 2024-05-01 = 二零二四年五月一日
    98年 = 九八年; 5年 = 五年; 3000年 = 三千年; 1998-2005年 = 一九九八到二零零五年; 80年代 = 八十年代; 8:00 = 八点
    2:05 = 两点零五分; 14:05:09 = 十四点零五分零九秒; 8:00-9:30 = 八点到九点三十分; 比分3:2 = 比分三比二
    比分21:15 = 比分二十一比十五; 3-5个 = 三到五个; 5%~10% = 百分之五到百分之十
    13812345678 = 幺三八 幺二三四 五六七八; 010-62345678 = 零幺零 六二三四五六七八; 拨打110 = 拨打幺幺零
    打100分 = 打一百分; 邮编100084 = 邮编幺零零零八四; ￥100 = 一百元; $3.5亿 = 三点五亿美元; 5km = 五公里
    60km/h = 六十公里每小时; 5㎡ = 五平方米; 2kg = 两公斤; 5G = 五G; 3+5=8 = 三加五等于八; 8-3=5 = 八减三等于五
    6×7 = 六乘七; 5² = 五的平方; ±5 = 正负五; A380 = A三八零; G20 = G二十; 版本1.2.3 = 版本一点二点三; ①② = 一 二
    Ⅳ = 四; a@b.com = A艾特B点COM; “好”（是）……嗯——对！ = 好,是,嗯,对; 列奥纳多·达芬奇 = 列奥纳多 达芬奇
    ＡＢＣ１２ = ABC十二; 零\u200b宽 = 零宽; 好。不好。 = 好.不好
    """
)
def test_what_is_said(text, expected):
    assert normalise(text) == expected


def test_years_are_spelled():
    assert normalise("2024年，2024个") == "二零二四年,两千零二十四个"


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


# What importing and reading leave behind


def test_jieba_is_quiet_and_writes_nothing(tmp_path):
    (tmp_path / "jieba.cache").write_bytes(b"not to be read")
    program = (
        "import json\nfrom notebooks.sambert_hifigan.pipeline.frontend import Frontend, standard_tables\n"
        "f = Frontend(standard_tables(['F7']))\nprint(json.dumps(len(f.symbols('你好'))))"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path), "TEMP": str(tmp_path), "TMP": str(tmp_path)}
    command = [sys.executable, "-W", "always", "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, encoding="utf-8", check=True
    )
    assert (json.loads(done.stdout), done.stderr) == (5, "")
    assert [path.name for path in tmp_path.iterdir()] == ["jieba.cache"]
    assert (tmp_path / "jieba.cache").read_bytes() == b"not to be read"
