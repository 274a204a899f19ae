"""What is said: numbers, units and symbols in Chinese characters, Latin words or letters, and marks."""

import re

import pytest

from utils.speech.mandarin import normalise
from utils.speech.mandarin.numbers import cardinal, number, spelled


def cases(table: str):
    """Runs a test once for every `text = expected` of a table; "; " and ends of lines part them."""
    found = [case.strip().split(" = ") for case in re.split("; |\n", table) if case.strip()]
    return pytest.mark.parametrize(("text", "expected"), found, ids=[f"{i}" for i in range(len(found))])


@cases(
    """
    0 10 15 105 = 零 十 十五 一百零五; 1010 10000 100015 = 一千零一十 一万 十万零一十五; 200000000 = 两亿
    1000000000000 = 一万亿; 1,234,567 = 一百二十三万四千五百六十七; 007 = 零零七
    2个2月2号2楼 = 两个二月二号二楼; 22个 = 二十二个; 2小时 = 两小时; 3.14 = 三点一四; -5 = 负五
    气温-3到5℃ = 气温负三到五摄氏度; -5℃ = 零下五摄氏度; 50% = 百分之五十; -1.5% = 百分之负一点五; 2‰ = 千分之二
    3/4 = 四分之三; 3½ = 三又二分之一; 2024年5月1日 = 二零二四年五月一日; 2024-05-01 = 二零二四年五月一日
    98年 = 九八年; 5年 = 五年; 3000年 = 三千年; 1998-2005年 = 一九九八到二零零五年; 80年代 = 八十年代; 8:00 = 八点
    2:05 = 两点零五分; 14:05:09 = 十四点零五分零九秒; 8:00-9:30 = 八点到九点三十分; 比分3:2 = 比分三比二
    比分21:15 = 比分二十一比十五; 3-5个 = 三到五个; 5%~10% = 百分之五到百分之十
    13812345678 = 幺三八 幺二三四 五六七八; 010-62345678 = 零幺零 六二三四五六七八; 拨打110 = 拨打幺幺零
    打100分 = 打一百分; 邮编100084 = 邮编幺零零零八四; ￥100 = 一百元; $3.5亿 = 三点五亿美元; 5km = 五公里
    60km/h = 六十公里每小时; 5㎡ = 五平方米; 2kg = 两公斤; 5G = 五G; 3+5=8 = 三加五等于八; 8-3=5 = 八减三等于五
    6×7 = 六乘七; 5² = 五的平方; ±5 = 正负五; A380 = A三八零; G20 = G二十; 版本1.2.3 = 版本一点二点三
    a@b.com = A艾特B点COM; AT&T = AT和T; café = CAFE; Ａ１ = A一; 第1、第2 = 第一,第二
    列奥纳多·达芬奇 = 列奥纳多 达芬奇
    30万km/s = 三十万公里每秒; +8613500006789 = 加八六幺三五零零零零六七八九; 手机3000元 = 手机三千元
    卡号后四位是7012 = 卡号后四位是七零幺二; 房间号是1203 = 房间号是幺二零三; 零\u200b宽 = 零宽; 好。不好。 = 好.不好.
    好……嗯——对！ = 好……嗯——对!; 北京-上海 = 北京-上海; （是） = ,是,
    """
)
def test_what_is_said(text, expected):
    assert normalise(text, "letters") == expected


@cases(
    """
    我用GPT-4写 = 我用GPT-4写; H100和5G = H100和五G; iPhone 15 Pro = iPhone 15 Pro; iPhone 15很贵 = iPhone 十五很贵
    AT&T和3+4 = AT&T和三加四; don't = don't; 'don' = ␣don␣; café = cafe; a@b.com = a@b.com; 5kg = 五公斤
    2km/s = 两公里每秒
    """
)
def test_latin_words_stay(text, expected):
    assert normalise(text) == expected.replace("␣", " ")


def test_what_is_apart_stays_apart():
    assert normalise("①②", "letters").split() == ["一", "二"] and normalise("Ⅳ").strip() == "四"
    assert normalise("好\n不\t好") == "好.不 好"


def test_years_are_spelled():
    assert normalise("2024年，2024个") == "二零二四年,两千零二十四个"


@pytest.mark.parametrize(
    ("digits", "expected"),
    [
        ("0", "零"),
        ("10", "十"),
        ("110", "一百一十"),
        ("1001", "一千零一"),
        ("20002", "两万零二"),
        ("100010000", "一亿零一万"),
        ("200000000000", "两千亿"),
        ("1000000000001", "一万亿零一"),
        ("1010101010", "十亿一千零一十万一千零一十"),
        ("12345678901234567", "一二三四五六七八九零一二三四五六七"),
    ],
)
def test_quantities(digits, expected):
    assert cardinal(digits) == expected


def test_fractions_and_versions():
    assert number("3.14") == "三点一四" and number("1.12.3") == "一点十二点三" and spelled("1-2") == "一 二"
