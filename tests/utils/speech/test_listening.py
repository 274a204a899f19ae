"""The recogniser transcribes words, the encoder identifies voices, the MOS predictor detects noise, and an unfit
recording raises an error."""

import hashlib

import numpy as np
import openvino as ov
import pytest
import torch
from scipy.signal import resample_poly

from utils import weights
from utils.speech import listening, speaker_encoder
from utils.speech.espeak import synthesise
from utils.speech.speaker_encoder import SAMPLE_RATE, Voiceprint

TEXTS = ("今天天气很好，孩子们在草地上跑来跑去。", "请问去火车站怎么走？我想坐明天早上的车去上海。")
VOICES = ("m1", "adam", "f3")


@pytest.fixture(scope="module")
def speech() -> dict[tuple[str, int], np.ndarray]:
    """espeak-ng's voices, each with two sentences."""
    return {(voice, i): synthesise(text, "cmn", voice).samples for voice in VOICES for i, text in enumerate(TEXTS)}


@pytest.fixture(scope="module")
def hear() -> Voiceprint:
    return Voiceprint(listening.prepare_encoder())


def test_the_encoder_says_what_it_says_in_pytorch(speech, hear):
    network = listening.load_encoder(weights.fetch("speaker_encoder"))
    samples = speech["m1", 0][:40_000]
    frames = torch.stack([torch.arange(160), torch.arange(77, 237)])
    with torch.inference_mode():
        expected = network(torch.from_numpy(samples)[None], frames)[0].numpy()
    assert np.abs(hear.embed(samples) - expected).max() < 1e-5 and expected.std() > 0.03


def test_a_tone_is_in_its_channel():
    network = listening.SpeakerEncoder()
    for hertz in (500, 2000, 5000):
        tone = torch.sin(2 * torch.pi * hertz * torch.arange(8000) / SAMPLE_RATE)[None]
        centres = (network.filters * torch.arange(201)[:, None]).sum(0) / network.filters.sum(0) * 40
        loudest = centres[network.mel(tone)[0, 20].argmax()]
        assert abs(loudest - hertz) < 0.12 * hertz


def test_windows_are_half_a_second_apart_and_the_last_is_covered():
    assert speaker_encoder.window_starts(1000).tolist() == [0]
    assert speaker_encoder.window_starts(25_600).tolist() == [0]
    assert speaker_encoder.window_starts(160 * 237).tolist() == [0, 77]
    assert speaker_encoder.window_starts(160 * 300).tolist() == [0, 77, 154]
    assert speaker_encoder.window_starts(160 * (77 + 120) - 1).tolist() == [0]


def test_the_same_voice_is_nearer_than_others(speech, hear):
    found = {key: hear(samples, SAMPLE_RATE) for key, samples in speech.items()}
    for voice in VOICES:
        others = [found[voice, 0] @ found[other, 1] for other in VOICES if other != voice]
        assert found[voice, 0] @ found[voice, 1] > 0.9 > 0.85 > max(others)
    assert all(x.shape == (256,) and x.dtype == np.float32 and abs(x @ x - 1) < 1e-5 for x in found.values())


def test_rate_level_and_channels_of_a_recording_do_not_matter(speech, hear):
    samples = speech["f3", 0]
    expected = hear(samples, SAMPLE_RATE)
    integers = (samples * 32767).astype(np.int16)
    assert hear(integers, SAMPLE_RATE) @ expected > 0.9999
    assert hear(np.stack([samples, samples], 1), SAMPLE_RATE) @ expected > 0.9999
    assert hear(resample_poly(samples, 3, 1), 48_000) @ expected > 0.99
    assert hear(samples * 0.02, SAMPLE_RATE) @ expected > 0.9999


def test_pauses_are_left_out_and_what_is_too_long_is_cut(speech):
    samples = speech["m1", 0]
    said = speaker_encoder.speech(samples, SAMPLE_RATE)
    pause = np.zeros(3 * SAMPLE_RATE, np.float32)
    assert len(speaker_encoder.speech(np.concatenate([pause, samples, pause]), SAMPLE_RATE)) - len(said) < 4000
    assert len(speaker_encoder.speech(np.tile(samples, 12), SAMPLE_RATE)) == speaker_encoder.MAX_SPEECH_S * SAMPLE_RATE
    noise = np.random.default_rng(0).standard_normal(len(samples)) * samples.std() / 10
    assert len(speaker_encoder.speech(samples + noise, SAMPLE_RATE)) > 0.8 * len(said)


