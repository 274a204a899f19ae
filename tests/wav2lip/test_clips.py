"""Clips: what training sees, and what it never sees."""

from fractions import Fraction

import numpy as np
import pytest

from notebooks.wav2lip.data import clips, heads
from notebooks.wav2lip.data.speech import HELD_OUT_VOICES, VOICES
from notebooks.wav2lip.pipeline.media import frame_rate, read_frames, sound_seconds
from utils.speech.espeak import Speech
from utils.speech.sentences.english import HELD_OUT, TRAINING


@pytest.fixture(scope="module")
def clip() -> clips.Clip:
    return clips.held_out_clip(0)


def test_every_frame_has_a_crop_a_mouth_and_a_whole_window_of_sound(clip):
    count = len(clip.faces)
    assert clip.faces.shape == (count, 96, 96, 3) and clip.faces.dtype == np.uint8
    assert clip.mouth.shape == (count, 3)
    assert clip.starts.tolist() == [int(i * 80 / 25) for i in range(count)]
    assert clip.windows(range(count)).shape == (count, 1, 80, 16)


def test_the_mouth_lies_in_the_half_that_is_masked(clip):
    assert (clip.place[:, 1] > 52).all() and (clip.place[:, 1] < 90).all()
    assert (np.abs(clip.place[:, 0] - 48) < 12).all()


def test_crops_show_the_mouth_where_they_say(clip):
    """There the pixels change from frame to frame, on the forehead they do not."""
    x, y = clip.place.mean(0).astype(int)
    change = np.abs(np.diff(clip.faces.astype(float), axis=0)).mean((0, 3))
    assert change[y - 3 : y + 6, x - 3 : x + 4].mean() > 2 * change[20:30, x - 3 : x + 4].mean()


def test_what_is_drawn_next_does_not_depend_on_the_length_of_the_sound(monkeypatch):
    def drawn(length: int) -> int:
        said = Speech("Hello", np.zeros(length, np.float32), [("h", 0.0, 1.0)])
        monkeypatch.setattr(clips, "synthesise", lambda *arguments, **options: said)
        rng = np.random.default_rng(5)
        noise = clips.synthesise_varied("Hello", VOICES, rng).samples
        assert len(noise) == length and noise.std() > 0
        return int(rng.integers(2**60))

    assert drawn(16000) == drawn(16001)


def test_nothing_held_out_is_trained_on():
    assert not set(TRAINING) & set(HELD_OUT)
    assert not set(VOICES) & set(HELD_OUT_VOICES)
    words = {word for sentence in TRAINING for word in sentence.split()}
    assert set(clips.shuffled_words(TRAINING, np.random.default_rng(0)).split()) <= words


def test_training_sees_drawn_heads_and_one_photo_but_never_the_other(monkeypatch):
    photos = []
    monkeypatch.setattr(heads, "photo_head", lambda photo, *_: photos.append(photo))
    monkeypatch.setattr(heads, "drawn_head", lambda seed: None)
    monkeypatch.setattr(clips, "astronaut", lambda: pytest.fail("the held-out portrait was asked for"))
    for seed in range(40):
        clips.person(seed)
    assert 3 <= len(photos) <= 20
    assert all(photo.shape == (600, 512, 3) for photo in photos)


def test_half_of_training_has_composed_voices_and_held_out_speech_none(monkeypatch):
    settings = []

    def note(text, *voice, **options):
        settings.append(options.get("settings", ""))
        assert bool(voice) != bool(options.get("settings"))
        return Speech(text, np.zeros(8, np.float32), [("h", 0.0, 1.0)])

    monkeypatch.setattr(clips, "synthesise", note)
    for seed in range(100):
        clips.training_speech("Hello", np.random.default_rng(seed))
    assert 30 < sum(map(bool, settings)) < 70
    settings.clear()
    for seed in range(20):
        clips.held_out_speech(np.random.default_rng(seed))
    assert not any(settings)


def test_sounds_without_pictures_are_as_long_as_their_mouths():
    sound = clips.training_sound(0)
    assert len(sound.mouth) == len(sound.starts) == len(sound.faces) > 30
    assert sound.starts[-1] + 16 <= sound.mel.shape[1]


def test_a_sample_video_has_the_asked_size_rate_and_sound(tmp_path):
    path = tmp_path / "head.mp4"
    clips.sample_video(path, (160, 96), seconds=1.2)
    frames = list(read_frames(path, Fraction(25)))
    assert frame_rate(path) == 25
    assert len(frames) == 30 and frames[0].shape == (96, 160, 3)
    assert sound_seconds(path) == pytest.approx(1.2, abs=0.1)
