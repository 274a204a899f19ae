"""Training: features of frames, what batches hold, both losses, stages that go on where they were, the checkpoint."""

from math import log

import numpy as np
import pytest
import torch

from notebooks.sambert_hifigan.convert import voice as convert
from notebooks.sambert_hifigan.network.acoustic import load_acoustic
from notebooks.sambert_hifigan.network.vocoder import load_vocoder
from notebooks.sambert_hifigan.pipeline import read_embedding
from notebooks.sambert_hifigan.training import __main__ as training
from notebooks.sambert_hifigan.training import acoustic, alignment, speech, vocoder
from notebooks.sambert_hifigan.training.alignment import BASE_F0_HZ, MELS, SPAN_F0_HZ, AlignedSentence
from utils.speech.kokoro_teacher import HOP
from utils.training import loop

FRAMES = 6  # of every symbol


def aligned(symbols: int, seed: int, voice: str = "xiaobei") -> AlignedSentence:
    rng = np.random.default_rng(seed)
    draw = torch.Generator().manual_seed(seed)
    length = symbols * FRAMES
    mel = torch.randn(length, MELS + 2, generator=draw)
    mel[:, MELS + 1] = (mel[:, MELS + 1] > 0).float()
    return AlignedSentence(
        voice,
        torch.randint(0, 7, (symbols, 4), generator=draw),
        torch.randint(0, 3, (symbols,), generator=draw),
        torch.full((symbols,), FRAMES),
        torch.randn(symbols, generator=draw),
        torch.randn(symbols, generator=draw),
        mel,
        rng.integers(-3000, 3000, length * HOP).astype(np.int16),
    )


@pytest.fixture(scope="module")
def sentences() -> list[AlignedSentence]:
    return [aligned(9, 0), aligned(12, 1), aligned(7, 2, "yunxi")]


@pytest.fixture(scope="module")
def voices() -> torch.Tensor:
    return torch.nn.functional.normalize(torch.rand(3, 256, generator=torch.Generator().manual_seed(0)), dim=1)


@pytest.fixture
def small(monkeypatch):
    """Smaller networks, and few steps."""
    fewer = {"encoder_num_layers": 1, "decoder_num_layers": 2, "encoder_dropout": 0.0}
    monkeypatch.setattr(acoustic, "PARAMETERS", acoustic.PARAMETERS | fewer)
    one = {"resblock_kernel_sizes": [3], "resblock_dilations": [[1, 3]]}
    monkeypatch.setattr(vocoder, "PARAMETERS", vocoder.PARAMETERS | {"channels": 32} | one)
    monkeypatch.setattr(acoustic, "STEPS", 4)
    monkeypatch.setattr(vocoder, "SPECTRAL_STEPS", 2)
    monkeypatch.setattr(vocoder, "ADVERSARIAL_STEPS", 2)
    for stage in (acoustic, vocoder):
        monkeypatch.setattr(stage, "BATCH", 2)


