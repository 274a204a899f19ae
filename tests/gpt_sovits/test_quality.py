"""The verdict on cloned voices: who speaks well passes, what must lose loses."""

from functools import partial

import numpy as np
import pytest

from notebooks.gpt_sovits.data.voices import Voice, read_voices
from notebooks.gpt_sovits.measuring import quality
from notebooks.gpt_sovits.measuring.quality import SAME, Trial
from notebooks.gpt_sovits.network.pytorch_cloner import PyTorchCloner
from notebooks.gpt_sovits.pipeline import Timings, Utterance, VoiceCloner
from tests import examinations
from tests.gpt_sovits import standin
from utils import compare, report
from utils.models import llm, parts
from utils.speech.judging import DISTANCE, GAP_S, OPINION, RIGHT_VOICE, SIMILARITY
from utils.speech.speaker_encoder import SAMPLE_RATE

SENTENCES = {
    "en": ("It is seven o'clock, Mister Smith.", "Open the window.", "Where is my coat?"),
    "zh": ("今天天气很好。", "请把窗户关上。", "我的手机没电了。"),
}
TEXTS = [text for texts in SENTENCES.values() for text in texts]
MUMBLE = 9  # in place of a sentence's number
LENGTH = int(1.3 * SAMPLE_RATE)


def hum(number: int, voice: int, length: int = LENGTH) -> np.ndarray:
    """A hum of 100 Hz times a sentence's number, which has a low tone for each voice."""
    times = np.arange(length) / SAMPLE_RATE
    tones = sum(np.sin(2 * np.pi * f * times) / f for f in range(100 * number, 8000, 100 * number))
    return (40 * tones + 0.1 * np.sin(2 * np.pi * (30 + 10 * voice) * times)).astype(np.float32)


def loudest(sound: np.ndarray, lowest: int, highest: int) -> int:
    """Hz."""
    return lowest + int(np.abs(np.fft.rfft(sound[:SAMPLE_RATE]))[lowest:highest].argmax())


VOICES = [
    Voice(name, (hum(7, i, 4 * SAMPLE_RATE), SAMPLE_RATE), "What I say.", "en", new)
    for i, (name, new) in enumerate({"Anna": False, "Bao": False, "new_Chen": True}.items())
]
TRIALS = quality.trials(VOICES, SENTENCES, 3)


class Toy:
    """Tokens are a sentence's number; the first `wrong` trials are mumbled in a voice that nobody has."""

    def __init__(self, wrong: int = 0) -> None:
        self.wrong = wrong

    def stream(self, text, recording, words, language, spoken, *, seed, split, tokens=None, change=None, top_k=20):
        assert (words, spoken, split) == ("What I say.", "en", "none") and language in SENTENCES
        (voice,) = (i for i, x in enumerate(VOICES) if x.recording is recording)
        number = 1 + TEXTS.index(text)
        if TRIALS[seed].text != text or seed < self.wrong:
            number, voice = MUMBLE, 6
        phones = np.arange(20)
        if change is not None and (change([standin.Piece("en", text, phones, None)])[0].phones != phones).any():
            number = MUMBLE
        said = np.full(12, number) if tokens is None else tokens[0]
        yield Utterance(text, hum(int(said[0]), voice), SAMPLE_RATE, said, Timings())


def recognise(piece: np.ndarray) -> str:
    starts = range(0, len(piece), LENGTH + int(GAP_S * SAMPLE_RATE))
    numbers = [loudest(piece[start : start + SAMPLE_RATE], 95, 1000) // 100 for start in starts]
    return " ".join("hm" if n == MUMBLE else TEXTS[n - 1] for n in numbers)


class Voiceprint:
    def embed(self, sound: np.ndarray) -> np.ndarray:
        return np.eye(8, 256)[round((loudest(sound, 25, 95) - 30) / 10)]


def opinion(sound: np.ndarray) -> float:
    """A hum that never changes is good."""
    change = sound[160:] - sound[:-160]  # in a hundredth of a second
    return 4 - 3 * float(np.linalg.norm(change) / np.linalg.norm(sound))


@pytest.fixture(scope="module")
def judge() -> quality.Judge:
    return quality.Judge(TRIALS, dict.fromkeys(SENTENCES, recognise), Voiceprint(), opinion)


def test_sentences_of_every_language_are_said_by_all_voices_in_turn():
    assert [trial.voice.name for trial in TRIALS] == ["Anna", "Bao", "new_Chen"] * 2
    assert [(trial.text, trial.language) for trial in TRIALS[2:4]] == [("Where is my coat?", "en"), (TEXTS[3], "zh")]
    assert len(quality.trials(VOICES, SENTENCES, 2)) == 4
    again = quality.trials(VOICES, {"en": SENTENCES["en"]}, 6)[3:]
    assert [(x.text, x.voice.name) for x in again] == list(
        zip(SENTENCES["en"], ("Bao", "new_Chen", "Anna"), strict=True)
    )


def test_voices_are_recordings_with_their_words(tmp_path):
    with pytest.raises(ValueError, match="has no recordings"):
        read_voices(tmp_path)
    for name, words in (("new_b", "今天天气很好。\n"), ("a", "Open the window.")):
        (tmp_path / f"{name}.mp3").write_bytes(b"")
        (tmp_path / f"{name}.txt").write_text(words, encoding="utf-8")
    one, two = read_voices(tmp_path)
    assert one == Voice("a", tmp_path / "a.mp3", "Open the window.", "en")
    assert two == Voice("new_b", tmp_path / "new_b.mp3", "今天天气很好。", "zh", True)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(ValueError, match=r"a\.mp3 has no a\.txt"):
        read_voices(tmp_path)


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("It's late, Mister Smith!", "it is late mr. smith"),
        ("We didn't see twenty-three cats.", "We did not see 23 cats"),
        ("Two hundred dollars", "$200"),
        ("WELL-KNOWN facts...", "well known facts"),
    ],
)
def test_words_that_are_only_written_differently_are_the_same(written, same):
    assert quality.words(written) == quality.words(same) != []


