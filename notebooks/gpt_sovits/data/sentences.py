"""Sentences for training, English and Mandarin, and held-out ones.

Mandarin sentences come from `utils.speech.sentences`. English ones are composed here, of everyday patterns, lists of
words and thousands of other frequent words: with few words a network learns the words instead of the sounds.
"""

from __future__ import annotations

import json
import re

import numpy as np

from notebooks.gpt_sovits.pipeline.english import English
from notebooks.gpt_sovits.pipeline.mandarin_phonemes import Mandarin
from utils import weights
from utils.speech.listening import WHISPER
from utils.speech.sentences import english, mandarin

LANGUAGES = ("en", "zh")
HELD_OUT = {"en": english.HELD_OUT, "zh": tuple(mandarin.HELD_OUT)}
MIN_CHARACTERS = {"en": 24, "zh": 8}  # of a sentence, for two to six seconds
MAX_CHARACTERS = {"en": 72, "zh": 22}
FREQUENT_WORDS = 8000  # how many of them the open slots may take
OPEN_SLOTS = ("n", "ns", "a", "w")
FREQUENT_SHARE = 0.75  # of the open slots that take one of them

PATTERNS = """
{who} {past} the {a} {n} {where}.
{who} {past} the {n}, and {who2} {past} the {n}.
Where did {who2} put the {a} {n} and the {n}?
The {n} {where} was {a}, but the {n} was {a}.
{when}, {who2} {past} my {n} {where}.
Could you bring me the {n} and {num} {a} {ns}?
There are {num} {ns} {where}, and all of them are {a}.
{name} thinks that the {n} is too {a} for {name}.
Why is the {a} {n} always {where}?
{when} we saw {num} {a} {ns} {where}.
If the {n} is {a}, give it to {name}.
I would rather have a {a} {n} than {num} {ns}.
{name} and {name} {past} a {a} {n} {when2}.
Please put the {ns} {where} before they get {a}.
{w}, {w}, and {w}.
She said {w}, not {w}, {when2}.
Have you heard of {w} and {w}?
{name} wrote about {w} and the {w}.
""".strip().splitlines()
WORDS = {
    "who": "My father,The teacher,A young woman,Her brother,The old judge,Our neighbor,Nobody,Someone,Everyone,"
    "The farmer,A nurse,The girl next door,His uncle,The chef,Their cousin",
    "who2": "he,she,they,we,you,my sister,the doctor,the children,your mother,a stranger,that boy,the pilot",
    "name": "Julia,Thomas,George,Ruth,Victor,Joy,Heather,Charles,Yolanda,Theo,Grace,Paul,Louise,Walter,Zoe,Ian,Beth",
    "past": "painted,washed,borrowed,found,threw away,enjoyed,measured,brought,watched,forgot,chose,carried,pushed,"
    "built,sold,tried,caught,moved,broke,followed,fixed,touched,showed us,loved,shook,opened,lost,drew,bought",
    "n": "house,table,garage,garden,voice,church,window,picture,mirror,oven,ship,bath,television,thumb,bridge,jar,"
    "pillow,feather,watch,orange,badge,youth,chair,toy,cow,cloud,road,bowl,bird,earth,ball,fork,fish,book,wood,moon,"
    "shoe,school,cup,glove,tree,knee,lake,train,sky,tie,bed,head,cat,hat,lamp,clock,rock,ring,song,leaf,vest,zebra",
    "ns": "eggs,judges,beaches,roses,kitchens,treasures,apples,yellow leaves,clothes,months,oysters,pigeons,stories,"
    "letters,vegetables,wheels,questions,ideas,cherries,languages,gloves,houses,boys,teeth,shirts,lions,onions,hours",
    "a": "yellow,heavy,smooth,huge,cheap,loud,quiet,strange,royal,thin,purple,average,young,warm,sour,early,green,"
    "round,foolish,usual,new,dirty,clean,beautiful,tiny,sharp,wild,noisy,golden,useful,thick,ugly,icy,brown,square",
    "num": "two,three,four,five,six,seven,eight,nine,ten,eleven,twelve,thirteen,twenty,thirty,a hundred,a thousand",
    "where": "in the kitchen,under the bridge,behind the church,on the roof,near the ocean,at school,by the fire,"
    "above the valley,across the road,outside the theater,beneath the stairs,around the corner,in South Asia,"
    "beyond the hills,between the trees,inside the garage,over there",
    "when": "Yesterday,This morning,Last Thursday,Early in July,A month ago,On Sunday,In the evening,Once,At noon",
    "when2": "yesterday,this morning,last Thursday,early in March,a month ago,on Friday,at night,a long time ago",
}


def training_sentences(language: str, count: int, seed: int = 0) -> list[str]:
    """`count` different sentences of a language, none of HELD_OUT, the same for the same seed."""
    if language == "zh":
        reader = Mandarin()
        composed = mandarin.training_sentences(lambda word: set(reader.pinyin(word)), 2 * count, seed)
        return [text for text in composed if MIN_CHARACTERS["zh"] <= len(text) <= MAX_CHARACTERS["zh"]][:count]
    rng, frequent = np.random.default_rng(seed), frequent_words()[:FREQUENT_WORDS]
    slots = {slot: words.split(",") for slot, words in WORDS.items()}
    slots["w"] = sorted({word for text in english.TRAINING for word in re.findall("[a-z]{5,}", text)})

    def fill(slot: re.Match) -> str:
        words = frequent if slot[1] in OPEN_SLOTS and rng.random() < FREQUENT_SHARE else slots[slot[1]]
        return words[rng.integers(len(words))]

    sentences = dict.fromkeys(english.TRAINING)  # in order, without duplicates
    while len(sentences) < count:
        text = re.sub(r"\{(\w+)\}", fill, PATTERNS[rng.integers(len(PATTERNS))])
        text = text[0].upper() + text[1:]
        if MIN_CHARACTERS["en"] <= len(text) <= MAX_CHARACTERS["en"] and text not in HELD_OUT["en"]:
            sentences[text] = None
    return list(sentences)[:count]


def frequent_words() -> list[str]:
    """English words that CMUdict knows, frequent ones first: those that are one token of Whisper's, in their order."""
    tokenizer = json.loads((weights.fetch(WHISPER[1]) / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary, known = tokenizer["model"]["vocab"], English().words
    words = (token[1:] for token in sorted(vocabulary, key=vocabulary.get) if re.fullmatch("Ġ[a-z]{3,12}", token))
    return [word for word in words if word in known]


def characters(most: int) -> list[str]:
    """The characters of the words that Mandarin sentences are composed of, frequent ones first, `most` at most."""
    slots = mandarin.dictionary()
    everything = slots.pop("all")
    used = [*mandarin.HELD_OUT, *(word for words in slots.values() for word in words), *everything]
    return list(dict.fromkeys(x for word in used for x in word if "一" <= x <= "龥"))[:most]
