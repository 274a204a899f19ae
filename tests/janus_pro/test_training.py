"""What the tiny checkpoint is trained on and how: tokens and truth that fit the pictures, losses that fall."""

import json
import re

import numpy as np
import pytest
import torch

from notebooks.janus_pro import data, network
from notebooks.janus_pro.network import PADDING
from notebooks.janus_pro.training import autoencoder, language, settings, vision
from notebooks.janus_pro.training.batches import PLACE_WORDS, Batches, at_points, conversation, to_pixels
from utils.drawn_world.scenes import COLOURS, SHAPES, draw
from utils.training.vision_language import FP32_ATTENTION, point_cross_entropy

RELATION_PAIRS = [("left", "right"), ("right", "left"), ("above", "below"), ("below", "above")]


@pytest.fixture(scope="module")
def tokenizer():
    return settings.make_tokenizer()


@pytest.fixture(scope="module")
def batches(tokenizer) -> Batches:
    return Batches(tokenizer)


@pytest.fixture
def model():
    return settings.untrained()


@pytest.fixture
def short(tmp_path, monkeypatch):
    """Stages of two steps, which leave no files."""
    monkeypatch.setattr(settings, "WORK", tmp_path)
    for options in settings.STAGES.values():
        monkeypatch.setitem(options, "steps", 2)


def changed(model, before: dict) -> set[str]:
    """The parts of the network that are not as they were."""
    keys = {key for key, x in model.state_dict().items() if not torch.equal(x, before[key])}
    return {part for part in network.PARTS for key in keys if key.startswith(f"{part}.")}


def copied(model) -> dict:
    return {key: x.clone() for key, x in model.state_dict().items()}


