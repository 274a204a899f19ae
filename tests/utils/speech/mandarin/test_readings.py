"""How characters are read, and how their tones change in speech."""

import json
import os
import re
import subprocess
import sys

import pytest
from pypinyin.constants import PHRASES_DICT, PINYIN_DICT

from utils.paths import ROOT
from utils.speech.mandarin import Reader, lexicon, readable
from utils.speech.mandarin.readings import by_dictionary
from utils.speech.mandarin.syllables import syllables_of


def cases(table: str):
    """Runs a test once for every `text = expected` of a table; "; " and ends of lines part them."""
    found = [case.strip().split(" = ") for case in re.split("; |\n", table) if case.strip()]
    return pytest.mark.parametrize(("text", "expected"), found, ids=[f"{i}" for i in range(len(found))])


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader()


def syllables(reader: Reader, text: str) -> str:
    """The pinyin of a phrase, syllable by syllable."""
    return " ".join(f"{s.pinyin}{s.tone}" for foot in reader.read(text) for word in foot for s in word)


# Characters


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
    他长大了长度 = ta1 zhang3 da4 le5 chang2 du4; 还是要还钱 = hai2 shi4 yao4 huan2 qian2; 只有一只 = zhi2 you3 yi4 zhi1
    高兴地跑得快 = gao1 xing4 de5 pao3 de5 kuai4; 种树的种子 = zhong4 shu4 de5 zhong3 zi5
    睡得好 = shui4 de5 hao3; 五只 = wu3 zhi1; 这只是 = zhe4 zhi3 shi4; 两地相距 = liang3 di4 xiang1 jv4
    看过书 = kan4 guo5 shu1; 过河 = guo4 he2; 忘不了 = wang4 bu5 liao3; 被选为 = bei4 xvan3 wei2
    倒水 = dao4 shui3; 孔子 = kong2 zi3; 桌子 = zhuo1 zi5; 重新重读 = chong2 xin1 chong2 du2
    首都都是 = shou3 du1 dou1 shi4; 嗯 = en4; 绿 = lv4; 军乐 = jvn1 yve4; 便宜方便 = pian2 yi5 fang1 bian4
    """
)
def test_characters_with_several_readings(reader, text, expected):
    assert syllables(reader, text) == expected


@cases(
    """
    你好 = ni2 hao3; 展览馆 = zhan2 lan2 guan3; 小老虎 = xiao3 lao2 hu3; 胆小鬼 = dan2 xiao2 gui3
    我很好 = wo3 hen2 hao3; 我想你 = wo3 xiang2 ni3; 买水果 = mai3 shui2 guo3; 老李买好酒 = lao2 li3 mai2 hao2 jiu3
    我好你好 = wo2 hao3 ni2 hao3; 两把雨伞 = liang2 ba3 yv2 san3; 五五五五 = wu2 wu3 wu2 wu3
    美好生活 = mei2 hao3 sheng1 huo2
    """
)
def test_third_tones(reader, text, expected):
    assert syllables(reader, text) == expected


@cases(
    """
    一天 = yi4 tian1; 一年 = yi4 nian2; 一百 = yi4 bai3; 一万 = yi2 wan4; 一个 = yi2 ge5; 第一 = di4 yi1
    统一 = tong3 yi1; 十一个 = shi2 yi1 ge5; 看一看 = kan4 yi5 kan4; 一月一日 = yi1 yve4 yi1 ri4
    一个一个地跳 = yi2 ge5 yi2 ge5 de5 tiao4; 数到十一 = shu3 dao4 shi2 yi1
    二零一一年 = er4 ling2 yi1 yi1 nian2; 星期一 = xing1 qi1 yi1; 不是 = bu2 shi4; 不好 = bu4 hao3
    好不好 = hao3 bu5 hao3; 看不见 = kan4 bu5 jian4; 我不 = wo3 bu4; 不一样 = bu4 yi2 yang4
    追不上 = zhui1 bu5 shang4; 统一写法 = tong3 yi1 xie2 fa3; 同一个 = tong2 yi2 ge5; 他不来 = ta1 bu4 lai2
    进不去 = jin4 bu5 qv4; 一下 = yi2 xia4; 也不见 = ye3 bu2 jian4
    说一不二 = shuo1 yi2 bu2 er4; 了不起 = liao3 bu5 qi3
    """
)
def test_one_and_not(reader, text, expected):
    assert syllables(reader, text) == expected


@cases(
    """
    爸爸妈妈 = ba4 ba5 ma1 ma5; 姐姐 = jie3 jie5; 看看 = kan4 kan5; 想想 = xiang2 xiang5; 天天 = tian1 tian1
    人人 = ren2 ren2; 我们的 = wo3 men5 de5; 石头 = shi2 tou5; 朋友知道 = peng2 you5 zhi1 dao5; 喜欢 = xi3 huan5
    学生们 = xve2 sheng5 men5; 小朋友 = xiao3 peng2 you5; 大学生朋友们 = da4 xve2 sheng1 peng2 you5 men5
    自由自在 = zi4 you2 zi4 zai4; 地方性 = di4 fang1 xing4; 早上好 = zao3 shang5 hao3; 老爷爷 = lao3 ye2 ye5
    葡萄牙 = pu2 tao2 ya2; 晒太阳 = shai4 tai4 yang5
    原子 = yvan2 zi3; 哪里 = na2 li5
    """
)
def test_neutral_tones(reader, text, expected):
    assert syllables(reader, text) == expected


@cases(
    """
    花儿 = huar1; 一会儿 = yi2 huir4; 这儿 = zher4; 小孩儿 = xiao3 hair2; 有点儿 = you2 dianr3; 慢慢儿 = man4 manr1
    馅儿饼 = xianr4 bing3; 没事儿 = mei2 shir4; 聊天儿 = liao2 tianr1; 女儿 = nv3 er2; 儿子 = er2 zi5
    幼儿园 = you4 er2 yvan2; 新生儿 = xin1 sheng1 er2; 花儿儿 = huar1 er2; 一点儿 = yi4 dianr3
    """
)
def test_er(reader, text, expected):
    assert syllables(reader, text) == expected


def test_every_character_of_a_long_phrase_is_read(reader):
    assert len(syllables(reader, "啊" * 2000).split()) == 2000


def test_every_reading_of_the_tables_is_a_syllable():
    """The tones are 1 to 5, and each of a phrase's characters has a reading."""
    tables = lexicon.READINGS | lexicon.SINGLE | lexicon.INSIDE
    tables |= {text: reading for text, rules in lexicon.CONTEXT.items() for *_, reading in rules}
    for text, reading in tables.items():
        assert len(reading.split()) == len(text) and re.fullmatch("([a-z]+[1-5] ?)+", reading), text


