"""Mandarin sentences: held-out ones, and composed ones for training.

Training needs phonemes in many contexts rather than sense. Patterns are filled with frequent words of jieba's
dictionary, and with words that together have every syllable of Mandarin in every tone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator

import numpy as np
from jieba import get_module_res

HELD_OUT = """
早上好，昨天晚上睡得好吗？
我家楼下新开了一家面包店。
请把窗户关上，外面风太大了。
这趟火车下午三点到上海。
妹妹正在房间里听音乐。
他每天坐公交车去上班。
你能帮我拿一下那个杯子吗？
周末我们打算去爬山。
这道题有点难，我想了很久。
医生让他多喝水，好好休息。
超市里的苹果比昨天便宜。
爷爷喜欢一边喝茶一边看报纸。
我的手机没电了，借你的用一下。
春天来了，院子里的花都开了。
老师说明天上午有考试。
他们结婚已经二十年了。
请问去火车站怎么走？
今年的夏天特别热。
这件衣服的颜色很适合你。
会议改到星期四下午两点。
小猫在沙发上睡着了。
我不太会做饭，只会煮面条。
图书馆九点才开门，我们再等一会儿。
下雨了，记得带伞。
他的中文说得越来越流利。
晚饭想吃饺子还是米饭？
孩子们在操场上踢足球。
这本小说我看了三遍。
从这里走路到学校只要十分钟。
对不起，我来晚了。
她把照片发给了朋友。
月亮又圆又亮，像一个银盘子。
电影院门口排着很长的队。
妈妈做的红烧肉最香。
我们去年冬天去过哈尔滨。
如果有问题，请随时给我打电话。
桌子上放着两封没有打开的信。
他跑得太快，我追不上。
城市的夜景非常美丽。
祝你生日快乐，身体健康。
""".split()

PATTERNS = """
{t}，{nr}在{ns}{v}了{n}。
{r}觉得{n}比{n}更{a}。
{ns}的{n}和{n}都很{a}。
{nr}说{n}没有{v}，所以{r}不想{v}。
{r}把{n}放在{s}了。
请{v}一下{n}，谢谢。
{r}是不是{v}过{ns}的{n}？
因为{n}太{a}，{r}只好{v}{n}。
{m}{n}{v}以后，{n}就{a}起来。
{nr}的{n}是{a}的{n}。
{i}，这就是{r}的{vn}。
关于{vn}的{n}，{r}还要{v}。
从{ns}到{ns}，{r}看见了{m}{n}。
虽然{n}很{a}，但是{n}可以{v}。
{t}的{vn}让{nr}觉得很{a}。
你{v}{n}，{r}{v}{n}。
{w}，{w}，还有{w}。
{r}听说过{w}和{w}吗？
{nr}买了{w}，又去找{w}。
他们在{s}谈{w}的事。
一边是{w}，一边是{w}。
{w}跟{w}不一样。
""".split()
# slots of the patterns by jieba's parts of speech: how many of the most frequent words fill them
WORDS = {"n": 3000, "v": 1500, "a": 700, "ns": 400, "t": 150, "vn": 600, "i": 500, "s": 80}
LISTED = {  # other slots; {w} takes the words that bring new syllables
    "nr": "小王 老李 小明 小红 张先生 刘小姐 陈医生 赵经理 周老师 杨阿姨 黄师傅 吴教授 李华 王芳 林涛 孙丽".split(),
    "r": "我 你 他 她 我们 你们 他们 大家 自己 谁 咱们 老师 妈妈 爸爸 孩子 朋友 邻居 医生 司机 同学".split(),
    "m": "一个 两个 三本 四张 五只 六条 七位 八块 九种 十件 一百个 几个 许多 每个 半个 好几双 十二把 二十家".split(),
}
MAX_RANK = 60000  # by frequency, of words for rare syllables
RARE_SHARE = 0.4  # of the sentences, with words for rare syllables
MIN_CHARACTERS, MAX_CHARACTERS = 6, 24  # of a sentence


def training_sentences(syllables: Callable[[str], set[Hashable]], count: int, seed: int = 0) -> list[str]:
    """Different sentences, none of HELD_OUT, as a function of the seed.

    syllables: returns the syllables of a word with their tones, as the front end of the trained model reads them.
    """
    rng, slots = np.random.default_rng(seed), dictionary()
    rare = iter(covering(syllables, slots.pop("all")))
    plain, special = ([p for p in PATTERNS if ("{w}" in p) is wanted] for wanted in (False, True))
    sentences: dict[str, None] = {}  # an ordered set
    while len(sentences) < count:
        pattern = str(rng.choice(special if rng.random() < RARE_SHARE else plain))

        def fill(slot: re.Match) -> str:
            if slot[1] == "w" and (word := next(rare, "")):
                return word
            words = slots["n" if slot[1] == "w" else slot[1]]
            return words[int(len(words) * rng.random() ** 2)]  # frequent words more often

        sentence = re.sub(r"\{(\w+)\}", fill, pattern)
        if MIN_CHARACTERS <= len(sentence) <= MAX_CHARACTERS and sentence not in HELD_OUT:
            sentences[sentence] = None
    return list(sentences)


def dictionary() -> dict[str, list[str]]:
    """Words of jieba's dictionary for each slot, and under "all" those of two and three characters; frequent first."""
    with get_module_res("dict.txt") as file:
        entries = [line.decode().split() for line in file]
    entries.sort(key=lambda entry: -int(entry[1]))
    chinese = [(word, tag) for word, _, tag in entries if re.fullmatch("[一-龥]{2,4}", word)]
    by_slot = {slot: [word for word, tag in chinese if tag == slot][:most] for slot, most in WORDS.items()}
    return by_slot | LISTED | {"all": [word for word, _ in chinese[:MAX_RANK] if len(word) < 4]}


def covering(syllables: Callable[[str], set[Hashable]], words: list[str]) -> Iterator[str]:
    """The words with a syllable (including its tone) that no word before them has."""
    seen: set[Hashable] = set()
    for word in words:
        word_syllables = syllables(word)
        if not word_syllables <= seen:
            seen |= word_syllables
            yield word