def test_the_truth_at_a_point_is_what_is_drawn_there(batches):
    batch = batches.points(12, np.random.default_rng(3))
    painted = torch.tensor(list(COLOURS.values()))
    seen = (batch["pixels"] + 1) * 127.5
    same = []
    for number, patch, point in (batch["truth"][..., 1] > 0).nonzero().tolist():
        y, x = 16 * (patch // 6) + 2 + 4 * (point // 4), 16 * (patch % 6) + 2 + 4 * (point % 4)
        colour = batch["truth"][number, patch, point, 1] - 1
        same.append(int((painted - seen[number, :, y, x]).abs().sum(1).argmin()) == colour)
    assert len(same) > 300 and np.mean(same) > 0.9  # edges are smooth
    assert batch["truth"].amax((0, 1, 2)).tolist() == [len(SHAPES), len(COLOURS)]


def test_what_is_to_be_learned_of_a_conversation_is_its_answers(batches, tokenizer):
    rng, asked = np.random.default_rng(6), []
    while len(asked) < 2:
        _, asked = conversation(rng)
    ids, learned = batches.tokens(asked)
    answers = "".join(f" {question.target}{settings.END}" for question in asked)
    assert tokenizer.decode([i for i, wanted in zip(ids, learned, strict=True) if wanted]) == answers
    text = tokenizer.decode([i for i in ids[: learned.index(1)] if i != settings.PLACEHOLDER])
    begin = f"{settings.BEGIN}<|User|>: <begin_of_image><end_of_image>\n"
    assert text == f"{begin}{asked[0].text}\n\n<|Assistant|>:" and ids.count(settings.PLACEHOLDER) == 36


def test_every_picture_is_asked_about(monkeypatch):
    alike = data.drawable_scene(np.random.default_rng(0), [("red", "star")] * 2)
    monkeypatch.setattr(data, "any_scene", lambda rng: alike)
    for seed in range(30):
        _, asked = conversation(np.random.default_rng(seed))
        assert asked


def test_a_share_of_pictures_has_duplicates(monkeypatch):
    made, scene = [], data.scene_with_duplicates
    monkeypatch.setattr(data, "scene_with_duplicates", lambda rng: made.append(1) or scene(rng))
    for seed in range(200):
        conversation(np.random.default_rng(seed), 0.3)
    assert 40 < len(made) < 80
    made.clear()
    for seed in range(30):
        conversation(np.random.default_rng(seed))
    assert not made


def test_a_prompt_is_followed_by_its_picture(batches, tokenizer):
    batch = batches.prompts(60, np.random.default_rng(7))
    assert (batch["learned"].sum(1) == 36).all() and batch["pixels"].shape == (60, 3, 96, 96)
    unprompted = 0
    for ids, learned in zip(batch["ids"], batch["learned"], strict=True):
        before = ids[: learned.int().argmax()].tolist()
        text, words = tokenizer.decode(before), set(before[1:])
        assert text.startswith(settings.BEGIN) and ids[learned][0] == settings.BEGIN_OF_IMAGE
        assert set(ids[learned][1:].tolist()) == {settings.PLACEHOLDER}
        if words == {tokenizer.convert_tokens_to_ids(PADDING)}:
            unprompted += 1
        else:
            assert re.fullmatch(r".*<\|User\|>: .+\n\n<\|Assistant\|>:", text, re.DOTALL)
    assert 0 < unprompted < 15


def test_held_out_pairs_are_asked_for_by_one_word_alone(batches, tokenizer):
    batch = batches.prompts(300, np.random.default_rng(7))
    pairs = zip(batch["ids"], batch["learned"], strict=True)
    texts = [tokenizer.decode(ids[: learned.int().argmax()]) for ids, learned in pairs]
    assert not any(f"{colour} {shape}" in text for text in texts for colour, shape in data.HELD_OUT_PAIRS)
    assert sum(" thing" in text for text in texts) > 5


def test_names_are_single_tokens(batches, tokenizer):
    decoded = [[tokenizer.decode(i) for i in ids.tolist()] for ids in batches.names()]
    assert decoded == [[f" {name}" for name in names] for names in (SHAPES, COLOURS, PLACE_WORDS)]


def test_judging_begins_after_the_places(batches, tokenizer):
    batch = batches.judgements(20, np.random.default_rng(9))
    assert "pixels" not in batch
    for ids, learned in zip(batch["ids"], batch["learned"], strict=True):
        follows = tokenizer.decode(ids[learned])
        assert any(re.match(f", {a} yes, {b} no, ", follows) for a, b in RELATION_PAIRS)
        fits = re.fullmatch(rf", (\w+) yes, \w+ no, (\w+): (yes|no){re.escape(settings.END)}", follows)
        assert (fits[1] == fits[2]) == (fits[3] == "yes")


def test_image_tokens_are_learned_from_those_before(model, batches, monkeypatch):
    """What follows a token must not be known when it is told: to change the end changes nothing before."""
    batch, random = batches.prompts(2, np.random.default_rng(8)), torch.Generator().manual_seed(0)
    tokens = torch.randint(512, (2, 36), generator=random)
    others = torch.cat([tokens[:, :25], (tokens[:, 25:] + 1) % 512], 1)
    model.eval()
    found = []
    with torch.inference_mode():
        for given in (tokens, others):
            monkeypatch.setattr(language, "encode_pictures", lambda *_, given=given: given)
            logits, targets = language.image_logits(model, batch)
            assert logits.shape == (72, 512) and torch.equal(targets, given.flatten())
            found.append(logits.reshape(2, 36, -1))
    apart = (found[0] - found[1]).abs().amax((0, 2))
    assert apart[:26].max() < 1e-4 < apart[26:].max()


def test_short_conversations_are_not_padded_to_long_ones(batches):
    short, long = batches.questions(10, np.random.default_rng(8))
    lengths = [(batch["ids"] != settings.PADDING_ID).sum(1).tolist() for batch in (short, long)]
    assert len(lengths[0]) == len(lengths[1]) == 5 and max(lengths[0]) <= min(lengths[1])
    assert [batch["ids"].shape[1] for batch in (short, long)] == [max(x) for x in lengths]
    assert all(batch["pixels"].shape == (5, 3, 96, 96) for batch in (short, long))


def test_attention_in_fp32_is_that_of_transformers(model, batches):
    batch, _ = batches.questions(4, np.random.default_rng(8))
    model.eval()
    with torch.inference_mode():
        usual, _ = language.answer_logits(model, batch)
        model.model.language_model.set_attn_implementation(FP32_ATTENTION)
        ours, _ = language.answer_logits(model, batch)
    assert torch.allclose(ours, usual, atol=1e-4) and usual.std() > 0.01


def test_unused_codes_are_restarted(model):
    vq = autoencoder.Autoencoder(model)
    vq.taken[:500] = 1
    latents = torch.nn.functional.normalize(torch.randn(2, 36, 8), dim=-1)
    before = model.model.vqmodel.quantize.embedding.weight.clone()
    latents[0] = torch.nn.functional.normalize(before[0], dim=-1)  # white paper, which has a code
    vq.restart_unused(latents)
    after = model.model.vqmodel.quantize.embedding.weight
    assert torch.equal(after[:500], before[:500]) and vq.taken.sum() == 0
    assert all((latents[1] == code).all(1).any() for code in after[500:])
    assert len(after[500:].unique(dim=0)) == 12


def test_the_autoencoder_trains_through_its_choice(model):
    vq = autoencoder.Autoencoder(model)
    true = to_pixels([draw(data.any_drawable_scene(np.random.default_rng(1)))])
    made, colours, apart = vq(true)
    assert made.shape == true.shape and colours.shape == (1, 36, 16, 9) and 0 < apart < 5
    autoencoder.reconstruction_loss(made, true).backward()
    gradient = vq.vq.encoder.conv_in.weight.grad
    assert gradient is not None and gradient.abs().max() > 0
    tokens = network.encode_pictures(model, true)
    with torch.no_grad():
        assert torch.allclose(model.model.vqmodel.decode(tokens), made, atol=1e-4)
    assert set(vq.taken.nonzero()[:, 0].tolist()) == set(tokens.flatten().tolist())


def test_colours_that_cannot_be_read_from_codes_change_the_latents(model):
    vq = autoencoder.Autoencoder(model)
    scene, _ = data.random_prompt(np.random.default_rng(1), "several")
    _, read, _ = vq(to_pixels([draw(scene)]))
    truth = at_points(scene)[None, ..., 1:]
    assert truth.max() > 0
    point_cross_entropy(read, truth, settings.CLASSES[1:]).backward()
    gradient = vq.vq.encoder.conv_in.weight.grad
    assert gradient is not None and gradient.abs().max() > 0


def test_the_background_is_one_latent():
    true = torch.ones(2, 3, 96, 96)
    true[0, :, 16:32, 16:32] = -1  # token 7
    true[1, 2, 95, 95] = 0.9  # token 35
    latents = torch.zeros(2, 36, 8)
    latents[..., 0] = 1
    latents[0, 7], latents[1, 35] = torch.eye(8)[1], torch.eye(8)[2]  # no paper: these may be anything
    assert autoencoder.background_loss(true, latents) == 0
    latents[1, 7] = torch.eye(8)[1]
    assert autoencoder.background_loss(true, latents) > 0.005
    assert autoencoder.background_loss(-true, latents) == 0  # no paper at all


def test_edges_count_more():
    white = torch.ones(1, 3, 96, 96)
    true = white.clone()
    true[..., 40:60, 40:60] = -1
    inside, edge = true.clone(), true.clone()
    inside[..., 46:54, 46:54] = 1
    edge[..., 40:44, 44:60] = 1
    assert (
        autoencoder.reconstruction_loss(true, true)
        == 0
        < autoencoder.reconstruction_loss(inside, true)
        < autoencoder.reconstruction_loss(edge, true)
    )


def test_similar_codes_become_the_one_that_is_used_most():
    angles = torch.tensor([0.0, 0.1, 0.2, 1.0])
    codes = torch.stack([angles.cos(), angles.sin()], 1)
    assert autoencoder.MAX_COSINE < torch.tensor(0.2).cos()
    found = autoencoder.merge_similar_codes(codes, torch.tensor([5.0, 9.0, 0.0, 1.0]))
    assert torch.equal(found, codes[[1, 1, 1, 3]])


def test_an_output_that_contains_the_right_names_alone_has_the_lowest_loss(batches):
    torch.manual_seed(0)
    words = torch.nn.functional.normalize(torch.randn(settings.VOCABULARY, 256), dim=-1)
    shapes, colours, places = batches.names()
    bottom_left = settings.TOKENS - settings.ROWS
    truth = torch.zeros(1, settings.TOKENS, 16, 2, dtype=torch.int64)
    truth[0, bottom_left, 1] = torch.tensor([3, 5])  # the third shape in the fifth colour at one point of one patch
    what = words[shapes[2]] + words[colours[4]]
    where = sum(words[places[PLACE_WORDS.index(word)]] for word in ("bottom", "left"))

    def error(name, patch):
        output = torch.zeros(1, settings.TOKENS, 256)
        output[0, patch] = 8 * name
        return float(vision.names_loss(output, truth, words, batches.names()))

    right, silent = error(what + where, bottom_left), error(0 * what, 0)
    assert right < error(what, bottom_left) < silent
    assert silent < min(error(what, bottom_left + 1), error(where, bottom_left + 1))


def test_every_stage_teaches_its_parts_alone(model, batches, short):
    tower, words = {"model.vision_model", "model.aligner"}, {"model.language_model", "lm_head"}
    readout = vision.VisionReadout(model)
    stages = [
        (lambda: autoencoder.train_autoencoder(model), {"model.vqmodel", "model.generation_embeddings"}),
        (lambda: vision.train_vision(readout, model, batches, "seeing"), tower),
        (lambda: language.train_judging(model, batches), words),
        (lambda: vision.train_vision(readout, model, batches, "naming"), {"model.aligner"}),
        (
            lambda: language.train_both_tasks(model, batches, "duplicates"),
            set(network.PARTS) - {"model.vision_model", "model.vqmodel"},
        ),
    ]
    for stage, parts in stages:
        before = copied(model)
        stage()
        assert changed(model, before) == parts


def test_the_files_are_those_that_the_network_is_loaded_from(model, tokenizer, tmp_path):
    network.save_tiny(tmp_path, model)
    tokenizer.save_pretrained(tmp_path)
    loaded = network.load(tmp_path, dtype=torch.float32)
    assert all(torch.equal(x, model.state_dict()[key].half().float()) for key, x in loaded.state_dict().items())
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 10e6
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["vq_config"]["num_patches"] == 6
    with torch.no_grad():
        model.lm_head.weight[0, 0] = 1e9
    written = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="cannot be saved in FP16, there are values not finite: lm_head.weight"):
        network.save_tiny(tmp_path, model)
    assert (tmp_path / "model.safetensors").read_bytes() == written


def test_the_last_stage_trains_the_decoder_of_pictures_alone(model, short, monkeypatch):
    monkeypatch.setattr(autoencoder, "BATCH", 2)
    before = copied(model)
    autoencoder.train_decoder(model)
    keys = {key for key, x in model.state_dict().items() if not torch.equal(x, before[key])}
    assert {".".join(key.split(".")[:3]) for key in keys} == {
        f"model.vqmodel.{part}" for part in ("decoder", "post_quant_conv")
    }
