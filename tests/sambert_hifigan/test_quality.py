"""Quality rows: good speech passes, negative controls fail, and the reference is the pipeline in PyTorch."""

from types import SimpleNamespace

import numpy as np
import pytest

from notebooks.sambert_hifigan import data
from notebooks.sambert_hifigan.measuring import quality
from notebooks.sambert_hifigan.network.reference import Reference
from notebooks.sambert_hifigan.pipeline import FP32_PROPERTIES, Synthesizer
from tests import examinations
from tests.sambert_hifigan.small import KINDS, NAMES
from utils import compare, paths, report
from utils.speech import judging
from utils.speech.sentences.mandarin import HELD_OUT
from utils.speech.speaker_encoder import SAMPLE_RATE

VOICES = {name: np.eye(8, 256, dtype=np.float32)[i] for i, name in enumerate(("Anna", "Bao", "Chen"))}
TRIALS = data.trials(list(VOICES), 6)


class Toy:
    """Says trial i with a hum of 100 Hz times i + 1, by which it is known; the first `wrong` ones hum otherwise, and so
    does any other text."""

    def __init__(self, wrong: int = 0) -> None:
        self.wrong = wrong

    def mels(self, text: str, speaker: str):
        number = TRIALS.index((text, speaker)) if (text, speaker) in TRIALS else -1
        yield np.full((4, 9), number + 1 if number >= self.wrong else 8)

    def synthesize(self, trial: data.Trial) -> np.ndarray:
        return np.concatenate([self.vocode(mel) for mel in self.mels(*trial)])

    def vocode(self, mel: np.ndarray) -> np.ndarray:
        pitch, times = 100 * mel[0, 0], np.arange(int(1.3 * SAMPLE_RATE)) / SAMPLE_RATE
        return (sum(np.sin(2 * np.pi * f * times) / f for f in range(pitch, 8000, pitch)) * 40).astype(np.float32)


def number_of(sound: np.ndarray) -> int:
    """The hum's number."""
    return round(np.abs(np.fft.rfft(sound[:SAMPLE_RATE])).argmax() / 100)


def recognise(piece: np.ndarray) -> str:
    length = int(1.3 * SAMPLE_RATE) + int(judging.GAP_S * SAMPLE_RATE)
    numbers = [number_of(piece[start : start + SAMPLE_RATE]) for start in range(0, len(piece), length)]
    return "。".join(TRIALS[n - 1].text if n <= len(TRIALS) else "嗯" for n in numbers)


class Voiceprint:
    def embed(self, sound: np.ndarray) -> np.ndarray:
        number = number_of(sound)
        return VOICES[TRIALS[number - 1].speaker] if number <= len(TRIALS) else np.eye(8, 256)[7]


def opinion(sound: np.ndarray) -> float:
    """A hum that never changes is good."""
    change = sound[160:] - sound[:-160]  # in a hundredth of a second
    return 4 - 3 * float(np.linalg.norm(change) / np.linalg.norm(sound))


@pytest.fixture(scope="module")
def judge() -> quality.Judge:
    return quality.Judge(TRIALS, recognise, Voiceprint(), opinion, VOICES)


def test_one_voice_alone_cannot_be_judged():
    with pytest.raises(ValueError, match="One voice alone is always the right one"):
        quality.Judge(TRIALS[:1], recognise, Voiceprint(), opinion, VOICES)


def test_held_out_sentences_are_said_by_all_voices_in_turn():
    trials = data.trials(["a", "b", "c"])
    assert len(trials) == len(HELD_OUT) and trials[4] == (HELD_OUT[4], "b")
    assert len(data.trials(["a"], 5)) == 5


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("3点20分", "三点二十分"),
        ("花了50块钱，是吗？", "花了五十块钱是吗"),
        ("气温25°C", "气温二十五摄氏度"),
        ("我在kfc。", "我在KFC"),
        ("你好 , 再见!", "你好，再见！"),
    ],
)
def test_what_is_only_written_differently_is_the_same(written, same):
    assert quality.characters(written) == quality.characters(same) != []


