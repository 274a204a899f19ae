"""Training: phones belong to frames, slices to slices, labels to rows; stages change their own parts and go on."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from notebooks.gpt_sovits.data.speech import FRAME_S, SAMPLE_RATE_HZ, Recording
from notebooks.gpt_sovits.network import checkpoint
from notebooks.gpt_sovits.pipeline.constants import NOISE_SCALE
from notebooks.gpt_sovits.training import __main__ as training
from notebooks.gpt_sovits.training import bert as train_bert
from notebooks.gpt_sovits.training import hubert as train_hubert
from notebooks.gpt_sovits.training import sovits as train_sovits
from notebooks.gpt_sovits.training import t2s as train_t2s
from notebooks.gpt_sovits.training.guided_attention import GuidedAttention
from notebooks.gpt_sovits.training.labels import IGNORED
from notebooks.gpt_sovits.training.sovits import SLICE_FRAMES, Sentence, Sentences
from tests.gpt_sovits import small
from utils.training import loop, vocoder

TONES = (400, 2400)  # Hz, of phones 0 and 1 of a toy recording
HOP = 20  # samples of a frame of the small synthesizer


def recording(phones: list[int], frames: list[int], voice: str = "af_one", chinese: bool = False) -> Recording:
    """Every phone is a tone of its own."""
    time = np.arange(round(SAMPLE_RATE_HZ * FRAME_S)) / SAMPLE_RATE_HZ
    tones = [np.tile(np.sin(2 * np.pi * TONES[p % 2] * time), n) for p, n in zip(phones, frames, strict=True)]
    samples = (np.concatenate(tones) * 8000).astype(np.int16)
    text, word2ph = (
        ("字" * (len(phones) // 2), np.full(len(phones) // 2, 2)) if chinese else ("words", np.zeros(0, int))
    )
    return Recording(voice, "en", text, np.array(phones), word2ph, np.array(frames), samples)


def sentence(voice: str, frames: int, seed: int, phones: int = 5) -> Sentence:
    """Sound tells the frame, and no two sentences alike."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, small.CODES, (frames // 2,), generator=draw)
    guesses = torch.randint(0, small.CODES, (frames // 2, 3), generator=draw)
    level = torch.arange(frames) / 1000 + seed
    ids = torch.randint(0, small.PHONES, (phones,), generator=draw)
    alignment = torch.arange(frames) * phones // frames
    return Sentence(voice, ids, tokens, guesses, alignment, level.repeat_interleave(HOP) / 10)


def score(voice: str, phones: int, tokens: int, seed: int) -> train_t2s.TokenizedSentence:
    draw = torch.Generator().manual_seed(seed)
    codes = [torch.randint(0, small.CODES, (n,), generator=draw) for n in (tokens, tokens + 2)]
    ids = torch.randint(0, small.PHONES, (phones,), generator=draw)
    alignment = torch.arange(tokens + 2).clamp(max=phones - 1)
    return train_t2s.TokenizedSentence(voice, ids, torch.randn(small.WIDTH, phones, generator=draw), *codes, alignment)


@pytest.fixture
def sentences() -> Sentences:
    return Sentences([sentence(voice, 40 + 4 * i, i, 4 + i) for i, voice in enumerate("aabb")], HOP)


@pytest.fixture
def few(monkeypatch):
    """Two steps of each stage on tiny batches, in FP32 on any processor."""
    monkeypatch.setattr(loop, "torch_precision", lambda: "FP32")
    monkeypatch.setattr(train_hubert, "STEPS", 2)
    monkeypatch.setattr(train_t2s, "STEPS", 2)
    monkeypatch.setattr(train_sovits, "STEPS", {"sovits": 2, "sound": 2})
    monkeypatch.setattr(train_t2s, "BATCH", 2)
    monkeypatch.setattr(train_sovits, "BATCH", 2)
    monkeypatch.setattr(train_bert, "STEPS", 2)
    monkeypatch.setattr(train_hubert, "EXCERPT_S", (0.2, 0.3))
    monkeypatch.setattr(train_hubert, "BATCH_S", 0.5)
    monkeypatch.setattr(train_sovits, "MELS", 8)
    monkeypatch.setattr(vocoder, "FFT_SIZES", (64, 128))


def test_the_truth_at_a_frame_is_the_phone_that_is_said_there(monkeypatch):
    monkeypatch.setattr(train_hubert, "BATCH_S", 5)
    window = train_hubert.WINDOW_SAMPLES
    excerpts = train_hubert.Excerpts([recording([0, 1, 0, 1], [16, 24, 8, 40])])
    for seed in range(6):
        sounds, phones = excerpts.draw(np.random.default_rng(seed))
        assert phones.shape[1] == (sounds.shape[1] - window) // 320 + 1
        seconds = sounds.shape[1] / 16000
        assert 0.39 < seconds < 4.51 and abs(len(sounds) * seconds - 5) <= 0.51 * seconds
        for sound, truth in zip(sounds.numpy(), phones, strict=True):
            heard = np.lib.stride_tricks.sliding_window_view(sound, window)[::320][:, 75:475]
            spectrum = np.abs(np.fft.rfft(heard))
            high = spectrum[:, 45:80].sum(1) > spectrum[:, 5:20].sum(1)  # about 2400 and 400 Hz
            loud = spectrum[:, 5:80].sum(1) > 0.5 * np.median(spectrum[:, 5:80].sum(1))  # not the silence behind
            clear = loud & np.r_[True, truth[1:] == truth[:-1]] & np.r_[truth[1:] == truth[:-1], True]
            assert (high[clear] == (truth.numpy()[clear] == 1)).mean() > 0.95


def test_hubert_has_a_state_for_every_labelled_time():
    network = small.hubert()
    for samples in (4000, 4229, 4230, 4231, 16000):
        (found,) = network(torch.zeros(1, samples)).last_hidden_state
        assert len(found) == len(train_hubert.frame_times(samples))


def test_filters_are_pairs_for_frequencies_that_rise():
    bank = train_hubert.gabor_filters(40)[:, 0]
    assert bank.shape == (40, train_hubert.FILTER_SAMPLES) and torch.allclose(bank.norm(dim=1), torch.ones(40))
    power = torch.fft.rfft(bank, 16000).abs().square()  # Hz by Hz
    (cosines, sines) = power.argmax(1).reshape(2, 20)
    assert (cosines.diff() > 0).all() and 80 < cosines[0] < 250 and 6500 < cosines[-1] < 7600
    assert ((cosines - sines).abs() < 20).all() and (bank[:20] * bank[20:]).sum(1).abs().max() < 1e-5


def test_excerpts_are_a_function_of_the_seed():
    excerpts = train_hubert.Excerpts([recording([0, 1], [60, 60])])
    first, again = (excerpts.draw(np.random.default_rng(3)) for _ in range(2))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0][0], first[0][1])


