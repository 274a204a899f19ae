"""SAMBERT's parts: alone, in batches, one step at a time, in training, and traced."""

import numpy as np
import pytest
import torch

from notebooks.sambert_hifigan.network.acoustic import KanTtsSAMBERT, band_of, frames_of, stretch
from notebooks.sambert_hifigan.network.layers import Part, PositionEncoder
from tests.sambert_hifigan.small import ACOUSTIC, KINDS, acoustic, sentence, traced

RELEASED = {
    "max_len": 800,
    "embedding_dim": 512,
    "encoder_num_layers": 8,
    "encoder_num_heads": 8,
    "encoder_num_units": 128,
    "encoder_ffn_inner_dim": 1024,
    "encoder_projection_units": 32,
    "speaker_units": 32,
    "emotion_units": 32,
    "predictor_filter_size": 41,
    "predictor_fsmn_num_layers": 3,
    "predictor_num_memory_units": 128,
    "predictor_ffn_inner_dim": 256,
    "predictor_lstm_units": 128,
    "dur_pred_prenet_units": [128, 128],
    "dur_pred_lstm_units": 128,
    "decoder_prenet_units": [256, 256],
    "decoder_num_layers": 12,
    "decoder_num_heads": 8,
    "decoder_num_units": 128,
    "decoder_ffn_inner_dim": 1024,
    "num_mels": 80,
    "postnet_filter_size": 41,
    "postnet_fsmn_num_layers": 4,
    "postnet_num_memory_units": 256,
    "postnet_ffn_inner_dim": 512,
    "postnet_shift": 17,
    "postnet_lstm_units": 128,
    "sy": 147,
    "tone": 10,
    "syllable_flag": 8,
    "word_segment": 8,
    "emotion": 36,
    "speaker": 4,
}
SE = {"SE": True, "NSF": True, "num_mels": 82, "speaker_units": 192}


@pytest.mark.parametrize(("changes", "count"), [({}, 12_706_787), (SE, 13_385_067)], ids=["plain", "se"])
def test_the_released_networks_have_their_published_sizes(changes, count):
    with torch.device("meta"):
        network = KanTtsSAMBERT({"Model": {"KanTtsSAMBERT": {"params": ACOUSTIC | RELEASED | changes}}})
    assert sum(parameter.numel() for parameter in network.parameters()) == count


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-5) -> bool:
    assert ours.shape == theirs.shape
    return bool((ours - theirs).abs().max() <= tolerance)


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_is_spoken(kind):
    network = acoustic(kind)
    result = network(*sentence(kind))
    assert result.mel.shape == result.decoded.shape == (1, int(result.frames.sum()), KINDS[kind].get("num_mels", 10))
    assert result.frames.unique().numel() > 1 and result.band >= 1
    assert close(result.log_durations.exp() - 1, result.frames.float(), 0.5)


@torch.inference_mode()
@pytest.mark.parametrize("stream", range(4), ids=["phone", "tone", "syllable", "word"])
def test_every_stream_of_symbols_is_heard(stream):
    network, (ling, emotion, speaker) = acoustic(), sentence()
    before = network.encode(ling, emotion, speaker)[0]
    changed = ling.clone()
    changed[0, 4, stream] = (changed[0, 4, stream] + 1) % 3
    assert (network.encode(changed, emotion, speaker)[0] - before).abs().max() > 1e-2


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_another_speaker_sounds_different(kind):
    network, (ling, emotion, speaker) = acoustic(kind), sentence(kind)
    other = speaker + 1 if kind == "se" else (speaker + 1) % 4
    one, two = (network(ling, emotion, who).mel for who in (speaker, other))
    assert (one[:, :6] - two[:, :6]).abs().max() > 1e-2


@torch.inference_mode()
def test_a_sentence_longer_than_the_table_of_positions():
    network, given = acoustic(max_len=5), sentence(phonemes=9)
    assert close(network(*given).mel, acoustic(max_len=40)(*given).mel, 0)


def test_positions_begin_at_one():
    table = PositionEncoder.table(7, 12)[0].double()
    assert torch.allclose(table[:, 0], torch.arange(1.0, 8, dtype=torch.float64).sin())
    assert torch.allclose(table[:, -1], (torch.arange(1.0, 8, dtype=torch.float64) / 10000).cos())


