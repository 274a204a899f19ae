"""Pictures and sound of all kinds are read alike, and a video is written true to colour, whole or not at all."""

import os
import struct
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest

from notebooks.wav2lip.pipeline.media import COMMENT, Writer, frame_rate, read_frames, read_sound, sound_seconds
from tests.wav2lip.files import RATE, plain, sound, tone, video

CORNERS = np.zeros((40, 60, 3), np.uint8)  # red above left, green below right
CORNERS[:20, :30], CORNERS[20:, 30:] = (0, 0, 255), (0, 255, 0)


def numbers(pictures) -> list[int]:
    """Which of `plain` they are."""
    return [int(picture[0, 0, 0]) // 10 for picture in pictures]


def heard(path, rate: int = RATE) -> np.ndarray:
    return np.concatenate(list(read_sound(path, rate)))


@pytest.mark.parametrize("fps", [25, Fraction(30000, 1001)])
def test_every_frame_of_a_steady_video_comes_once(tmp_path, fps):
    path = video(tmp_path / "steady.mp4", plain(7), fps)
    assert frame_rate(path) == fps
    assert numbers(read_frames(path, fps)) == list(range(7))


def test_another_rate_repeats_frames_or_leaves_some_out(tmp_path):
    path = video(tmp_path / "steady.mp4", plain(6), 10)
    assert numbers(read_frames(path, Fraction(20))) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert numbers(read_frames(path, Fraction(5))) == [0, 2, 4, 5]


def test_frames_of_varying_length_come_at_their_time(tmp_path):
    path = video(tmp_path / "varying.mkv", plain(4), times=[500, 540, 740, 780])
    assert numbers(read_frames(path, Fraction(25))) == [0, 1, 1, 1, 1, 1, 2, 3]


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_a_rotated_video_is_shown_upright(tmp_path, turn):
    path = video(tmp_path / "phone.mp4", [CORNERS] * 2)
    data = path.read_bytes()
    matrices = [(1, 0, 0, 1), (0, -1, 1, 0), (-1, 0, 0, -1), (0, 1, -1, 0)]  # quarter turns to the left
    fixed = [struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30) for a, b, c, d in matrices]
    start = data.index(fixed[0], data.index(b"tkhd"))
    path.write_bytes(data[:start] + fixed[turn] + data[start + 36 :])
    assert (next(read_frames(path, Fraction(25))) == np.rot90(CORNERS, turn)).all()


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "webp", "jpg"])
@pytest.mark.parametrize("grey", [False, True])
def test_a_still_is_one_frame(tmp_path, suffix, grey):
    given = cv2.GaussianBlur(CORNERS[..., 2] if grey else CORNERS, (0, 0), 3)
    cv2.imwrite(str(tmp_path / f"a.still.{suffix}"), given)
    assert frame_rate(tmp_path / f"a.still.{suffix}") is None
    (picture,) = read_frames(tmp_path / f"a.still.{suffix}", Fraction(25))
    difference = np.abs(picture.astype(int) - (given[..., None] if grey else given))
    assert picture.shape == (40, 60, 3) and difference.mean() < 4


def test_what_is_transparent_is_white(tmp_path):
    alpha = np.full((40, 60), 255, np.uint8)
    alpha[:, :20], alpha[:, 20:40] = 0, 51
    cv2.imwrite(str(tmp_path / "a.png"), np.dstack([np.full((40, 60, 3), (10, 110, 210), np.uint8), alpha]))
    (picture,) = read_frames(tmp_path / "a.png", Fraction(25))
    assert picture[0, [0, 30, 50]].tolist() == [[255, 255, 255], [206, 226, 246], [10, 110, 210]]


def test_large_and_changing_pictures_are_scaled(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((300, 100, 3), np.uint8))
    assert next(read_frames(tmp_path / "a.png", Fraction(25), longest=60)).shape == (60, 20, 3)
    assert next(read_frames(tmp_path / "a.png", Fraction(25), longest=600)).shape == (300, 100, 3)
    small, large = (video(tmp_path / f"{size}.ts", plain(2, size, size)) for size in (64, 96))
    (tmp_path / "both.ts").write_bytes(small.read_bytes() + large.read_bytes())
    assert {picture.shape for picture in read_frames(tmp_path / "both.ts", Fraction(25))} == {(64, 64, 3)}