def test_what_is_no_good_recording_is_a_sentence(speech):
    samples, rng = speech["m1", 0], np.random.default_rng(0)
    damaged = samples.copy()
    damaged[100] = np.nan
    for recording, rate, sentence in (
        (samples[: 2 * SAMPLE_RATE], SAMPLE_RATE, r"has 1\.\d seconds of speech. Say 3 or more"),
        (samples[:300], SAMPLE_RATE, "lasts 0.02 seconds"),
        (np.zeros(0, np.float32), 44_100, "lasts 0.00 seconds"),
        (np.zeros(80_000, np.float32), SAMPLE_RATE, r"is silent \(-120 dB\)"),
        (samples * 1e-3, SAMPLE_RATE, "is silent"),
        (np.clip(samples * 20, -1, 1), SAMPLE_RATE, r"is clipped: \d+\.\d% of it"),
        (samples + rng.standard_normal(len(samples)) * samples.std() / 2, SAMPLE_RATE, "is noisy: its speech is"),
        (rng.standard_normal(80_000) / 10, SAMPLE_RATE, "is noisy: its speech is"),
        (damaged, SAMPLE_RATE, "values that are not finite"),
        (samples, 4000, "The sample rate is 4000. Record at 8000 Hz or more"),
        (samples, 16000.5, "The sample rate is 16000.5"),
        (np.zeros(80_000, np.int64), SAMPLE_RATE, r"is int64 of shape \(80000,\)"),
        (np.zeros((2, 2, 2), np.float32), SAMPLE_RATE, "Give samples"),
    ):
        with pytest.raises(ValueError, match=sentence):
            speaker_encoder.speech(recording, rate)


def test_other_files_are_no_encoder(tmp_path):
    with pytest.raises(ValueError, match="is not the speaker encoder"):
        Voiceprint(tmp_path / "encoder.xml")
    torch.save({"model_state": {"lstm.weight_ih_l0": torch.zeros(1)}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="is not Resemblyzer's speaker encoder"):
        listening.load_encoder(tmp_path / "other.pt")
    with pytest.raises(ValueError, match="is not DNSMOS"):
        listening.MOS(tmp_path / "other.onnx")


def test_noise_lowers_the_opinion(speech):
    opinion, samples = listening.MOS(weights.fetch("dnsmos")), speech["f3", 0]
    noisy = samples + np.random.default_rng(0).standard_normal(len(samples)).astype(np.float32) / 50
    clear = opinion(samples)
    assert 2 < clear < 4.5 and opinion(noisy) < clear - 0.3
    assert opinion(np.tile(samples, 3)[:150_000]) == pytest.approx(clear, abs=1e-5)  # a short sound is repeated
    # the scale is Microsoft's: what the network says, through the polynomial of its program
    assert listening.MOS_SCALE(3.0) == pytest.approx(2.78347, abs=1e-4)


def test_whisper_is_whole_and_hears_nothing_in_silence():
    folder = listening.prepare_recogniser()
    digest = hashlib.sha256((folder / "model.bin").read_bytes()).hexdigest()
    assert digest == "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57"
    assert listening.Recogniser(folder)(np.zeros(SAMPLE_RATE, np.float32)) == ""


def test_whisper_hears_the_language_that_it_is_told():
    said = synthesise("The train to London leaves at noon.", "en-us", "m3").samples
    heard = listening.Recogniser(listening.prepare_recogniser(), "en")(said)
    assert heard.strip() == "The train to London leaves at noon."


def test_the_converted_encoder_takes_any_length():
    model = listening.convert_encoder(listening.SpeakerEncoder().eval())
    compiled = ov.Core().compile_model(model, "CPU")
    for windows, count in ((1, 25_600), (4, 100_000)):
        frames = np.arange(windows)[:, None] * 77 + np.arange(160)
        samples = np.random.default_rng(0).standard_normal((1, count), np.float32)
        found = compiled({"samples": samples, "frames": frames})["embedding"]
        assert found.shape == (1, 256) and np.linalg.norm(found) == pytest.approx(1, abs=1e-3)