def test_tokens_and_sound_of_a_sentence_have_the_same_frames():
    parts = {"hubert": small.hubert(), "sovits": small.synthesizer()}
    found = training.sentence(parts, recording([0, 1, 0], [33, 8, 40]))
    assert 2 * len(found.tokens) == len(found.alignment) and len(found.sound) == 640 * len(found.alignment)
    assert 0 <= 81 * 400 - len(found.sound) < 2 * 640 and found.phones.tolist() == [0, 1, 0]
    ends = torch.tensor([33, 41]) * FRAME_S * 50
    middles = torch.arange(len(found.alignment)) + 0.5
    assert found.alignment.tolist() == (middles[:, None] >= ends).sum(1).tolist()


def test_slices_of_sound_and_of_latents_are_of_the_same_time(sentences):
    given = sentences.draw(3, np.random.default_rng(0))
    begun = torch.stack([sound[::HOP] for sound in given.sound])[:, None]  # a number of every frame
    frames = train_sovits.slices(begun, given.starts)[:, 0]
    sound = train_sovits.slices(given.sound[:, None], given.starts, HOP)
    assert frames.shape == (3, SLICE_FRAMES) and sound.shape == (3, 1, SLICE_FRAMES * HOP)
    assert torch.equal(sound[:, 0, ::HOP], frames)
    assert len({int(x) for x in given.starts}) > 1
    ends = given.starts + SLICE_FRAMES
    assert (ends <= given.mask.sum((1, 2))).all()


