"""The speech that is learned from: Kokoro's letters for our phones, who speaks, and files that are made once."""

import numpy as np
import pytest

from notebooks.gpt_sovits.data import sentences, speech
from notebooks.gpt_sovits.pipeline.frontend import Piece
from utils.speech.kokoro_teacher import Utterance

SYMBOLS = tuple(sorted({*speech.MARKS, *speech.CONSONANTS, "AH0", "AH1", "OW1", "zh", "ong1", "UNK"}))
NAMES = [f"{x}{sex}_{i}" for x in "abefz" for sex in "fm" for i in range(3)] + list(speech.UNSEEN)


class Frontend:
    """Reads every consonant of an English word as one, other letters as a vowel, and every Chinese character alike."""

    symbols = SYMBOLS

    def pieces(self, text: str, language: str) -> list[Piece]:
        if language == "zh":
            text = text.replace("，", ",").replace("。", ".").replace("？", "?").replace("！", "!")
            found = [[x] if x in ",.?!" else ["zh", "ong1"] for x in text]
        else:
            text = text.replace("Mr. ", "Mister ")
            found = [
                [x.upper() if x.upper() in speech.CONSONANTS else "AH1" if x.isalpha() else x] for x in text if x > " "
            ]
            found = [read for read in found if read != ["'"] and read != [";"]]
        phones = np.array([SYMBOLS.index(symbol) for read in found for symbol in read])
        return [Piece(language, text, phones, np.array([len(x) for x in found]) if language == "zh" else None)]


@pytest.mark.parametrize(
    ("symbols", "spaces", "letters"),
    [
        ("HH AH0 L OW1 ,", [3], "həlˈO, "),
        ("B ER1 D Z ER0 .", [3], "bˈɜɹdz əɹ."),
        ("JH OY2 ?", [], "ʤˌY."),
        ("w o3 m en5 y van2 ,", [1, 3], "wo↓ mən ɥɛ↗n, "),
        ("y En4 zh ir1 z i02 EE er4 AA an1", [], "jɛ↘nꭧɨ→ʦɨ↗ɚ↘a→n"),
        ("l iu4 x ve2 OO o5 y i1 w u3 w ei4 y ong3", [], "ljou↘ɕɥe↗ɔi→u↓wei↘jʊ↓ŋ"),
    ],
)
def test_phones_are_spelled_in_the_letters_of_kokoro(symbols, spaces, letters):
    found = speech.kokoro_letters(symbols.split(), spaces)
    assert "".join(found) == letters and len(found) == len(symbols.split())


@pytest.mark.parametrize("symbols", ["UNK", "zh zh", "b vn", "y", "ong1"])
def test_what_is_of_neither_language_is_refused(symbols):
    with pytest.raises(ValueError, match="Leave the sentence out"):
        speech.kokoro_letters(symbols.split())


def test_words_are_apart_where_the_front_end_reads_them_alike():
    line = speech.read(Frontend(), "No bed, sir.", "en")
    assert "".join(line.letters) == "nˈʌ bˈʌd, sˈʌɹ." and len(line.letters) == len(line.phones)
    chinese = speech.read(Frontend(), "天气好。", "zh")
    assert "".join(chinese.letters) == "ꭧʊ→ŋꭧʊ→ŋ ꭧʊ→ŋ." and chinese.word2ph.tolist() == [2] * 3 + [1]
    assert speech.read(Frontend(), "Mr. Bed.", "en") is None  # read otherwise word by word


def test_unseen_voices_are_in_no_voice_of_training():
    voices = speech.training_voices(NAMES)
    used = {name for voice in voices for name in (*voice.shares, *voice.prosody.values())}
    assert not used & set(speech.UNSEEN) and len({voice.name for voice in voices}) == 18 + speech.MIXTURES
    assert voices == speech.training_voices(NAMES[::-1])
    for voice in voices:
        assert {name[1] for name in (*voice.shares, *voice.prosody.values())} == {voice.sex}
        assert sum(voice.shares.values()) == pytest.approx(1)
        assert all(voice.prosody[language][0] in native for language, native in speech.NATIVE.items())
    strangers = speech.unseen_voices(NAMES)
    assert [voice.name for voice in strangers] == list(speech.UNSEEN)
    assert {name for voice in strangers for name in voice.prosody.values()} <= set(speech.UNSEEN)
    assert all(voice.prosody[x][0] in speech.NATIVE[x] for voice in strangers for x in sentences.LANGUAGES)
    with pytest.raises(ValueError, match="no voices af_bella"):
        speech.unseen_voices(NAMES[:-6])


def test_a_style_has_its_own_timbre_and_the_prosody_of_its_language():
    styles = {name: np.full((4, 256), i + 1.0) for i, name in enumerate("abcd")}
    voice = speech.TeacherVoice("x", "f", {"a": 0.25, "c": 0.75}, {"en": "b", "zh": "d"})
    for language, prosody in (("en", 2), ("zh", 4)):
        found = speech.style(styles, voice, language)
        assert (found[:, :128] == 2.5).all() and (found[:, 128:] == prosody).all()
    assert (styles["b"] == 2).all()


