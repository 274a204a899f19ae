"""Recordings are read from any file, checked and resampled; what is written is whole and says what it is."""

import sys
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from scipy.io import wavfile

from notebooks.gpt_sovits.pipeline import audio_io
from notebooks.gpt_sovits.pipeline.audio_io import MARK, Recording, is_marked, read, write

RATE = 24_000


def tone(seconds: float, rate: int = RATE, hertz: float = 440, loud: float = 0.5) -> np.ndarray:
    return (loud * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def quantised(samples: np.ndarray, kind: str) -> np.ndarray:
    if kind == "uint8":
        return (samples * 127 + 128).round().astype(np.uint8)
    full = np.iinfo(kind).max if kind.startswith("int") else 1
    return (samples.astype(np.float64) * full).astype(kind)


@pytest.mark.parametrize(
    ("kind", "error"), [("uint8", 0.01), ("int16", 1e-4), ("int32", 1e-6), ("float32", 0), ("float64", 0)]
)
def test_wav_files_of_any_samples_are_read(kind, error, tmp_path):
    wavfile.write(tmp_path / "a.wav", RATE, quantised(tone(3.5), kind))
    found = read(tmp_path / "a.wav")
    assert found.rate == RATE and found.samples.dtype == np.float32 and found.notes == []
    assert np.abs(found.samples - tone(3.5)).max() <= error
    direct = read((quantised(tone(3.5), kind), RATE))
    assert np.abs(direct.samples - tone(3.5)).max() <= error


def test_24_bits_are_read(tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 3, RATE, 0, "NONE", ""))
        samples = (tone(3.5) * (2**23 - 1)).astype("<i4")
        file.writeframes(samples.view(np.uint8).reshape(-1, 4)[:, :3].tobytes())
    assert np.abs(read(tmp_path / "a.wav").samples - tone(3.5)).max() < 1e-6


def encoded(path: Path, samples: np.ndarray, codec: str, form: str) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        for made in av.AudioResampler(form, "mono", RATE).resample(frame):
            container.mux(stream.encode(made))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(
    ("name", "codec", "form"), [("a.flac", "flac", "s16"), ("a.mp3", "mp3", "s16p"), ("a.wav", "pcm_mulaw", "s16")]
)
def test_other_files_are_read(name, codec, form, tmp_path):
    found = read(str(encoded(tmp_path / name, tone(4), codec, form)))
    assert found.rate == RATE and len(found.samples) == pytest.approx(4 * RATE, abs=3000)
    assert np.abs(np.fft.rfft(found.samples)).argmax() / len(found.samples) * RATE == pytest.approx(440, abs=1)
    assert found.samples.max() == pytest.approx(0.5, abs=0.05)


def test_channels_are_averaged():
    both = np.stack([tone(3.5), 0.5 * tone(3.5, hertz=300)], 1)
    assert np.abs(read((both, RATE)).samples - both.mean(1)).max() < 1e-7