def test_what_sounds_alike_has_the_same_syllables():
    assert quality.syllables("她在公园") == quality.syllables("他再公圆") == ["ta", "zai", "gong", "yuan"]
    assert quality.syllables("請問") == quality.syllables("请问") and quality.characters("請") != ["请"]
    assert quality.syllables("买") == quality.syllables("卖") != quality.syllables("带")
    assert len(quality.syllables("去KFC吧")) == 5


def test_shuffled_texts_have_the_same_characters():
    text = HELD_OUT[0]
    mixed = quality.shuffled(text, np.random.default_rng(0))
    assert sorted(mixed) == sorted(quality.characters(text)) and list(mixed) != quality.characters(text)


def test_the_control_says_other_texts_in_other_voices(judge):
    assert [trial.speaker for trial in judge.controls] == ["Bao", "Chen", "Anna"] * 2
    for trial, control in zip(TRIALS, judge.controls, strict=True):
        assert sorted(control.text) == sorted(quality.characters(trial.text)) and control.text != trial.text

    class Deaf(Toy):  # says the trial, whatever it is told
        def mels(self, text: str, speaker: str):
            told = (text, speaker)
            yield from super().mels(*(TRIALS[judge.controls.index(told)] if told in judge.controls else told))

    rows = quality.table(judge, {"FP32": Deaf()}, Deaf())
    passing = {row["metric"] for row in rows if "control" in row and not compare.passes(row)}
    assert passing == {quality.CHARACTERS, quality.SYLLABLES, judging.RIGHT_VOICE, judging.SIMILARITY}


def test_the_table_passes_who_speaks_well_and_its_controls_lose(judge, tmp_path):
    rows = quality.table(judge, {"FP32": Toy(), "INT8": Toy()}, Toy())
    compare.check(rows)
    for metric, control in quality.CONTROLS.items():
        mine = [row for row in rows if row["metric"] == metric]
        assert [row["precision"] for row in mine if "control" not in row][:2] == ["FP32", "INT8"]
        assert [row["control"] for row in mine if "control" in row] == [control]
    rates = [row for row in rows if row["metric"] == quality.CHARACTERS and "control" not in row]
    assert {row["value"] for row in rates} == {0} and len(rates) == 3
    assert rates == [row for row in rows if row.get("goal") == quality.GOALS[quality.CHARACTERS]]
    report.save("sambert_hifigan", model="tiny", device="CPU", parity=[], quality=rows, speed=[], folder=tmp_path)


def test_a_spot_check_allows_more_errors_and_needs_no_opinion(tmp_path):
    judge = quality.Judge(TRIALS, recognise, Voiceprint(), None, VOICES)
    rows = quality.spot_check(judge, {"FP16": Toy()}, Toy())
    compare.check(rows)
    assert [row["metric"] for row in rows[::2]] == [x for x in quality.BETTER if x != judging.OPINION]
    assert [row.get("control") for row in rows[1::2]] == [quality.CONTROLS[row["metric"]] for row in rows[1::2]]
    assert {row["threshold"] for row in rows[:4]} == {0.2} and rows[6]["threshold"] == pytest.approx(1 - 0.02)
    assert list(judge.transcripts) == ["PyTorch", "FP16"]
    assert "。".join(text for _, text in judge.transcripts["FP16"]) == "。".join(judge.texts)
    report.save("sambert_hifigan", model="tiny", device="CPU", parity=[], quality=rows, speed=[], folder=tmp_path)
    rows = quality.spot_check(judge, {"FP16": Toy(wrong=2)}, Toy())
    failing = {row["metric"] for row in rows if compare.passes(row) is False}
    assert failing == set(quality.BETTER) - {judging.OPINION, judging.DISTANCE}