def test_a_reference_is_another_sentence_of_the_same_voice(sentences):
    for seed in range(10):
        given = sentences.draw(2, np.random.default_rng(seed))
        own, other = (given.sound[:, 0] * 10).round().int(), (given.reference[:, 0] * 10).floor().int()
        assert (own != other).all() and (own // 2 == other // 2).all()
        lengths = given.reference_mask.sum((1, 2)) * HOP
        assert all(row[int(n) :].abs().sum() == 0 for row, n in zip(given.reference, lengths, strict=True))


def test_tokens_are_clusters_of_pairs_of_states_that_tell_phones_and_are_kept(tmp_path):
    """One direction, a voice's as it were, varies most and tells no phone; after a norm one never varies."""
    network, draw = small.synthesizer(), torch.Generator().manual_seed(0)
    centres = torch.randn(small.CODES, small.WIDTH, generator=draw)
    said = torch.randint(0, small.CODES, (4000,), generator=draw)
    pairs = centres[said] + 0.05 * torch.randn(4000, small.WIDTH, generator=draw)
    pairs += 99 * torch.randn(4000, 1, generator=draw) * torch.randn(small.WIDTH, generator=draw)
    states = pairs.repeat_interleave(2, 0)
    states += 0.01 * torch.randn(len(states), small.WIDTH, generator=draw)
    states += 1 - states.mean(1, keepdim=True)
    train_sovits.learn_codebook(tmp_path, network, [(states, said.repeat_interleave(2))])
    found = network.encode(states.T[None])[0]
    pure = sum(int(torch.bincount(said[found == token]).max()) for token in found.unique())
    assert pure > 0.9 * len(said)
    again = small.synthesizer()
    train_sovits.learn_codebook(tmp_path, again, iter(()))
    assert torch.equal(again.encode(states.T[None])[0], found)


def test_half_of_the_tokens_are_guesses_each_of_its_own_token():
    tokens = torch.arange(0, 4000, 4)
    guesses = tokens[:, None] + torch.arange(1, 4)
    given = sentence("a", 2000, 0)._replace(tokens=tokens, guesses=guesses)
    guessed = train_sovits.guessed_tokens(given, np.random.default_rng(0))
    assert torch.equal(guessed // 4 * 4, tokens)
    kinds = torch.bincount(guessed % 4) / 1000
    assert 0.45 < kinds[0] < 0.55 and kinds[1:].min() > 0.12


def test_latents_are_learned_from_guesses_and_judged_from_tokens(few, sentences, monkeypatch):
    both = torch.nn.ModuleDict({"network": small.synthesizer(), "mel": train_sovits.mel_probe(small.synthesizer())})
    batch, read = sentences.draw(2, np.random.default_rng(0)), []
    prior = both["network"].prior
    monkeypatch.setattr(both["network"], "prior", lambda tokens, *rest: read.append(tokens) or prior(tokens, *rest))
    for mode in (True, False):
        train_sovits.prior_losses(both.train(mode), batch, np.random.default_rng(0))
    assert torch.equal(read[0], batch.guessed) and torch.equal(read[1], batch.tokens)
    assert not torch.equal(batch.guessed, batch.tokens)


def test_training_generates_the_sound_of_inference(few, sentences, monkeypatch):
    monkeypatch.setattr(train_sovits, "SLICE_FRAMES", 40)
    network, given = small.synthesizer().eval(), sentences.batch([0], [1], np.random.default_rng(0))
    drawn = torch.Generator().manual_seed(int(np.random.default_rng(7).integers(2**31)))
    noise = NOISE_SCALE * torch.randn(1, network.dec.conv_pre.in_channels, 40, generator=drawn)
    with torch.no_grad():
        ge = network.style(network.spectrogram(given.reference))
        expected = network(given.tokens, given.phones, ge, noise)
        made, true = train_sovits.generate_slices(network, given, np.random.default_rng(7))
    assert torch.allclose(made, expected, atol=1e-5) and torch.equal(true[0], given.sound)


def test_latents_learn_the_spectrum_of_their_frame_without_padding(few, sentences):
    network = small.synthesizer()
    both = torch.nn.ModuleDict({"network": network, "mel": train_sovits.mel_probe(network)}).eval()
    both["mel"].weight.data.zero_()
    given = sentences.batch([0, 3], [1, 2], np.random.default_rng(0))
    wanted = train_sovits.mel(network, given.sound)
    level = float(wanted[:, 0][given.mask[:, 0] > 0].mean())
    both["mel"].bias.data.fill_(level)
    with torch.no_grad():
        found = train_sovits.prior_losses(both, given, np.random.default_rng(0))[0]["latents"]
    there = given.mask.expand_as(wanted) > 0
    assert not there.all() and float(found) == pytest.approx(float((wanted[there] - level).abs().mean()), rel=1e-4)


def test_a_sentence_is_taught_alike_alone_and_beside_a_longer_one(sentences):
    network, rng = small.synthesizer(), np.random.default_rng(0)
    both = sentences.batch([0, 3], [1, 2], rng)
    alone = sentences.batch([0], [1], rng)
    found = []
    with torch.no_grad():
        for given in (both, alone):
            ge = small.drawn(1, 20, 1).expand(len(given.phones), -1, -1)
            frames = given.mask.shape[2]
            _, mean, _ = network.prior(given.tokens, given.phones, ge, frames, given.mask, given.text_mask)
            found.append(mean[0, :, :40])
    assert both.mask.shape[2] > 40 and both.text_mask[0].sum() == 4
    assert torch.allclose(*found, atol=1e-4)


PAIRS = [(score("a", 4, 6, 0), score("a", 5, 7, 1)), (score("b", 6, 9, 2), score("b", 7, 8, 3))]


def test_the_label_of_every_row_is_the_token_after_it_and_the_last_one_s_the_end():
    network, rng = small.t2s(), np.random.default_rng(0)
    logits, labels, alignment = train_t2s.teacher_forced(network, PAIRS, rng)
    for row, (reference, one) in zip(labels, PAIRS, strict=True):
        phones, tokens = len(reference.phones) + len(one.phones), torch.cat([reference.prompt, one.tokens])
        assert row[phones - 1 : phones - 1 + len(tokens)].tolist() == tokens.tolist()
        assert row[phones - 1 + len(tokens)] == network.eos
        assert (row[: phones - 1] == IGNORED).all()
        assert (row[phones + len(tokens) :] == IGNORED).all()
    assert logits.shape == (*labels.shape, small.CODES + 1)
    assert torch.equal(alignment == IGNORED, labels == IGNORED)
    reference, one = PAIRS[0]
    said = [*reference.alignment.tolist(), *(one.alignment[: len(one.tokens)] + len(reference.phones)).tolist()]
    assert alignment[0][alignment[0] != IGNORED].tolist() == [*said, said[-1]]


def test_tokens_know_which_phone_is_said_there(monkeypatch):
    monkeypatch.setattr(training, "SILENCE_SAMPLES", 6400)
    parts = {"hubert": small.hubert(), "sovits": small.synthesizer(), "bert": small.bert()}
    found = training.tokenized(parts, recording([0, 1, 0], [40, 8, 40]), {})
    assert len(found.prompt) == len(found.alignment) > len(found.tokens)
    begin, end = (40 * FRAME_S, 48 * FRAME_S)
    for number, place in enumerate(found.alignment.tolist()):
        middle = (number + 0.5) / 25
        assert place == (middle > begin) + (middle > end) or min(abs(middle - begin), abs(middle - end)) < 0.03


def test_where_a_head_looks_is_what_its_attention_weighs():
    layer, heads = small.t2s().h["layers"][0], small.t2s().heads
    x = torch.randn(1, 6, layer.norm1.normalized_shape[0])
    mask = train_t2s.prefix_mask(6, 6, 3)
    width = x.shape[-1] // heads
    weights, bias = layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias
    rows = torch.nn.functional.linear(x, weights, bias)
    query, key = (rows[..., start:][..., :width] for start in (0, x.shape[-1]))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, torch.eye(6)[None], mask[0])
    assert torch.allclose(train_t2s.attention_logits(layer, x, mask)[:, 0].softmax(-1), expected, atol=1e-6)


def test_where_frames_look_is_what_attention_to_phones_weighs(monkeypatch):
    attention = small.synthesizer().enc_p.mrte.cross_attention
    width = attention.conv_q.in_channels
    monkeypatch.setattr(train_sovits, "GUIDED_HEADS", attention.heads)
    frames, text, mask = torch.randn(1, width, 6), torch.randn(1, width, 3), torch.tensor([[[1.0, 1, 0]]])
    with torch.no_grad(), GuidedAttention([attention], train_sovits.attention_logits) as guided:
        found = attention(frames, text, mask)
        values = attention.conv_v(text).unflatten(1, (attention.heads, -1)).mT
        expected = attention.conv_o((guided.logits[0].softmax(-1) @ values).mT.flatten(1, 2))
    assert torch.allclose(found, expected, atol=1e-5) and not attention._forward_pre_hooks


def test_guided_attention_is_right_where_the_label_has_the_highest_logit():
    seen = 9 * torch.nn.functional.one_hot(torch.tensor([[[0, 2, 1], [0, 2, 2]]]), 3).float()
    with GuidedAttention([torch.nn.Identity()], lambda layer, x: x) as guided:
        guided.layers[0](seen)
    wrong, right = guided.loss_and_accuracy(torch.tensor([[0, 2, IGNORED]]))
    assert float(right) == 1 and float(wrong) < 0.01
    wrong, right = guided.loss_and_accuracy(torch.tensor([[0, 2, 1]]))
    assert float(right) == pytest.approx(5 / 6) and float(wrong) == pytest.approx(9 / 6, abs=0.01)


def test_the_decoder_learns_where_to_look_and_is_left_as_it_was(few, monkeypatch, tmp_path):
    monkeypatch.setattr(train_t2s, "STEPS", 30)
    monkeypatch.setattr(train_t2s, "LEARNING_RATE", 2e-2)
    network = small.t2s()

    def wrong() -> float:
        with GuidedAttention([network.h["layers"][1]], train_t2s.attention_logits) as guided:
            found = train_t2s.teacher_forced(network, PAIRS, np.random.default_rng(0))
        return float(guided.loss_and_accuracy(found.alignment)[0].detach())

    before = wrong()
    train_t2s.train(tmp_path, network, train_t2s.Pairs([one for pair in PAIRS for one in pair]))
    assert wrong() < before - 0.3
    assert not any(layer._forward_pre_hooks for layer in network.h["layers"])


def test_logits_are_those_of_inference_and_padding_is_not_seen():
    network = small.t2s()
    with torch.no_grad():
        logits, labels, _ = train_t2s.teacher_forced(network, PAIRS, np.random.default_rng(0))
        reference, one = PAIRS[0]
        phones, bert = torch.cat([reference.phones, one.phones]), torch.cat([reference.bert, one.bert], 1)
        known = len(reference.prompt)
        expected, cache = network.prefill(phones[None], bert[None], reference.prompt[None])
        place = len(phones) + known - 1
        assert torch.allclose(logits[0, place], expected[0], atol=1e-4) and labels[0, place] == one.tokens[0]
        following, _ = network.step(one.tokens[None, :1], known, cache)
        assert torch.allclose(logits[0, place + 1], following[0], atol=1e-4)


def test_guesses_are_likely_tokens_after_the_true_ones(monkeypatch):
    monkeypatch.setattr(train_t2s, "TOP_K", 3)
    network = small.t2s()
    reference, one = PAIRS[0]
    logits = train_t2s.teacher_forced(network, [PAIRS[0]], np.random.default_rng(0)).logits[0]
    found = train_t2s.guesses(network, reference, one, np.random.default_rng(0))
    first = len(reference.phones) + len(one.phones) + len(reference.prompt) - 1  # the row that predicts the first token
    for i, drawn in enumerate(found):
        best = logits[first + i, : network.eos].topk(3).indices
        assert torch.isin(drawn, best).all()
    assert found.shape == (len(one.tokens), train_t2s.GUESSES)


def test_labels_of_corrupted_tokens_are_right():
    network = small.t2s()
    plain = train_t2s.teacher_forced(network, PAIRS, np.random.default_rng(0))
    wrong = train_t2s.teacher_forced(network, PAIRS, np.random.default_rng(0), corrupted=0.5)
    assert torch.equal(plain[1], wrong[1]) and not torch.allclose(plain[0], wrong[0], atol=1e-3)


def test_a_pair_is_of_one_voice_and_two_sentences():
    pairs = train_t2s.Pairs([score(voice, 4, 5, i) for i, voice in enumerate("aabbb")])
    drawn = pairs.draw(40, np.random.default_rng(0))
    for reference, one in drawn:
        assert reference.voice == one.voice and reference is not one
    longer = [reference for reference, _ in drawn if len(reference.phones) == 8]
    assert 0 < len(longer) < 20 and all(len(x.prompt) == 12 and x.bert.shape[1] == 8 for x in longer)


def test_an_excerpt_is_what_is_said_of_its_phones():
    one = score("a", 6, 9, 0)._replace(alignment=torch.tensor([0, 0, 1, 2, 2, 4, 4, 5, 5, 5, 5]))
    begun = set()
    for seed in range(20):
        found = train_t2s.excerpt(one, 0.5, np.random.default_rng(seed))
        (begin,) = (i for i in range(4) if torch.equal(one.phones[i : i + 3], found.phones))
        there = [i for i, place in enumerate(one.alignment.tolist()) if begin <= place < begin + 3]
        assert found.prompt.tolist() == one.prompt[there].tolist()
        assert found.tokens.tolist() == one.tokens[[i for i in there if i < 9]].tolist()
        assert found.alignment.tolist() == (one.alignment[there] - begin).tolist()
        assert torch.equal(found.bert, one.bert[:, begin : begin + 3])
        begun.add(begin)
    assert begun == {0, 1, 2, 3}
    unsaid = one._replace(alignment=torch.zeros(11, dtype=torch.int64))
    assert any(train_t2s.excerpt(unsaid, 0.5, np.random.default_rng(seed)) is unsaid for seed in range(20))


def test_a_step_is_as_long_for_short_excerpts_as_for_whole_sentences(monkeypatch):
    monkeypatch.setattr(train_t2s, "DOUBLE_SHARE", 0)
    pairs = train_t2s.Pairs([score(voice, 40, 60, i) for i, voice in enumerate("aabb")])
    for seed in range(20):
        drawn = pairs.excerpts(np.random.default_rng(seed))
        phones = [len(reference.phones) + len(one.phones) for reference, one in drawn]
        assert len(set(phones)) == 1 and 0.9 * 16 * 80 < sum(phones) <= 16 * 80 + 80
        assert all(reference.voice == one.voice for reference, one in drawn)


def test_silence_is_behind_the_last_of_joined_sentences_alone():
    first, second = PAIRS[0]
    found = train_t2s.joined(first, second)
    assert found.prompt.tolist() == [*first.tokens.tolist(), *second.prompt.tolist()]
    assert found.tokens.tolist() == [*first.tokens.tolist(), *second.tokens.tolist()]


def test_characters_are_masked_but_their_labels_are_not():
    known = {x: i for i, x in enumerate([*train_bert.SPECIAL, *"天气很好"])}
    read = train_bert.text("天气很好", np.arange(10, 18), np.full(4, 2), known)
    assert read.readings.tolist() == [[10, 11], [12, 13], [14, 15], [16, 17]]
    assert read.ends.tolist() == [0, 1, 1, 1]
    short = train_bert.text("好", np.array([1, 2]), np.array([2]), known)
    hidden = []
    for seed in range(30):
        ids, there, labels = train_bert.masked_batch([read, short], np.random.default_rng(seed))
        assert ids[0, [0, 5]].tolist() == [train_bert.BEGIN, train_bert.END] and there.sum(1).tolist() == [6, 3]
        masked = ids[0, 1:5] == train_bert.MASK
        assert torch.equal(labels["guess"][0, 1:5] != IGNORED, masked)
        assert torch.equal(labels["guess"][0, 1:5][masked], read.ids[masked])
        assert labels["last"][:, 1:5].tolist() == [[11, 13, 15, 17], [2, *[IGNORED] * 3]]
        hidden.append(masked.float().mean())
    assert 0.05 < np.mean(hidden) < 0.3


def test_features_of_a_character_are_those_of_all_its_phones():
    bert, known = small.bert(), {"字": 7}
    found = train_bert.features(bert, recording([0, 1, 0, 1], [4] * 4, chinese=True), known)
    assert found.shape == (small.WIDTH, 4) and torch.equal(found[:, 0], found[:, 1])
    assert not torch.allclose(found[:, 1], found[:, 2])
    assert not train_bert.features(bert, recording([0, 1], [4] * 2), known).any()


def test_every_stage_changes_its_own_parts_alone(few, sentences, monkeypatch, tmp_path):
    monkeypatch.setattr(train_hubert, "PHONEMES", small.PHONES)
    monkeypatch.setattr(train_bert, "PHONEMES", small.PHONES)
    parts = {"hubert": small.hubert(), "sovits": small.synthesizer(), "bert": small.bert(), "t2s": small.t2s()}
    known = {x: i for i, x in enumerate([*train_bert.SPECIAL, *"天气很好"])}
    read = [train_bert.text("天气很好", np.arange(8), np.full(4, 2), known)]
    excerpts = train_hubert.Excerpts([recording([0, 1], [30, 30])])
    pairs = train_t2s.Pairs([one for pair in PAIRS for one in pair])
    stages = [
        (lambda: train_hubert.train(tmp_path, parts["hubert"], excerpts), {"hubert"}),
        (lambda: train_sovits.train_latents(tmp_path, parts["sovits"], sentences), {"sovits"}),
        (lambda: train_sovits.train_generator(tmp_path, parts["sovits"], sentences), {"sovits"}),
        (lambda: train_bert.train(tmp_path, parts["bert"], read), {"bert"}),
        (lambda: train_t2s.train(tmp_path, parts["t2s"], pairs), {"t2s"}),
    ]
    for stage, own in stages:
        before = copied(parts)
        stage()
        assert {name for name, x in copied(parts).items() if differing(before[name], x)} == own
        assert all(torch.isfinite(x).all() for part in copied(parts).values() for x in part.values())


def copied(parts: dict[str, torch.nn.Module]) -> dict[str, dict[str, torch.Tensor]]:
    return {name: {key: x.clone() for key, x in part.state_dict().items()} for name, part in parts.items()}


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
    return {key for key in one if not torch.equal(one[key], other[key])}


def test_first_the_latents_are_learned_then_the_sound(few, sentences, tmp_path):
    parts = {"sovits": small.synthesizer()}
    stages = (
        (train_sovits.train_latents, {"enc_p", "flow", "ref_enc"}),
        (train_sovits.train_generator, {"dec"}),
    )
    for stage, own in stages:
        before = copied(parts)["sovits"]
        stage(tmp_path, parts["sovits"], sentences)
        changed = differing(before, copied(parts)["sovits"])
        assert {key.partition(".")[0] for key in changed} == own


def test_a_stopped_stage_goes_on_to_the_same_weights(few, monkeypatch, tmp_path):
    pairs = train_t2s.Pairs([one for pair in PAIRS for one in pair])

    def learned(steps: int) -> dict[str, torch.Tensor]:
        monkeypatch.setattr(train_t2s, "STEPS", steps)
        network = small.t2s()
        train_t2s.train(tmp_path, network, pairs)
        return network.state_dict()

    pace = loop.learning_rate_factor
    monkeypatch.setattr(loop, "learning_rate_factor", lambda step, steps: pace(step, 4))
    whole = learned(4)
    (tmp_path / "t2s.pt").unlink()
    learned(2)
    resumed = learned(4)
    assert all(torch.allclose(whole[key], resumed[key], atol=1e-6) for key in whole)


def test_what_is_learned_is_less_wrong(few, monkeypatch, tmp_path):
    monkeypatch.setattr(train_t2s, "STEPS", 30)
    monkeypatch.setattr(train_t2s, "LEARNING_RATE", 2e-2)
    network = small.t2s()

    def wrong() -> float:
        logits, labels, _ = train_t2s.teacher_forced(network, PAIRS, np.random.default_rng(0))
        error = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED)
        return float(error.detach())

    before = wrong()
    train_t2s.train(tmp_path, network, train_t2s.Pairs([one for pair in PAIRS for one in pair]))
    assert wrong() < before - 0.2