def test_a_sound_in_the_middle_of_a_frame_is_loudest_there():
    samples = torch.zeros(1, 20 * HOP)
    samples[0, 7 * HOP + HOP // 2] = 1
    mel = alignment.mel_spectrogram(samples)
    assert mel.shape == (1, MELS, 20)
    assert int(mel.mean(1).argmax()) == 7
    near = mel.mean(1)[0, [6, 8]]
    assert near[0] == pytest.approx(float(near[1]), abs=1e-3)


def test_a_higher_tone_is_in_a_higher_channel():
    time = torch.arange(20 * HOP) / 16000
    low, high = (
        int(alignment.mel_spectrogram(torch.sin(2 * torch.pi * f * time)[None])[0, :, 10].argmax()) for f in (300, 3000)
    )
    assert 0 < low < high < MELS - 1


def test_pitch_goes_on_where_there_is_no_voice():
    pitch, voiced = alignment.pitch_and_voicing(np.array([0, 200, 0, 0, 260, 0], np.float32))
    assert np.allclose(pitch * SPAN_F0_HZ + BASE_F0_HZ, [200, 200, 220, 240, 260, 260])
    assert voiced.tolist() == [0, 1, 0, 0, 1, 0]
    assert not alignment.pitch_and_voicing(np.zeros(3, np.float32)).any()


def test_means_are_those_of_each_symbol():
    found = alignment.symbol_means(np.array([1, 3, 5, 7, 9], np.float32), np.array([2, 0, 3]))
    assert found.tolist() == [2, 0, 7]


def test_padding_does_not_change_a_sentence_in_a_batch(small, sentences, voices):
    network = training.new_networks()[0].eval()
    with torch.no_grad():
        both = acoustic.teacher_forced(network, acoustic.batch(sentences[:2], voices[:2]))
        alone = acoustic.teacher_forced(network, acoustic.batch(sentences[:1], voices[:1]))
    symbols, frames = len(sentences[0].emotion), len(sentences[0].mel)
    assert torch.allclose(both.mel[0, :frames], alone.mel[0], atol=1e-4)
    assert torch.allclose(both.log_durations[0, :symbols], alone.log_durations[0], atol=1e-5)
    assert torch.allclose(both.pitch[0, :symbols], alone.pitch[0], atol=1e-5)
    assert int(both.frame_mask[0].sum()) == frames and not both.decoded[0, frames:].any()


def test_teacher_forcing_with_its_own_output_gives_the_same_output(small, sentences, voices):
    network = training.new_networks()[0].eval()
    last = network.variance_adaptor.duration_predictor.fc
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(log(FRAMES + 1))
        first = sentences[0]
        speaker = voices[:1, None].expand(-1, len(first.emotion), -1)
        free = network(first.ling[None], first.emotion[None], speaker)
        own = first._replace(mel=free.decoded[0], pitch=free.pitch[0], energy=free.energy[0], frames=free.frames[0])
        forced = acoustic.teacher_forced(network, acoustic.batch([own], voices[:1]))
    assert free.frames.tolist() == [[FRAMES] * len(first.emotion)]
    assert torch.allclose(forced.decoded, free.decoded, atol=1e-4)
    assert torch.allclose(forced.mel, free.mel, atol=1e-4)


def test_the_error_counts_frames_that_are_there_and_pitch_most():
    made, there = torch.zeros(1, 3, MELS + 2), torch.tensor([[True, True, False]])
    mel, pitch = made.clone(), made.clone()
    mel[0, 0, 0], pitch[0, 0, MELS], made[0, 2] = 1, 1, 5
    error = acoustic.frame_loss
    assert error(made, torch.zeros_like(made), there) == 0
    assert error(pitch, torch.zeros_like(made), there) == pytest.approx(8 * float(error(mel, made, there)))


def test_three_sentences_of_a_voice_are_one_with_pauses_inside(sentences, voices):
    end, pause = (alignment.TABLES["sy"].index(x) for x in ("@#4", "@#3"))
    for one in sentences:
        one.ling[-1, 0] = end
    joined, prints = acoustic.join_threes(
        [*sentences[:2], sentences[2], sentences[0], sentences[2]], voices[[0, 1, 2, 0, 2]]
    )
    (three,) = joined
    assert three.voice == "xiaobei" and len(three.emotion) == 9 + 12 + 9
    assert (
        torch.equal(three.mel, torch.cat([sentences[i].mel for i in (0, 1, 0)]))
        and int(three.frames.sum()) == 30 * FRAMES
    )
    assert len(three.samples) == len(three.mel) * HOP
    assert [int(three.ling[i, 0]) for i in (8, 20, 29)] == [pause, pause, end]
    assert torch.equal(three.ling[:, 1:], torch.cat([sentences[i].ling[:, 1:] for i in (0, 1, 0)]))
    assert sentences[0].ling[-1, 0] == end  # as it was
    assert (
        prints.shape == (1, 256) and prints.norm() == pytest.approx(1) and prints[0] @ voices[0] > prints[0] @ voices[2]
    )


def test_half_of_the_voices_are_means(sentences, voices):
    means = {"xiaobei": torch.full((256,), 2.0), "yunxi": torch.full((256,), 3.0)}
    batches = acoustic.SentenceBatches(sentences, voices, means)
    drawn = [batches.draw(2, np.random.default_rng(seed)) for seed in range(40)]
    again = batches.draw(2, np.random.default_rng(0))
    assert all(torch.equal(drawn[0][key], again[key]) for key in again)
    share = np.mean([bool((x["speaker"][:, 0] > 1.5).all(1)[i]) for x in drawn for i in range(2)])
    assert 0.3 < share < 0.7
    own = {tuple(x["speaker"][i, 0].tolist()) for x in drawn for i in range(2)}
    assert own <= {tuple(v.tolist()) for v in (*voices, *means.values())}


def test_segments_are_of_the_same_time(sentences):
    index = sentences[1]._replace(
        mel=torch.arange(12 * FRAMES).float()[:, None].expand(-1, MELS + 2),
        samples=np.repeat(np.arange(12 * FRAMES, dtype=np.int16), HOP),
    )
    mel, samples = vocoder.Segments([index]).draw(5, np.random.default_rng(0))
    assert mel.shape == (5, MELS + 2, vocoder.SEGMENT) and samples.shape == (5, 1, vocoder.SEGMENT * HOP)
    assert torch.allclose(samples[:, 0, ::HOP] * 32767, mel[:, 0], atol=1e-2)
    assert torch.allclose(mel[:, MELS], mel[:, 0] * SPAN_F0_HZ + BASE_F0_HZ)
    imagined = vocoder.Segments([index], [index.mel[:, :MELS] + 500])
    mel, _ = imagined.draw(200, np.random.default_rng(0))
    assert 0.3 < (mel[:, 0, 0] >= 500).float().mean() < 0.7 and (mel[:, MELS + 1] < 500).all()


class Styles:
    """A teacher whose voices are numbers: 1, 2, ... in all places."""

    names = (*speech.VOICES.values(), *speech.UNSEEN_VOICES, "af_one", "bm_two")
    styles = {name: np.full((3, 256), i + 1.0) for i, name in enumerate(names)}


def test_mixtures_have_a_named_prosody_and_a_timbre_of_the_same_sex():
    numbers = {name: styles[0, 0] for name, styles in Styles.styles.items()}
    named = {numbers[voice] for voice in speech.VOICES.values()}
    said = [speech.style(Styles, number) for number in range(4 * speech.MIXTURES)]
    assert {name for name, _ in said if not name.startswith("mixture")} == set(speech.VOICES)
    mixtures = {name: mixed for name, mixed in said if name.startswith("mixture")}
    assert len(mixtures) == speech.MIXTURES
    for mixed in mixtures.values():
        assert mixed[0, 200] in named
        sex = next(name[1] for name, x in numbers.items() if x == mixed[0, 200])
        same = [x for name, x in numbers.items() if name[1] == sex and name not in speech.UNSEEN_VOICES]
        assert min(same) <= mixed[0, 0] <= max(same)


def test_a_stopped_stage_goes_on_to_the_same_weights(small, sentences, voices, monkeypatch, tmp_path):
    means = {"xiaobei": voices[0], "yunxi": voices[2]}
    batches = acoustic.SentenceBatches(sentences, voices, means)
    joined = acoustic.SentenceBatches(*acoustic.join_threes(sentences[:2] * 2, voices[[0, 1, 0, 1]]), means)
    monkeypatch.setattr(acoustic, "JOINED_SHARE", 0.5)
    monkeypatch.setattr(acoustic, "BATCH", 3)

    def train():
        network = training.new_networks()[0]
        acoustic.train_acoustic(tmp_path, network, batches, joined)
        return network.state_dict()

    whole = train()
    (tmp_path / "acoustic.pt").unlink()
    monkeypatch.setattr(acoustic, "STEPS", 2)
    factor = loop.learning_rate_factor
    monkeypatch.setattr(loop, "learning_rate_factor", lambda step, steps: factor(step, 4))
    train()
    monkeypatch.setattr(acoustic, "STEPS", 4)
    resumed = train()
    assert all(torch.allclose(whole[key], resumed[key], atol=1e-5) for key in whole)


def test_both_stages_of_the_vocoder_change_it(small, sentences, voices, tmp_path):
    acoustic_model, generator = training.new_networks()
    mels = acoustic.predict_mels(acoustic_model.eval(), sentences, {"xiaobei": voices[0], "yunxi": voices[2]})
    assert [x.shape for x in mels] == [(len(sentence.mel), MELS) for sentence in sentences]
    segments = vocoder.Segments(sentences, mels)
    states = [generator.conv_post.conv1d.weight.detach().clone()]
    for stage in (vocoder.train_spectral, vocoder.train_adversarial):
        stage(tmp_path, generator, segments)
        states.append(generator.conv_post.conv1d.weight.detach().clone())
    assert all(torch.isfinite(x).all() for x in states)
    assert not torch.equal(states[0], states[1]) and not torch.equal(states[1], states[2])


def test_the_checkpoint_is_a_voice_of_less_than_ten_megabytes(tmp_path):
    acoustic_model, generator = training.new_networks()
    voices = {name: torch.rand(256) for name in speech.VOICES}
    training.save(tmp_path, acoustic_model, generator, voices)
    read = load_acoustic(tmp_path / "am"), load_vocoder(tmp_path / "voc")
    assert read[0].f0 == (BASE_F0_HZ, SPAN_F0_HZ)
    config = convert.voice_config(tmp_path, *read)
    assert (config["sample_rate"], config["hop"], config["embedding"], config["sines"]) == (16000, HOP, 256, 8)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 10_000_000
    stored = convert.speaker_embeddings(tmp_path, 256)
    assert list(stored) == sorted(speech.VOICES)
    assert np.array_equal(read_embedding(tmp_path / "am" / "speakers" / "yunxi.npy", 256), voices["yunxi"].numpy())
