"""The voices that the lesson clones: recordings that will do, of those who are in no training and of others."""

import numpy as np
import pytest

from notebooks.gpt_sovits.data import speech
from notebooks.gpt_sovits.data.sentences import HELD_OUT, training_sentences
from notebooks.gpt_sovits.data.voices import OWNERS, read_voices
from notebooks.gpt_sovits.pipeline import audio_io
from notebooks.gpt_sovits.pipeline.frontend import Frontend
from notebooks.gpt_sovits.training import samples
from utils.speech.kokoro_teacher import Utterance

VOICES, FRONTEND = read_voices(), Frontend()


def test_all_voices_that_no_training_has_are_there_and_as_many_others():
    new = {voice.name.removeprefix("new_") for voice in VOICES if voice.new}
    assert new == set(speech.UNSEEN)
    assert {voice.name for voice in VOICES if not voice.new} == set(samples.KNOWN)


@pytest.mark.parametrize("voice", VOICES, ids=lambda voice: voice.name)
def test_a_recording_will_do_and_its_words_are_what_is_said(voice):
    heard = audio_io.read(voice.recording)
    phones = sum(len(piece.phones) for piece in FRONTEND.pieces(voice.words, voice.language))
    assert heard.notes == heard.check_words(phones) == []


def test_no_words_are_learned_or_asked_for():
    words = [voice.words for voice in VOICES]
    assert len(set(words)) == len(words) and set(words) == {x for texts in samples.WORDS.values() for x in texts}
    for language in HELD_OUT:
        learned = training_sentences(language, 2 * speech.SENTENCES, speech.SEED)
        assert not {*words} & {*HELD_OUT[language], *learned}


class Teacher:
    """Hums in place of every sentence."""

    styles = {name: np.zeros((510, 256), np.float32) for name in (*speech.UNSEEN, *samples.KNOWN, "am_adam", "af_sky")}

    def __call__(self, letters, style, rate):
        times = np.arange(4 * rate) / rate
        return Utterance(np.float32(0.1 * np.sin(2 * np.pi * 200 * times)), np.zeros(0, np.int64), np.zeros(0))


def test_every_voice_says_a_sentence_of_its_own(tmp_path):
    samples.record(Teacher(), tmp_path)
    assert [(x.name, x.words) for x in read_voices(tmp_path)] == [(x.name, x.words) for x in VOICES]


def test_a_sound_is_shown_only_when_every_word_is_understood():
    for shown, same, other in (
        (samples.SHOWN[0], " i have never said these words", "I never said I said these words."),
        (samples.SHOWN[1], "我们明天再见", "我们今天再见。"),
    ):
        samples.check_understood(np.zeros(9), shown, lambda sound, text=same: text)
        with pytest.raises(ValueError, match=f"in place of '{shown.text}' in the voice {shown.voice}"):
            samples.check_understood(np.zeros(9), shown, lambda sound, text=other: text)


def test_what_is_shown_is_in_no_training_and_its_owner_says_it():
    for shown in samples.SHOWN:
        assert shown.text not in training_sentences(shown.language, 2 * speech.SENTENCES, speech.SEED)
        assert (OWNERS / f"{shown.voice}.mp3").is_file() and shown.voice in samples.KNOWN


def test_voices_have_names_for_people():
    labels = {voice.name: voice.label for voice in VOICES}
    assert labels["new_bm_george"] == "George, British man" and labels["zf_xiaobei"] == "Xiaobei, Chinese woman"
    assert labels["mixture0"] == "Mixture 0" and len(set(labels.values())) == len(VOICES)
