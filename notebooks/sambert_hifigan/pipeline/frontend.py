"""An open front end for Mandarin: text to the symbols that SAMBERT reads, as its authors' closed one writes them.

A symbol is `{phone$tone$syllable_flag$word_segment$emotion$speaker}`. A syllable has two phones, initial and final;
breaks are symbols of their own: #1 between prosodic words, #3 for a comma, #4 at the end. #2 is not predicted.
This file, `normalise`, `readings` and `lexicon` need pypinyin and jieba, nothing else.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from .normalise import normalise
from .readings import Foot, Reader, Word, readable

LONGEST = 80  # characters of a sentence: its symbols stay within the 800 positions of a released encoder
SPECIAL = ("_", "~", "@[MASK]")  # at the end of every table: padding, end, mask
PHONES = """
a_c ai_c an_c ang_c ao_c b_c c_c ch_c d_c e_c ei_c en_c eng_c er_c f_c g_c h_c i_c ia_c ian_c iang_c iao_c ie_c ih_c
ii_c in_c ing_c io_c iong_c iou_c j_c k_c l_c m_c n_c o_c ong_c ou_c p_c q_c r_c s_c sh_c t_c u_c ua_c uai_c uan_c
uang_c uei_c uen_c ueng_c uo_c v_c van_c ve_c vn_c xx_c z_c zh_c w_c y_c ga ge go
aa ae ah ao aw ay b ch d dh eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh t th uh uw v w y z zh
air_c angr_c anr_c aor_c ar_c eir_c engr_c enr_c iangr_c ianr_c iaor_c iar_c ier_c ihr_c iir_c ingr_c inr_c iongr_c
iour_c ir_c ongr_c or_c our_c uair_c uangr_c uanr_c uar_c ueir_c uenr_c uor_c ur_c vanr_c ver_c vnr_c vr_c
pau #1 #2 #3 #4
"""  # Mandarin, English (unused here), Mandarin with 儿, silence and breaks
EMOTIONS = """
none neutral angry disgust fear happy sad surprise calm gentle relax lyrical serious disgruntled satisfied disappointed
excited anxiety jealousy hate pity pleasure arousal dominance
placeholder1 placeholder2 placeholder3 placeholder4 placeholder5 placeholder6 placeholder7 placeholder8 placeholder9
"""
_END = re.compile(r"(?:[。！？!?\n\r\u2028\u2029]|(?<![0-9])\.(?=[\s\"'”’)]|$))+[\s”’\"')）」』】》]*")
_RUN = re.compile(r"[\w.,:/%-]+\W{0,2}$", re.ASCII)  # a number with its unit, a Latin word
_PAUSE = re.compile(r"[，,、；;：:—…\s](?![0-9])")


class Unspeakable(ValueError):
    """A text has characters that cannot be said; `characters` are these, each once."""

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = list(characters)
        shown = ", ".join(f"{x} ({unicodedata.name(x, f'U+{ord(x):04X}')})" for x in self.characters[:10])
        more = f" and {len(self.characters) - 10} more" if len(self.characters) > 10 else ""
        super().__init__(
            f"The text has characters that cannot be said in Mandarin: {shown}{more}. "
            "Leave them out or write them in Chinese characters."
        )


class Symbol(NamedTuple):
    """One token of the acoustic model's input."""

    sy: str  # phone or break
    tone: str
    syllable_flag: str
    word_segment: str
    emotion: str
    speaker: str

    def __str__(self) -> str:
        return "{" + "$".join(self) + "}"

    @classmethod
    def parse(cls, text: str) -> Symbol:
        """The symbol that `str` wrote. Raises ValueError for another text."""
        fields = text.removeprefix("{").removesuffix("}").split("$")
        if text[:1] + text[-1:] != "{}" or len(fields) != len(cls._fields):
            raise ValueError(f"{text!r} is no symbol: it has the form {{{'$'.join(cls._fields)}}}.")
        return cls(*fields)


def standard_tables(speakers: Sequence[str], mask: bool = True) -> dict[str, list[str]]:
    """The released checkpoints' tables: stream to its entries, whose places are their ids.

    speakers: the `speaker_list` of the checkpoint's config. mask: False for early checkpoints, whose embeddings have
    one row less.
    """
    tables = {
        "sy": [f"@{phone}" for phone in PHONES.split()],
        "tone": ["tone1", "tone_none", "tone4", "tone2", "tone3", "tone5", "tone0"],
        "syllable_flag": ["s_begin", "s_end", "s_none", "s_both", "s_middle"],
        "word_segment": ["word_begin", "word_end", "word_middle", "word_both", "word_none"],
        "emotion": [f"emotion_{emotion}" for emotion in EMOTIONS.split()],
        "speaker": list(speakers),
    }
    return {stream: entries + list(SPECIAL[: 3 if mask else 2]) for stream, entries in tables.items()}