def test_durations_round_and_the_longest_gives_the_band():
    durations = torch.tensor([[0.4, 0.6, 4.6, 7.4, 7.6]])
    assert frames_of((durations + 1).log()).tolist() == [[0, 1, 5, 7, 8]]
    assert [band_of((durations[:, :n] + 1).log(), 3) for n in (1, 3, 4, 5)] == [0, 2, 2, 3]


def test_phonemes_are_stretched_to_frames():
    token, place = stretch(torch.tensor([[2, 0, 3, 2], [1, 1, 0, 0]]), 3)
    assert token.tolist() == [[0, 0, 2, 2, 2, 3, 3, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0, 0]]
    assert place.tolist() == [[1, 2, 1, 2, 3, 1, 2, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0, 0]]


@torch.inference_mode()
@pytest.mark.parametrize("band", [0, 1, 3, 50])
def test_decoding_step_by_step_is_decoding_at_once(band):
    """Told what it said itself, the decoder says it again, so the cache holds just the band."""
    decoder = acoustic().decoder
    memory = torch.randn(2, 8, 3 * 8 + 6 + 4, generator=torch.Generator().manual_seed(1))
    made = decoder.infer(memory, band)
    assert close(decoder.teacher_forced(memory, made, band), made)
    other = decoder.teacher_forced(memory, made, band + 1)
    assert close(other, made) == (band == 50)


@torch.inference_mode()
def test_the_cache_holds_a_band():
    decoder = acoustic().decoder
    memory, cache = torch.randn(1, 9, 34), decoder.start(1)
    sizes = []
    for i in range(5):
        ahead = decoder.keys_and_values(memory[:, i : i + 4])
        _, cache = decoder(torch.randn(1, 1, 10), memory[:, i : i + 1], ahead, cache, torch.tensor(3))
        sizes.append(cache.shape[2])
    assert sizes == [1, 2, 3, 3, 3]