def test_all_parts_are_evaluated(monkeypatch):
    monkeypatch.setattr(train_hubert, "PHONEMES", small.PHONES)
    data = small.DATA | {"filter_length": 2048, "win_length": 2048, "hop_length": 640, "sampling_rate": SAMPLE_RATE_HZ}
    sovits = small.randomised(
        training.SynthesizerTrn(
            {"data": data, "model": small.MODEL | {"upsample_rates": [10, 8, 8], "upsample_kernel_sizes": [10, 8, 8]}}
        )
    )
    parts = {"hubert": small.hubert(), "sovits": sovits, "bert": small.bert(), "t2s": small.t2s()}
    listener = train_hubert.PhonemeClassifier(parts["hubert"]).eval()
    with torch.no_grad():
        listener.phones.weight.zero_()
        listener.phones.bias.copy_(torch.eye(small.PHONES)[1])  # hears nothing but phone 1
    voices = ("af_one", "af_one", "am_two", "am_two")
    trials = [recording([0, 1], [40, 40], voice) for voice in voices]
    found = training.evaluate(listener, parts, trials, {})
    assert found["frame accuracy"] == pytest.approx(0.5, abs=0.02) and 0 <= found["token accuracy"] < 0.5
    assert len(found) == 4 and all(np.isfinite(x) for x in found.values())


def test_no_file_of_the_checkpoint_has_ten_megabytes_and_all_load(tmp_path):
    parts, known = training.networks(), train_bert.vocabulary()
    assert len(known) == parts["bert"].config.vocab_size
    training.save(tmp_path, parts, known)
    sizes = [file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()]
    assert max(sizes) < 10_000_000 and sum(sizes) < 24_000_000
    found = checkpoint.find(tmp_path)
    assert set(found) == set(checkpoint.PARTS)
    loaded = {name: getattr(checkpoint, f"load_{name}")(found[name]) for name in found}
    assert len(loaded["bert"].encoder.layer) == 2
    for name, network in loaded.items():
        state = parts[name].state_dict()
        assert all(torch.allclose(x, state[key], atol=1e-2) for key, x in network.state_dict().items())
    said = Tokenizer.from_file(str(found["bert"] / "tokenizer.json")).encode("天气，很好").ids
    assert said == [train_bert.BEGIN, *(known[x] for x in "天气，很好"), train_bert.END]