class Frontend:
    """Reads Mandarin for a checkpoint.

    tables: as of `standard_tables`. Construction reads the dictionary of words, about a second.
    """

    def __init__(self, tables: Mapping[str, Sequence[str]]) -> None:
        if missing := set(Symbol._fields) - set(tables):
            raise ValueError(f"The tables lack {', '.join(sorted(missing))}: see standard_tables.")
        self.tables = {stream: {entry: i for i, entry in enumerate(tables[stream])} for stream in Symbol._fields}
        self.reader = Reader()

    @property
    def speakers(self) -> list[str]:
        """The names of the voices."""
        return [name for name in self.tables["speaker"] if name not in SPECIAL]

    def sentences(self, text: str) -> Iterator[str]:
        """The sentences of a text, cut where they have more than 80 characters, each with something to say.

        The whole text is checked first, then one sentence is made at a time. Raises ValueError where there is nothing
        to say, Unspeakable for characters that cannot be said, both at once and not while it goes on.
        """
        _check(text)
        return self._pieces(text)

    def symbols(self, sentence: str, speaker: str = "F7", emotion: str = "neutral") -> list[Symbol]:
        """The symbols of a sentence; the last one is #4.

        Raises ValueError where there is nothing to say, Unspeakable for characters that cannot be said.
        """
        voice = f"emotion_{emotion}", speaker
        silence = "tone_none", "s_none", "word_none", "emotion_none", speaker
        found: list[Symbol] = []
        for feet, pause in self.read(sentence):
            for i, foot in enumerate(feet):
                if i:
                    found.append(Symbol("#1", *silence))
                found += [Symbol(*spoken, *voice) for word in foot for spoken in _spoken(word)]
            found.append(Symbol(pause, *silence))
        return found

    def read(self, sentence: str) -> list[tuple[list[Foot], str]]:
        """The phrases of a sentence, each with the break after it. Two symbols stand for every syllable."""
        _check(sentence)
        parts = re.split("([,.])", normalise(sentence))
        pauses = [*({",": "#3", ".": "#4"}[mark] for mark in parts[1::2]), "#4"]
        return [(self.reader.read(phrase), pause) for phrase, pause in zip(parts[::2], pauses, strict=True)]

    def ids(self, symbols: Sequence[Symbol]) -> dict[str, list[int]]:
        """The streams that the acoustic model reads, one id per symbol, without the "~" that ends them on disk.

        Raises ValueError for a symbol that the checkpoint's tables do not have.
        """
        streams: dict[str, list[int]] = {stream: [] for stream in Symbol._fields}
        for symbol in symbols:
            for stream, entry in zip(Symbol._fields, symbol, strict=True):
                table = self.tables[stream]
                key = f"@{entry}" if stream == "sy" else entry
                if key not in table or entry in SPECIAL:
                    names = [name.removeprefix("emotion_") for name in table if name not in SPECIAL]
                    known = f"Choose one of {', '.join(names)}." if len(names) < 100 else "Check its tables."
                    raise ValueError(f"{stream} {entry!r} is not one that this checkpoint has. {known}")
                streams[stream].append(table[key])
        return streams

    def _pieces(self, text: str) -> Iterator[str]:
        start = 0
        while start < len(text):
            end = found.end() if (found := _END.search(text, start)) else len(text)
            while start < end:
                stop = end if end - start <= LONGEST else start + self._cut(text[start : start + LONGEST])
                if normalise(piece := text[start:stop].strip()):
                    yield piece
                start = stop

    def _cut(self, window: str) -> int:
        """Where to cut what is too long: after the last pause, or before the last number, Latin or Chinese word."""
        if pauses := [found.end() for found in _PAUSE.finditer(window)]:
            return pauses[-1]
        if run := _RUN.search(window):
            return run.start() or len(window)
        *_, last = self.reader.segmenter.cut(window)
        return len(window) - len(last) or len(window)


def _check(text: str) -> None:
    wrong = [x for x in dict.fromkeys(unicodedata.normalize("NFC", text)) if not _speakable(x)]
    if wrong:
        raise Unspeakable(wrong)
    if not any(map(normalise, dict.fromkeys(text))):
        raise ValueError(f"There is nothing to say in {text[:20]!r}: give a text with words.")


def _speakable(character: str) -> bool:
    """Whether it has a reading, or is a mark that has none to have."""
    return readable(character) or all(x in " ,." or readable(x) for x in normalise(character))


def _spoken(word: Word) -> Iterator[tuple[str, str, str, str]]:
    """Phone, tone, place in the syllable and in the word, for every phone of a word."""
    said = [(phone, f"tone{syllable.tone}") for syllable in word for phone in phones(syllable.pinyin)]
    for i, (phone, tone) in enumerate(said):
        place = "word_begin" if i == 0 else "word_end" if i == len(said) - 1 else "word_middle"
        yield phone, tone, ("s_begin", "s_end")[i % 2], place


def phones(pinyin: str) -> tuple[str, str]:
    """Initial and final of a syllable without its tone, with v for ü and "r" at the end of one that 儿 colours."""
    initial, final = re.fullmatch("(zh|ch|sh|[bpmfdtnlgkhjqxrzcsyw]?)(.+)", pinyin).groups()
    coloured = "r" if final.endswith("r") and pinyin != "er" else ""
    final = final.removesuffix(coloured)
    if final == "i":
        final = "ii" if initial in ("z", "c", "s") else "ih" if initial in ("zh", "ch", "sh", "r") else "i"
    final = {"ui": "uei", "iu": "iou", "un": "uen"}.get(final, final)
    first = {"x": "xx_c", "": f"g{final[0]}"}.get(initial, f"{initial}_c")
    return first, f"{final}{coloured}_c"