@torch.inference_mode()
def test_durations_step_by_step_are_durations_at_once():
    predictor = acoustic().variance_adaptor.duration_predictor
    condition = torch.randn(2, 7, 18, generator=torch.Generator().manual_seed(1))
    made = predictor.infer(condition)
    assert close(predictor.teacher_forced(condition, made), made)
    assert not close(predictor.teacher_forced(condition, made.roll(1, 1)), made, 1e-3)


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind):
    """A sentence beside a longer one, with masks, is the sentence alone."""
    network, lengths = acoustic(kind), (9, 5)
    ling, emotion, speaker = sentence(kind, batch=2)
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    text, voice, mood = network.encode(ling, emotion, speaker, mask)
    text, condition, pitch, energy = network.variance_adaptor(text, voice, mood, mask)
    durations = network.variance_adaptor.duration_predictor.infer(condition)
    frames = frames_of(durations) * mask
    memory, _ = network.build_memory(text, voice, mood, *stretch(frames, network.r))
    groups = -(-frames.sum(1) // network.r)
    there = torch.arange(memory.shape[1]) < groups[:, None]
    target = torch.randn(2, memory.shape[1] * network.r, network.decoder.mels)
    mel = network.decoder.teacher_forced(memory, target, 2, there)
    refined = network.mel_postnet(mel, torch.arange(mel.shape[1]) < frames.sum(1)[:, None])
    for row, length in enumerate(lengths):
        one = slice(row, row + 1)
        alone = network.encode(ling[one, :length], emotion[one, :length], speaker[one, :length])
        own_text, own_condition, own_pitch, own_energy = network.variance_adaptor(*alone)
        assert close(own_pitch, pitch[one, :length]) and close(own_energy, energy[one, :length])
        assert close(own_condition, condition[one, :length])
        own, _ = network.build_memory(own_text, *alone[1:], *stretch(frames[one, :length], network.r))
        assert close(own, memory[one, : own.shape[1]])
        own_mel = network.decoder.teacher_forced(own, target[one, : own.shape[1] * network.r], 2)
        assert close(own_mel, mel[one, : own_mel.shape[1]])
        total = int(frames[row].sum())
        assert close(network.mel_postnet(own_mel[:, :total]), refined[one, :total])


@pytest.mark.parametrize("kind", ["plain", "se"])
def test_training_reaches_every_weight(kind):
    network = acoustic(kind).train()
    text, voice, mood = network.encode(*sentence(kind, batch=2))
    text, condition, pitch, energy = network.variance_adaptor(text, voice, mood)
    durations = network.variance_adaptor.duration_predictor.teacher_forced(condition, torch.rand(2, 9))
    frames = torch.full((2, 9), 2)
    memory, _ = network.build_memory(text, voice, mood, *stretch(frames, 3))
    mel = network.decoder.teacher_forced(memory, torch.randn(2, 18, network.decoder.mels), 1)
    mel = mel + network.mel_postnet(mel)
    sum(x.square().sum() for x in (pitch, energy, durations, mel)).backward()
    assert not [name for name, x in network.named_parameters() if x.requires_grad and not x.grad.any()]


@torch.inference_mode()
def test_true_pitch_and_energy_can_be_told():
    network = acoustic()
    given = network.encode(*sentence())
    _, condition, pitch, energy = network.variance_adaptor(*given)
    assert close(network.variance_adaptor(*given, targets=(pitch, energy))[1], condition, 0)
    _, other, same, _ = network.variance_adaptor(*given, targets=(pitch + 1, energy))
    assert close(same, pitch, 0) and not close(other, condition, 1e-2)


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_the_traced_parts_speak_as_the_whole(kind):
    """Each part is traced on inputs of other lengths than the sentence's; steps carry their state by hand."""
    network = acoustic(kind)
    adaptor, decoder = network.variance_adaptor, network.decoder
    sample = sentence(kind, phonemes=4, seed=1)
    voices = network.encode(*sample)
    text, condition, _, _ = adaptor(*voices)
    token, place = stretch(torch.tensor([[2, 1, 3, 1]]), network.r)
    memory, ahead = network.build_memory(text, *voices[1:], token, place)
    frame, cache, band = torch.zeros(1, 1, decoder.mels), torch.zeros(3, 1, 2, 32), torch.tensor(2)
    encode = traced(Part(network, "encode"), *sample)
    adapt = traced(adaptor, *voices)
    last = traced(adaptor.duration_predictor, torch.zeros(1, 1), condition[:, :1], *adaptor.duration_predictor.start(1))
    build_memory = traced(Part(network, "build_memory"), text, *voices[1:], token, place)
    step = traced(decoder, frame, memory[:, :1], ahead[:, :, :3], cache, band)
    finish = traced(Part(network, "finish"), torch.randn(1, 5, decoder.mels))

    given = sentence(kind, batch=2)
    for ours, theirs in zip(adapt(*encode(*given)), adaptor(*network.encode(*given)), strict=True):
        assert close(ours, theirs)
    given = sentence(kind)
    expected = network(*given)
    text, voice, mood = encode(*given)
    text, condition, pitch, energy = adapt(text, voice, mood)
    assert close(pitch, expected.pitch) and close(energy, expected.energy)
    durations, state = [torch.zeros(1, 1)], adaptor.duration_predictor.start(1)
    for phone in range(condition.shape[1]):
        made, *state = last(durations[-1], condition[:, phone : phone + 1], *state)
        durations.append(made)
    durations = torch.cat(durations[1:], 1)
    assert close(durations, expected.log_durations)
    memory, ahead = build_memory(text, voice, mood, *stretch(frames_of(durations), network.r))
    frames, cache, band = [torch.zeros(1, 1, 3 * decoder.mels)], decoder.start(1), expected.band
    for group in range(memory.shape[1]):
        window = ahead[:, :, group : group + band + 1]
        previous = frames[-1][..., -decoder.mels :]
        made, cache = step(previous, memory[:, group : group + 1], window, cache, torch.tensor(band))
        frames.append(made)
    mel = torch.cat(frames[1:], 1).reshape(1, -1, decoder.mels)[:, : expected.mel.shape[1]]
    assert close(mel, expected.decoded, 1e-4)
    theirs = network.in_hertz(expected.mel) if network.nsf else expected.mel
    assert np.allclose(finish(mel)[0].transpose(1, 2), theirs, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_setting_that_is_missing_is_named():
    with pytest.raises(ValueError, match="configuration of KanTtsSAMBERT has no 'decoder_num_units'"):
        params = {key: x for key, x in ACOUSTIC.items() if key != "decoder_num_units"}
        KanTtsSAMBERT({"Model": {"KanTtsSAMBERT": {"params": params}}})
    with pytest.raises(ValueError, match="no Model / KanTtsSAMBERT / params"):
        KanTtsSAMBERT({"Model": {"Generator": {"params": {}}}})