@pytest.mark.parametrize(
    ("name", "codec", "rate", "channels", "close"),
    [
        ("a.wav", "pcm_s16le", 8000, 1, 1e-3),
        ("a.wav", "pcm_s16le", 44_100, 2, 1e-3),
        ("a.flac", "flac", 48_000, 6, 1e-3),
        ("a.mp3", "libmp3lame", 44_100, 2, 0.02),
        ("a.opus", "libopus", 48_000, 1, 0.02),
    ],
)
def test_sound_of_any_format_is_heard_alike(tmp_path, name, codec, rate, channels, close):
    path = sound(tmp_path / name, tone(2.5, rate, channels), rate, codec)
    samples, expected = heard(path), tone(2.5)[0]
    assert abs(len(samples) - len(expected)) <= 2 and sound_seconds(path) == pytest.approx(2.5, abs=0.01)
    inner = slice(RATE // 4, 2 * RATE)  # a resampler's ends are its own
    assert np.sqrt(np.mean((samples[inner] - expected[inner]) ** 2)) < close
    assert {len(block) for block in read_sound(path, RATE)} != {len(samples)}  # in blocks


def test_channels_are_averaged(tmp_path):
    left = tone(1)[0]
    path = sound(tmp_path / "a.wav", np.stack([left, np.zeros_like(left)]))
    assert heard(path) == pytest.approx(left / 2, abs=1e-6)


def test_a_written_video_keeps_colours_sound_and_length(tmp_path):
    voice = sound(tmp_path / "voice.wav", tone(1.2, 44_100, 2), 44_100)
    blurred = cv2.GaussianBlur(CORNERS, (0, 0), 3)
    blurred[:, 40:] = (230, 90, 30)
    with Writer(tmp_path / "new" / "a.mp4", Fraction(30000, 1001), voice, label=False) as writer:
        for _ in range(36):
            writer.write(blurred)
    path = tmp_path / "new" / "a.mp4"
    assert [file.name for file in path.parent.iterdir()] == ["a.mp4"]
    pictures = list(read_frames(path, frame_rate(path)))
    assert frame_rate(path) == Fraction(30000, 1001) and len(pictures) == 36
    assert np.abs(pictures[20].astype(int) - blurred).mean() < 3
    own, opencv = pictures[0], cv2.VideoCapture(str(path)).read()[1]
    assert np.abs(own.astype(int) - opencv).max() <= 2  # another player sees the same colours
    samples, expected = heard(path), tone(1.2)[0]
    assert sound_seconds(path) == pytest.approx(1.2, abs=0.03)
    inner = slice(RATE // 4, RATE)
    assert np.corrcoef(samples[inner], expected[inner])[0, 1] > 0.99  # in time, too: the tone rises


def test_odd_sizes_gain_a_pixel(tmp_path):
    voice = sound(tmp_path / "voice.wav", tone(0.5))
    with Writer(tmp_path / "a.mp4", Fraction(25), voice, label=False) as writer:
        for picture in plain(12, 51, 61):
            writer.write(picture)
    assert {picture.shape for picture in read_frames(tmp_path / "a.mp4", Fraction(25))} == {(52, 62, 3)}


def test_names_are_taken_as_they_are(tmp_path):
    begin = "" if os.name == "nt" else "http:"  # Windows allows no colon
    voice = sound(tmp_path / "a.wav", tone(0.3)).rename(tmp_path / f"{begin}50%d.wav")
    with Writer(tmp_path / f"{begin}a%d.mp4", Fraction(25), voice) as writer:
        writer.write(plain(1)[0])
    assert len(list(read_frames(writer.path, Fraction(25)))) == 1 and len(heard(voice)) == 4800


@pytest.mark.parametrize("label", [True, False])
def test_a_result_says_that_it_is_generated(tmp_path, label):
    voice, picture = sound(tmp_path / "voice.wav", tone(0.4)), np.full((120, 160, 3), 90, np.uint8)
    with Writer(tmp_path / "a.mp4", Fraction(25), voice, label) as writer:
        for _ in range(10):
            writer.write(picture)
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert (container.metadata.get("comment") == COMMENT) is label
    bright = (next(read_frames(tmp_path / "a.mp4", Fraction(25))) > 160).any(-1)
    assert bright[-20:, :100].any() == label and not bright[:100].any()
    assert (picture == 90).all()  # what was given is not drawn upon


def test_a_failure_leaves_the_earlier_result(tmp_path):
    voice, path = sound(tmp_path / "voice.wav", tone(0.4)), tmp_path / "a.mp4"
    path.write_bytes(b"earlier")
    with pytest.raises(RuntimeError, match="stop"), Writer(path, Fraction(25), voice) as writer:
        writer.write(plain(1)[0])
        raise RuntimeError("stop")
    assert path.read_bytes() == b"earlier" and sorted(x.name for x in tmp_path.iterdir()) == ["a.mp4", "voice.wav"]
    with pytest.raises(ValueError, match=r"call it a\.mp4, not a\.avi"):
        Writer(tmp_path / "a.avi", Fraction(25), voice)


def test_what_is_no_picture_is_a_sentence(tmp_path):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.png").write_text("no picture", encoding="utf-8")
    sound(tmp_path / "voice.wav", tone(0.2))
    for name, sentence in {
        "none.mp4": "none.mp4 is not there",
        "empty.mp4": "empty.mp4 cannot be read as picture",
        "text.png": "text.png cannot be read as picture",
        "voice.wav": "voice.wav holds no picture",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            frame_rate(tmp_path / name)
            next(read_frames(tmp_path / name, Fraction(25)))


def test_a_video_that_is_cut_off_is_a_sentence(tmp_path):
    path = video(tmp_path / "whole.mp4", plain(8))
    (tmp_path / "cut.mp4").write_bytes(path.read_bytes()[:400])
    with pytest.raises(ValueError, match="cut.mp4 cannot be read as picture"):
        list(read_frames(tmp_path / "cut.mp4", Fraction(25)))


def test_what_is_no_sound_is_a_sentence(tmp_path):
    video(tmp_path / "silent.mp4", plain(2))
    (tmp_path / "text.wav").write_text("no sound", encoding="utf-8")
    broken = tone(0.3)
    broken[0, 5] = np.nan
    sound(tmp_path / "nan.wav", broken)
    for name, sentence in {
        "none.wav": "none.wav is not there",
        "text.wav": "text.wav cannot be read as sound",
        "silent.mp4": "silent.mp4 holds no sound",
        "nan.wav": "nan.wav holds values that are no numbers",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            heard(tmp_path / name)