@pytest.mark.parametrize("kind", KINDS)
def test_a_voice_without_an_embedding_is_known_by_what_it_says(kind, checkpoints, irs, monkeypatch):
    monkeypatch.setattr(quality, "SAMPLE_TEXT", "你好。")
    reference = Reference(checkpoints[kind], Synthesizer(irs[kind], **FP32_PROPERTIES))
    sounds = []

    class Length:
        def embed(self, sound: np.ndarray) -> np.ndarray:
            sounds.append(len(sound))
            return np.full(256, len(sounds), np.float32)

    known = quality.known_voices(reference, Length())
    tiny = sorted(file.stem for file in paths.notebook_dir("notebooks.sambert_hifigan").glob("tiny/am/speakers/*.npy"))
    assert list(known) == [*tiny, *NAMES] and len(tiny) == 6
    assert [known[name][0] for name in NAMES] == [1, 2] and min(sounds) > 0
    assert {voice.shape for voice in known.values()} == {(256,)}


def test_the_examination_has_every_metric_and_the_stored_one_passes(judge, tmp_path):
    stubs = {
        "Synthesizer": lambda folder, **properties: SimpleNamespace(speakers=list(VOICES)),
        "ConvertedVoice": lambda synthesizer: Toy(),
        "Reference": lambda voice, synthesizer: Toy(),
        "known_voices": lambda *_: VOICES,
        "Voiceprint": lambda encoder: Voiceprint(),
        "trials": lambda speakers, count: TRIALS if count == quality.TRIALS else [],
        "listening.Recogniser": lambda folder: recognise,
        "listening.MOS": lambda path: opinion,
    }
    prepared = ("listening.prepare_recogniser", "listening.prepare_encoder", "convert.prepare", "convert.source")
    stubs |= dict.fromkeys((*prepared, "weights.fetch"), lambda *_: None)
    stored = examinations.check("sambert_hifigan", quality, stubs, tmp_path)
    assert {row["precision"] for row in stored} == {"FP32", "FP16", "PyTorch", None}


def test_the_table_fails_a_precision_that_is_wrong(judge):
    rows = quality.table(judge, {"FP32": Toy(), "INT8": Toy(wrong=3)}, Toy())
    failing = {(row["metric"], row["precision"]) for row in rows if compare.passes(row) is False}
    assert failing == {
        (metric, "INT8") for metric in quality.BETTER if metric not in (judging.OPINION, judging.DISTANCE)
    }


def test_a_reference_that_is_not_understood_fails_unless_its_teacher_is_not(judge, tmp_path):
    rows = quality.table(judge, {"FP32": Toy(wrong=1)}, Toy(wrong=1))
    failing = [row["metric"] for row in rows if compare.passes(row) is False]
    assert quality.CHARACTERS in failing and rows[-1]["value"] == rows[-1]["reference"] > quality.MAX_ERROR_RATE
    with pytest.raises(report.InvalidResults, match="out of reach of the reference"):
        report.save("sambert_hifigan", model="tiny", device="CPU", parity=[], quality=rows, speed=[], folder=tmp_path)
    rows = quality.table(judge, {"FP32": Toy(wrong=1)}, Toy(wrong=1), teacher=0.2)
    assert rows[-1]["threshold"] == 0.25 and [row["value"] for row in rows if row["precision"] == "the teacher"] == [
        0.2
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_says_what_the_pipeline_says(kind, checkpoints, irs):
    synthesizer = Synthesizer(irs[kind], **FP32_PROPERTIES)
    reference, voice = Reference(checkpoints[kind], synthesizer), quality.ConvertedVoice(synthesizer)
    for name in NAMES:
        trial = data.Trial("今天天气很好。", name)
        (mel,) = reference.mels(*trial)
        expected = reference.vocode(mel)
        (spoken,) = synthesizer.stream(*trial)
        assert np.abs(spoken.mel - mel).max() < 1e-3 * np.abs(mel).max()
        said, again = voice.synthesize(trial), voice.vocode(mel)
        assert len(said) == len(expected) == round(spoken.seconds * SAMPLE_RATE)
        assert np.abs(again - expected).max() < 2e-3 and np.abs(said - expected).max() < 3e-3
        assert expected.std() > 0.005