def test_every_character_and_phrase_of_the_dictionaries_has_syllables():
    known = [*map(chr, PINYIN_DICT), *PHRASES_DICT]
    every = {(s.pinyin, s.tone) for text in known for s in by_dictionary(text, "", "")}
    assert len({pinyin for pinyin, _ in every}) > 400 and {tone for _, tone in every} == {1, 2, 3, 4, 5}
    assert not [pinyin for pinyin, _ in every if not re.fullmatch("[a-z]+", pinyin)]


def test_a_syllable_knows_its_characters(reader):
    assert [s.text for foot in reader.read("小孩儿W") for word in foot for s in word] == ["小", "孩儿", "W", "", ""]
    assert [(s.text, s.pinyin) for s in syllables_of("你好", ["ni3", "hao3"])] == [("你", "ni"), ("好", "hao")]


def test_what_is_readable():
    assert all(map(readable, "你〇鱼")) and not any(map(readable, "A1，。😀한"))


# What importing and reading leave behind


def test_jieba_is_quiet_and_writes_nothing(tmp_path):
    (tmp_path / "jieba.cache").write_bytes(b"not to be read")
    program = (
        "import json\nfrom utils.speech.mandarin import Reader\n"
        "print(json.dumps([s.tone for foot in Reader().read('你好') for word in foot for s in word]))"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path), "TEMP": str(tmp_path), "TMP": str(tmp_path)}
    command = [sys.executable, "-W", "always", "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, encoding="utf-8", check=True
    )
    assert (json.loads(done.stdout), done.stderr) == ([2, 3], "")
    assert [path.name for path in tmp_path.iterdir()] == ["jieba.cache"]
    assert (tmp_path / "jieba.cache").read_bytes() == b"not to be read"