@pytest.mark.parametrize("rate", [8000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("wanted", [16_000, 32_000])
def test_any_rate_becomes_another(rate, wanted):
    found = read((tone(3.5, rate), rate)).at(wanted)
    assert len(found) == 3.5 * wanted and found.dtype == np.float32
    middle = slice(wanted // 10, -wanted // 10)
    assert np.abs(found - tone(3.5, wanted))[middle].max() < 2e-3


def test_what_is_too_loud_is_made_softer():
    assert np.abs(read((3 * tone(3.5, loud=0.9), RATE)).at(16_000)).max() == 1


def test_clipping_is_told():
    loud = tone(3.5, loud=1.4).clip(-1, 1)
    (note,) = read((loud, RATE)).notes
    assert note == (
        "The recording is clipped: its loudest parts are cut off, and the voice will sound so. Record it anew."
    )
    assert read((quantised(loud, "int16"), RATE)).notes == [note]
    assert read((np.stack([loud, 0 * loud], 1), RATE)).notes == [note]
    assert read((quantised(tone(3.5, loud=1.0), "int16"), RATE)).notes == []


def test_silence_at_the_ends_is_told_and_is_no_speech():
    samples = np.concatenate([np.zeros(RATE), tone(3), np.zeros(RATE // 2)])
    found = read((samples, RATE))
    assert found.speech_s == pytest.approx(3, abs=0.05)
    assert found.notes[0].startswith("The recording has 1.0 s without speech at its beginning and 0.5 s at its end.")
    click = read((np.append(np.zeros(4 * RATE), 1.0), RATE))
    assert click.speech_s == pytest.approx(0, abs=0.05) and "4.0 s without speech at its beginning" in click.notes[0]
    assert read((samples[RATE // 2 :], RATE)).notes == []
    (note,) = read((np.concatenate([tone(3), np.zeros(2 * RATE)]), RATE)).notes
    assert note.startswith("The recording has 0.0 s without speech at its beginning and 2.0 s at its end.")


@pytest.mark.parametrize(("phones", "told"), [(15, "too few"), (16, None), (96, None), (97, "too many")])
def test_nobody_speaks_so_slowly_or_so_fast(phones, told):
    notes = Recording(np.zeros(9), RATE, 4.0, []).check_words(phones)
    assert [told in note for note in notes] == ([True] if told else [])


@pytest.mark.parametrize(
    ("samples", "rate", "sentence"),
    [
        (tone(2.9), RATE, "The recording is too short: 2.9 s. Give 3 to 10 seconds of one voice."),
        (tone(0), RATE, "too short: 0.0 s"),
        (tone(10.1), RATE, "The recording is too long: more than 10.0 s. Give 3 to 10 seconds of one voice."),
        (tone(4, loud=0.0005), RATE, "The recording is silent. Record it again, nearer to the microphone."),
        (np.full(4 * RATE, np.inf), RATE, "The recording holds values that are no numbers. Export it again."),
        (tone(4), 4000, "The recording has 4000 samples a second. Give one with 8,000 to 384,000."),
        (tone(4) > 0, RATE, "The recording holds bool, no samples. Give floats in -1..1 or integers."),
    ],
)
def test_recordings_that_will_not_do(samples, rate, sentence):
    with pytest.raises(ValueError, match=sentence.replace(".", r"\.")):
        read((samples, rate))


@pytest.mark.parametrize("source", [None, 3, (RATE, tone(4)), (tone(4), 2.5), (np.zeros((2, 2, 2)), RATE), [1, 2, 3]])
def test_what_is_no_recording(source):
    with pytest.raises(ValueError, match="A recording is a file's name, or samples"):
        read(source)


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    def told(name: str, content: bytes | None = None) -> str:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError) as error:
            read(tmp_path / name)
        return str(error.value)

    assert told("none.wav").endswith("none.wav is not there. Correct its name.")
    assert told(".").endswith("is not there. Correct its name.")
    for name, content in (("text.wav", b"no sound"), ("empty.wav", b""), ("cut.wav", b"RIFF\x24\0\0\0WAVEfmt ")):
        assert told(name, content).startswith(f"{name} cannot be read as sound (")
    with av.open(str(tmp_path / "seen.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=5)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame(64, 64, "yuv420p")))
        container.mux(stream.encode(None))
    assert told("seen.mp4") == "seen.mp4 holds no sound. Give a file that does."
    assert told(encoded(tmp_path / "long.flac", tone(30), "flac", "s16").name).startswith("long.flac is too long: more")
    write(tmp_path / "large.wav", tone(4), RATE)
    monkeypatch.setattr(audio_io, "MAX_WAV_BYTES", 1000)
    assert told("large.wav") == "large.wav is too long. Give 3 to 10 seconds of one voice."
    monkeypatch.setitem(sys.modules, "av", None)
    assert told("seen.mp4") == "seen.mp4 is no plain WAV file. Give one, or install av to read others."


# --- what is written --------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again_and_marked(tmp_path):
    write(tmp_path / "new" / "a.wav", tone(4), RATE)
    found = read(tmp_path / "new" / "a.wav")
    assert found.rate == RATE and np.abs(found.samples - tone(4)).max() < 1e-4
    with wave.open(str(tmp_path / "new" / "a.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getnframes()) == (1, 2, 4 * RATE)
    assert is_marked(tmp_path / "new" / "a.wav")
    with av.open(str(tmp_path / "new" / "a.wav")) as container:  # other programs show it
        assert container.metadata["comment"] == MARK and container.metadata["encoder"] == "GPT-SoVITS on OpenVINO"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.wav"]


def test_recordings_are_not_marked(tmp_path):
    wavfile.write(tmp_path / "plain.wav", RATE, tone(4))
    (tmp_path / "text.wav").write_text(MARK, encoding="utf-8")
    (tmp_path / "cut.wav").write_bytes(b"RIFF\0\0\0\0WAVELI")
    assert not any(is_marked(tmp_path / name) for name in ("plain.wav", "text.wav", "cut.wav"))
    with pytest.raises(OSError):
        is_marked(tmp_path / "none.wav")


def test_loud_samples_are_cut_off_and_do_not_wrap(tmp_path):
    write(tmp_path / "a.wav", np.float32([0, 0.5, 1, 1.5, -1, -3]), RATE)
    assert wavfile.read(tmp_path / "a.wav")[1].tolist() == [0, 16384, 32767, 32767, -32767, -32767]


def test_an_odd_number_of_bytes_keeps_chunks_apart(monkeypatch, tmp_path):
    for mark in ("even", "odd"):
        monkeypatch.setattr(audio_io, "MARK", mark)
        write(tmp_path / "a.wav", tone(1), RATE)
        assert is_marked(tmp_path / "a.wav") and len(wavfile.read(tmp_path / "a.wav")[1]) == RATE


def test_a_failure_leaves_what_was_there(monkeypatch, tmp_path):
    (tmp_path / "a.wav").write_bytes(b"mine")
    for samples in (np.full(9, np.nan), np.zeros((2, 9))):
        with pytest.raises(ValueError, match="The sound to write is no row of finite samples"):
            write(tmp_path / "a.wav", samples, RATE)

    def full(self, data):
        self.touch()
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "a.wav", tone(1), RATE)
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"] and (tmp_path / "a.wav").read_bytes() == b"mine"
    with pytest.raises(ValueError, match=r"written to a \.wav file, not to a\.mp3\. Give it another name"):
        write(tmp_path / "a.mp3", tone(1), RATE)
