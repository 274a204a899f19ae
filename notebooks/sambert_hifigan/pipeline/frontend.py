"""An open front end for Mandarin: it turns text into the symbols that SAMBERT reads.

The authors' front end is closed; this one writes the same symbols, `{phoneme$tone$syllable_flag$word_segment$emotion$
speaker}`. A syllable has two of them, its initial and its final. Breaks are symbols, too: #1 stands between prosodic
words, #3 for a comma, #4 at the end of a sentence. #2 is not predicted. The folder `mandarin` reads the text; it needs
pypinyin, jieba and cn2an.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from . import mandarin
from .mandarin import LETTERS, Foot, Reader, Word, readable

MAX_CHARACTERS = 80  # of a sentence: its symbols stay within the 800 positions of a released encoder
SPECIAL = ("_", "~", "@[MASK]")  # at the end of every table: padding, end, mask
PHONEMES = """
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
_BREAKS = str.maketrans("!?…—-", "..,, ")  # marks as a full stop, a comma or a border of words


class Unspeakable(ValueError):
    """A text has characters without a reading. `characters` lists each of them once."""

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

    sy: str  # initial, final or break
    tone: str
    syllable_flag: str
    word_segment: str
    emotion: str
    speaker: str

    def __str__(self) -> str:
        return "{" + "$".join(self) + "}"

    @classmethod
    def parse(cls, text: str) -> Symbol:
        """The inverse of `str`. Raises ValueError for other text."""
        fields = text.removeprefix("{").removesuffix("}").split("$")
        if text[:1] + text[-1:] != "{}" or len(fields) != len(cls._fields):
            raise ValueError(f"{text!r} is no symbol: it has the form {{{'$'.join(cls._fields)}}}.")
        return cls(*fields)


def normalise(text: str) -> str:
    """The text as it is pronounced: Chinese characters, capital Latin letters, spaces, and "," and "." for pauses.

    An unknown character stays as it is, and `Unspeakable` reports it.
    """
    text = mandarin.normalise(text, latin="letters").translate(_BREAKS)
    text = re.sub(r"[ ,.]*\.[ ,.]*", ".", text)
    return re.sub(r" *,[ ,]*", ",", re.sub(" +", " ", text)).strip(" ,.")


def standard_tables(speakers: Sequence[str], mask: bool = True) -> dict[str, list[str]]:
    """The tables of the released checkpoints: the entries of every stream, in the order of their ids.

    speakers: the `speaker_list` of the checkpoint's config. mask: False for early checkpoints, whose embeddings have
    one row less.
    """
    tables = {
        "sy": [f"@{phoneme}" for phoneme in PHONEMES.split()],
        "tone": ["tone1", "tone_none", "tone4", "tone2", "tone3", "tone5", "tone0"],
        "syllable_flag": ["s_begin", "s_end", "s_none", "s_both", "s_middle"],
        "word_segment": ["word_begin", "word_end", "word_middle", "word_both", "word_none"],
        "emotion": [f"emotion_{emotion}" for emotion in EMOTIONS.split()],
        "speaker": list(speakers),
    }
    return {stream: entries + list(SPECIAL[: 3 if mask else 2]) for stream, entries in tables.items()}


class Frontend:
    """Turns Mandarin text into the symbols and ids of a checkpoint.

    tables: as `standard_tables` returns them. Construction reads the dictionary of words, which takes about a second.
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
        """Yield the sentences of a text that have words. A sentence of more than MAX_CHARACTERS is cut.

        The call checks the whole text: it raises ValueError for a text without words, and Unspeakable for characters
        without a reading.
        """
        _check(text)
        return self._pieces(text)

    def symbols(self, sentence: str, speaker: str = "F7", emotion: str = "neutral") -> list[Symbol]:
        """The symbols of a sentence; the last one is #4.

        Raises ValueError for a sentence without words, and Unspeakable for characters without a reading.
        """
        voice = f"emotion_{emotion}", speaker
        silence = "tone_none", "s_none", "word_none", "emotion_none", speaker
        symbols: list[Symbol] = []
        for feet, pause in self.read(sentence):
            for i, foot in enumerate(feet):
                if i:
                    symbols.append(Symbol("#1", *silence))
                symbols += [Symbol(*fields, *voice) for word in foot for fields in _word_symbols(word)]
            symbols.append(Symbol(pause, *silence))
        return symbols

    def read(self, sentence: str) -> list[tuple[list[Foot], str]]:
        """The phrases of a sentence, as prosodic words (`Foot`), each with the break after it."""
        _check(sentence)
        parts = re.split("([,.])", normalise(sentence))
        breaks = {",": "#3", ".": "#4"}
        pauses = [*(breaks[mark] for mark in parts[1::2]), "#4"]
        return [(self.reader.read(phrase), pause) for phrase, pause in zip(parts[::2], pauses, strict=True)]

    def ids(self, symbols: Sequence[Symbol]) -> dict[str, list[int]]:
        """The input streams of the acoustic model, with one id per symbol.

        The files of the authors end with a symbol "~", which is left out here. Raises ValueError for a symbol that is
        not in the tables of the checkpoint.
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
            match = _END.search(text, start)
            end = match.end() if match else len(text)
            while start < end:
                stop = end if end - start <= MAX_CHARACTERS else start + self._cut(text[start : start + MAX_CHARACTERS])
                if normalise(piece := text[start:stop].strip()):
                    yield piece
                start = stop

    def _cut(self, window: str) -> int:
        """Where to cut a long sentence: after the last pause, or before the last number, Latin or Chinese word."""
        if pauses := [match.end() for match in _PAUSE.finditer(window)]:
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
    """Whether a character has a reading, or is a mark that needs none."""
    return all(x in " ,." or x in LETTERS or readable(x) for x in normalise(character))


def _word_symbols(word: Word) -> Iterator[tuple[str, str, str, str]]:
    """The first four fields of every symbol of a word: phoneme, tone, place in the syllable, place in the word."""
    phonemes = [
        (phoneme, f"tone{syllable.tone}") for syllable in word for phoneme in initial_and_final(syllable.pinyin)
    ]
    for i, (phoneme, tone) in enumerate(phonemes):
        place = "word_begin" if i == 0 else "word_end" if i == len(phonemes) - 1 else "word_middle"
        yield phoneme, tone, ("s_begin", "s_end")[i % 2], place


def initial_and_final(pinyin: str) -> tuple[str, str]:
    """Initial and final of a syllable, as the table `sy` names them.

    pinyin: without the tone, with v for ü, and with "r" at the end of an er-coloured syllable.
    """
    initial, final = re.fullmatch("(zh|ch|sh|[bpmfdtnlgkhjqxrzcsyw]?)(.+)", pinyin).groups()
    coloured = "r" if final.endswith("r") and pinyin != "er" else ""
    final = final.removesuffix(coloured)
    if final == "i":
        final = "ii" if initial in ("z", "c", "s") else "ih" if initial in ("zh", "ch", "sh", "r") else "i"
    final = {"ui": "uei", "iu": "iou", "un": "uen"}.get(final, final)
    first = {"x": "xx_c", "": f"g{final[0]}"}.get(initial, f"{initial}_c")
    return first, f"{final}{coloured}_c"