def test_other_words_are_others():
    assert quality.words("The cat sat.") == ["the", "cat", "sat"] != quality.words("The hat sat.")


@pytest.mark.parametrize(
    ("ours", "theirs", "share"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 1),
        ([1, 2, 9, 4], [1, 2, 3, 4], 0.5),
        ([1, 2], [1, 2, 3, 4], 0.5),
        ([9], [1], 0),
        ([1, 2, 3, 4, 5], [1], 0.2),
    ],
)
def test_tokens_agree_until_the_first_that_differs(ours, theirs, share):
    assert quality.agreement(ours, theirs) == share


def test_jumbled_phones_are_the_same_in_another_order():
    pieces = standin.Frontend("v2").pieces("Good morning to you. 你好你好你好", "auto")
    mixed = quality.shuffled_phonemes(np.random.default_rng(0))(pieces)
    for piece, other in zip(pieces, mixed, strict=True):
        assert sorted(piece.phones) == sorted(other.phones) and piece.phones.tolist() != other.phones.tolist()
        assert piece.text == other.text and piece.word2ph is other.word2ph


@pytest.mark.parametrize(
    ("metric", "precision", "model", "wanted", "threshold"),
    [
        (quality.WORDS, "FP16", "tiny", 0.4, 0.6),
        (quality.WORDS, "FP16", "tiny", 0.6, 0.7),
        (quality.CHARACTERS, "INT4", "released", 0.3, 0.2),
        (RIGHT_VOICE, "INT8", "released", 0.7, 0.8),
        (SIMILARITY, "INT8", "released", 0.85, 0.8),
        (OPINION, "INT8", "released", 3.0, 2.85),
        (SAME, "INT8", "released", 1.0, 0.1),
        (DISTANCE, "INT8", "released", 0.0, 3.0),
    ],
)
def test_goals_are_near_pytorch_and_no_worse_than_the_aims(metric, precision, model, wanted, threshold):
    assert quality.threshold(metric, precision, wanted, quality.TARGETS[model]) == pytest.approx(threshold)


def test_who_cannot_be_judged_is_told():
    with pytest.raises(ValueError, match="One voice alone is always the right one"):
        quality.Judge(TRIALS[:1], {"en": recognise}, Voiceprint(), opinion)
    for trials in (TRIALS, [*TRIALS[:3], Trial("これ", "ja", VOICES[0])]):
        with pytest.raises(ValueError, match=f"Nobody listens to {trials[-1].language}."):
            quality.Judge(trials, {"en": recognise, "ja": recognise}, Voiceprint(), opinion)


def test_every_sound_is_heard_as_loud(judge):
    levels = []

    class Listening(Voiceprint):
        def embed(self, sound):
            levels.append(20 * np.log10(np.sqrt(np.square(sound).mean())))
            return super().embed(sound)

    other = quality.Judge(TRIALS, judge.recognise, Listening(), opinion)
    other.similarity([scale * hum(1, 0) for scale in (0.01, 0.1, 1, 2, 3, 4)])
    assert len(levels) == 9 and np.ptp(levels) < 1e-3


def test_known_and_new_voices_are_told_apart(judge):
    found = judge.measure([hum(i + 1, i % 3) for i in range(6)])
    for group in (quality.KNOWN, quality.NEW):
        assert found[RIGHT_VOICE, group] == found[SIMILARITY, group] == 1
    found = judge.similarity([hum(1, 0)] * 6)
    assert found[RIGHT_VOICE, quality.KNOWN] == 0.5 and found[RIGHT_VOICE, quality.NEW] == 0


def test_the_control_has_the_same_sentences_and_other_recordings(judge):
    assert [(trial.text, trial.voice.name) for trial in judge.others[:3]] == list(
        zip(SENTENCES["en"], ("Bao", "new_Chen", "Anna"), strict=True)
    )
    table = quality.table(judge, {"FP16": Toy}, Toy(), quality.TARGETS["released"])
    values = [row["value"] for row in table if row.get("control") == "another voice's recording"]
    assert values == [0, 0]

    class Deaf(Toy):  # clones the right voice, whatever recording it is given
        def stream(self, text, recording, *arguments, seed, **options):
            yield from super().stream(text, TRIALS[seed].voice.recording, *arguments, seed=seed, **options)

    table = quality.table(judge, {"FP16": Deaf}, Deaf(), quality.TARGETS["released"])
    passing = [row for row in table if row.get("control") == "another voice's recording"]
    assert [row["value"] for row in passing] == [1, 1] and not any(map(compare.passes, passing))