def test_held_out_sentences_and_voices_are_not_said_in_training(monkeypatch):
    few = {
        "en": ["No bed, sir.", *(f"Bed{'s' * i}." for i in range(1, 50))],
        "zh": [f"{'天' * i}。" for i in range(1, 51)],
    }
    monkeypatch.setattr(speech, "training_sentences", lambda language, count, seed: few[language][:count])
    monkeypatch.setattr(speech, "SENTENCES", 72)
    planned = speech.plan(Frontend(), NAMES)
    said = {(line.language, line.text) for line, _ in planned["speech"].values()}
    assert len(said) == len(planned["speech"]) == 72
    held = {(line.language, line.text) for line, _ in planned["trials"].values()}
    assert len(held) == 2 * speech.TRIALS and not held & said
    assert {voice.name for _, voice in planned["trials"].values()} == set(speech.UNSEEN)
    counts = [
        sum(v.name == voice.name and line.language == x for line, v in planned["speech"].values())
        for voice in speech.training_voices(NAMES)
        for x in sentences.LANGUAGES
    ]
    assert set(counts) == {1}


def test_english_sentences_are_many_and_none_is_held_out():
    found = sentences.training_sentences("en", 500)
    assert len(set(found)) == 500 and not set(found) & set(sentences.HELD_OUT["en"])
    assert found[:200] == sentences.training_sentences("en", 200)
    assert not any("{" in text for text in found)
    assert len({word for text in found for word in text.lower().strip(".?").split()}) > 1000


def test_frequent_words_are_known_and_in_order():
    found = sentences.frequent_words()
    assert len(found) > sentences.FREQUENT_WORDS
    assert found.index("clear") < found.index("stable") < found.index("asteroids")
    assert not {"sch", "pql", "the's"} & {*found} and {*found[:2000]} > {"answer", "water", "people"}


class Teacher:
    """Says a frame for every phone; counts what it says."""

    said = 0
    styles = {"a": np.zeros((4, 256)), "b": np.ones((4, 256))}

    def __call__(self, letters: list[str], style: np.ndarray, rate: int) -> Utterance:
        Teacher.said += 1
        assert rate == speech.SAMPLE_RATE_HZ
        samples = np.full(400 * len(letters), 0.5 * style[0, 0], np.float32)
        return Utterance(samples, np.ones(len(letters), np.int64), np.zeros(len(letters), np.float32))


def test_what_was_said_is_not_said_again(monkeypatch, tmp_path):
    monkeypatch.setattr(speech, "Teacher", Teacher)
    line = speech.read(Frontend(), "天气好。", "zh")
    voices = [speech.TeacherVoice(name, "f", {name: 1.0}, {"zh": name}) for name in "ab"]
    said = {3: (line, voices[0]), 7: (line, voices[1])}
    speech.record(tmp_path, {3: said[3]})
    speech.record(tmp_path, said)
    assert Teacher.said == 2 and sorted(x.name for x in tmp_path.iterdir()) == ["0003.npz", "0007.npz"]
    first, second = speech.load_recordings(sorted(tmp_path.iterdir()))
    assert (first.voice, first.language, first.text) == ("a", "zh", "天气好.")
    assert np.array_equal(first.phones, line.phones) and np.array_equal(first.word2ph, line.word2ph)
    assert not first.sound.any() and np.allclose(second.sound, 0.5, atol=1e-4) and len(second.sound) == 400 * 7
    assert len(second.hubert_sound) == 200 * 7 and second.hubert_sound[700] == pytest.approx(0.5, abs=0.01)
    assert second.frames.tolist() == [1] * 7


class Here:
    """Runs at once what is given to a pool of processes."""

    def __init__(self, workers: int, mp_context) -> None:
        pass

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *error) -> None:
        pass

    def submit(self, call, *given) -> "Here":
        call(*given)
        return self

    def result(self) -> None:
        pass


def test_a_corpus_is_made_once(monkeypatch, tmp_path):
    line = speech.read(Frontend(), "天气好。", "zh")
    voices = [speech.TeacherVoice(name, "f", {name: 1.0}, {"zh": name}) for name in "ab"]
    planned = {"speech": {i: (line, voices[i % 2]) for i in range(5)}, "trials": {0: (line, voices[1])}}
    monkeypatch.setattr(speech, "plan", lambda frontend, names: planned)
    monkeypatch.setattr(speech, "Teacher", Teacher)
    monkeypatch.setattr(speech, "ProcessPoolExecutor", Here)
    made = speech.make_speech(tmp_path, Frontend)
    monkeypatch.delattr(speech, "plan")  # all is there: nobody asks again
    for found in (made, speech.make_speech(tmp_path, Frontend)):
        assert [[x.voice for x in part] for part in found] == [["a", "b", "a", "b", "a"], ["b"]]