def test_what_is_not_understood_is_an_error_of_its_language(judge):
    """All that is said in Mandarin is mumbled."""
    found = judge.errors([hum(i + 1 if trial.language == "en" else MUMBLE, 0) for i, trial in enumerate(TRIALS)])
    assert found == {(quality.WORDS, ""): 0, (quality.CHARACTERS, ""): 1}


def test_a_sound_is_compared_with_the_voices_of_all_recordings(judge):
    for i, voice in enumerate(VOICES):
        expected = {other.name: float(other is voice) for other in VOICES}
        assert judge.cosines(hum(3, i)) == expected


def test_the_table_passes_who_speaks_well_and_its_controls_lose(judge, tmp_path):
    rows = quality.table(judge, {"FP16": Toy, "INT4": Toy}, Toy(), quality.TARGETS["released"])
    compare.check(rows)
    metrics = {row["metric"]: row["control"] for row in rows if "control" in row}
    known, new = ({f"{x}, {group}" for x in (RIGHT_VOICE, SIMILARITY)} for group in (quality.KNOWN, quality.NEW))
    assert set(metrics) == known | quality.BETTER.keys() - {RIGHT_VOICE, SIMILARITY}
    reported = {(row["metric"], row["precision"]) for row in rows if compare.passes(row) is None}
    assert reported == {(metric, precision) for metric in new for precision in ("FP16", "INT4")} | {(SAME, "INT4")}
    for metric in metrics:
        mine = [row for row in rows if row["metric"] == metric]
        assert [row["precision"] for row in mine] == ["FP16", "INT4", None] and "controls" in mine[-1]
        assert metrics[metric] == quality.CONTROLS[next(x for x in quality.BETTER if metric.startswith(x))]
    report.save("gpt_sovits", model="tiny", device="CPU", parity=[], quality=rows, speed=[], folder=tmp_path)


def test_the_table_fails_a_precision_that_is_wrong(judge):
    rows = quality.table(judge, {"FP16": Toy, "INT8": partial(Toy, wrong=6)}, Toy(), quality.TARGETS["released"])
    failing = {(row["metric"].partition(", ")[0], row["precision"]) for row in rows if compare.passes(row) is False}
    wrong = ("word error rate", "character error rate", RIGHT_VOICE, SIMILARITY, SAME)
    assert failing == {(metric, "INT8") for metric in wrong}


def test_a_reference_that_is_not_understood_fails(judge, tmp_path):
    rows = quality.table(judge, {"FP16": partial(Toy, wrong=6)}, Toy(wrong=6), quality.TARGETS["released"])
    assert any(row["metric"].startswith("word error rate") and compare.passes(row) is False for row in rows)
    with pytest.raises(report.InvalidResults, match="out of reach of the reference"):
        report.save("gpt_sovits", model="tiny", device="CPU", parity=[], quality=rows, speed=[], folder=tmp_path)


def test_pipeline_and_pytorch_are_judged_by_the_same_call(checkpoint, ir, voice, frontend):
    """Tokens of the one, said by the other, sound the same; another seed draws others."""
    cloner, pytorch = VoiceCloner(ir, **llm.FP32_PROPERTIES), PyTorchCloner(checkpoint)
    trial = Trial("今天天气很好。", "zh", Voice("someone", voice, "The words that are said here", "en"))
    said, tokens = quality.synthesize(cloner, trial, 3)
    again, same = quality.synthesize(pytorch, trial, 3, tokens=[tokens])
    assert tokens.tolist() == same.tolist() and len(said) == len(again) == 16 * 40 * len(tokens)
    assert np.abs(said - again).max() < 1e-3 * np.abs(said).max()
    shuffled = quality.shuffled_phonemes(np.random.default_rng(0))
    _, mixed = quality.synthesize(pytorch, trial, 3, change=shuffled, **quality.GREEDY)
    _, plain = quality.synthesize(pytorch, trial, 3, **quality.GREEDY)
    assert mixed.tolist() != plain.tolist()


def test_the_examination_has_every_precision_and_the_stored_one_passes(tmp_path, judge):
    stubs = {
        "PyTorchCloner": lambda checkpoint: Toy(),
        "read_voices": lambda: VOICES,
        "HELD_OUT": SENTENCES,
        "TRIALS": 3,
    }
    stubs |= {"prepared_judge": lambda trials: judge, "convert.prepare": lambda *_: None}
    stubs |= {"factories_of": lambda *_: dict.fromkeys(("FP32", *parts.PRECISIONS), Toy)}
    stubs |= {"weights.resolve": lambda *_: None}
    stored = examinations.check("gpt_sovits", quality, stubs, tmp_path)
    assert {row["precision"] for row in stored} == {"FP32", *parts.PRECISIONS, None}
