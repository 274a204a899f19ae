"""What the tiny checkpoint is trained on: pictures with the truth at their points, conversations with their answers."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from notebooks.minicpm_v import data
from notebooks.minicpm_v.network import MiniCPMV
from notebooks.minicpm_v.training import language, settings, vision
from notebooks.minicpm_v.training.batches import Batches, conversation
from utils.drawn_world.scenes import COLOURS, LETTERS, SHAPES, random_scene
from utils.training.vision_language import FP32_ATTENTION

RELATION_PAIRS = [("left", "right"), ("right", "left"), ("above", "below"), ("below", "above")]


@pytest.fixture(scope="module")
def batches() -> Batches:
    return Batches(settings.make_tokenizer())


def pixels(batch: dict[str, torch.Tensor], number: int) -> np.ndarray:
    """The picture [rows * 14, columns * 14, 3] in 0..255 of which a slice's patches are."""
    rows, columns = batch["sizes"][number].tolist()
    patches = batch["pixel_values"][number, :, :, : rows * columns * 14].reshape(3, 14, rows, columns, 14)
    picture = patches.permute(2, 1, 3, 4, 0).reshape(rows * 14, columns * 14, 3)
    return ((picture + 1) * 127.5).numpy()


def test_the_truth_at_a_point_is_what_is_drawn_there(batches):
    batch = batches.points(30, np.random.default_rng(3), printed=False)
    painted = np.array(list(COLOURS.values()))
    same = []
    for number, (_, columns) in enumerate(batch["sizes"].tolist()):
        picture = pixels(batch, number)
        for patch, points in enumerate(batch["truth"][number]):
            y, x = 14 * (patch // columns), 14 * (patch % columns)
            for place, (_, colour, _) in enumerate(points.tolist()):
                if colour > 0:
                    seen = picture[y + 3 + 7 * (place // 2), x + 3 + 7 * (place % 2)]
                    same.append(np.abs(painted - seen).sum(1).argmin() == colour - 1)
    assert len(same) > 300 and np.mean(same) > 0.95  # edges are smooth


def test_points_have_the_classes_of_shapes_colours_and_letters(batches):
    truth = batches.points(40, np.random.default_rng(4), printed=False)["truth"]
    assert truth.shape[2:] == (4, 3)
    assert truth.amax((0, 1, 2)).tolist() == [len(SHAPES), len(COLOURS), len(LETTERS)]
    assert set(truth[truth < 0].tolist()) == {-100}


def test_reading_has_letters_in_every_slice(batches):
    batch = batches.points(30, np.random.default_rng(5), printed=True)
    assert ((batch["truth"][..., 2] > 0).flatten(1).any(1)).all()
    seeing = batches.points(30, np.random.default_rng(5), printed=False)
    assert not ((seeing["truth"][..., 2] > 0).flatten(1).any(1)).all()


def test_a_query_is_asked_about_the_patch_at_its_place():
    truth = torch.arange(6)[None, :, None, None].expand(1, 6, 4, 3)  # two rows of three patches, by their numbers
    asked = vision.at_queries(truth, torch.tensor([[2, 3]]))[0, :, 0, 0].reshape(settings.GRID, settings.GRID)
    assert asked[:2, :3].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (asked[2:] == -100).all() and (asked[:, 3:] == -100).all()


def test_untrained_queries_look_at_their_own_place():
    torch.manual_seed(0)
    model = MiniCPMV(settings.CONFIG)
    settings.init_resampler(model)
    attention = model.resampler.attn
    width = settings.CONFIG["hidden_size"]
    asking, offering = attention.in_proj_weight[:width], attention.in_proj_weight[width : 2 * width]
    places = model.resampler.query  # at the start a query is the position that it looks for
    scores = (places @ asking.T) @ (places @ offering.T).T
    assert (scores.argmax(1) == torch.arange(len(places))).all()


def test_every_picture_is_asked_about(monkeypatch):
    alike = random_scene(np.random.default_rng(0), 168, 168, things=(1, 1))
    alike = replace(alike, things=alike.things * 2)  # which no name tells apart
    monkeypatch.setattr(data, "small_scene", lambda rng: alike)
    for seed in range(30):
        assert all(asked for _, asked in conversation(np.random.default_rng(seed), large=False))


@pytest.mark.parametrize("large", [False, True])
def test_what_is_to_be_learned_of_a_conversation_is_its_answers(batches, large):
    tokenizer = settings.make_tokenizer()
    rng = np.random.default_rng(6)
    turns = conversation(rng, large)
    slices, ids, learned = batches.tokens(turns)
    answers = "".join(f"{question.target}<|im_end|>" for _, asked in turns for question in asked)
    assert tokenizer.decode([i for i, wanted in zip(ids, learned, strict=True) if wanted]) == answers
    pictures = settings.CONFIG["query_num"] * len(slices)
    assert ids.count(settings.SPECIAL.index("<unk>")) == pictures
    batch = batches.collate([batches.tokens(turns), batches.tokens(turns[:1])])
    logits, tokens = language.answer_logits(MiniCPMV(settings.CONFIG), batch)
    wanted = batch["ids"][:, 1:][batch["learned"][:, 1:]]
    assert logits.shape == (len(wanted), settings.VOCABULARY) and tokens.tolist() == wanted.tolist()


def test_attention_in_fp32_is_that_of_transformers(batches):
    torch.manual_seed(0)
    model = MiniCPMV(settings.CONFIG)
    batch = batches.questions(2, np.random.default_rng(8), large=False)
    with torch.inference_mode():
        usual, _ = language.answer_logits(model, batch)
        model.llm.set_attn_implementation(FP32_ATTENTION)
        ours, _ = language.answer_logits(model, batch)
    assert torch.allclose(ours, usual, atol=1e-5) and usual.std() > 0.01


def test_names_are_single_tokens_in_both_spellings(batches):
    tokenizer = settings.make_tokenizer()
    decoded = [[[tokenizer.decode(i) for i in ids.tolist()] for ids in same] for same in batches.names()]
    spaced = [[f" {name}" for name in names] for names in (SHAPES, COLOURS)]
    assert decoded == [[list(SHAPES), spaced[0]], [list(COLOURS), spaced[1]], [list(LETTERS)]]


def test_an_output_that_holds_the_right_names_alone_is_named_best(batches):
    words = torch.nn.Embedding(settings.VOCABULARY, 256)
    torch.manual_seed(0)
    torch.nn.init.normal_(words.weight, std=1 / 16)
    names = batches.names()
    truth = torch.zeros(1, 2, 4, 3, dtype=torch.int64)
    truth[0, 0, 1] = torch.tensor([3, 5, 0])  # the third shape in the fifth colour at one point of the first query
    unit = torch.nn.functional.normalize(words.weight, dim=-1)
    held = sum(unit[ids[at]] for same, at in ((names[0], 2), (names[1], 4)) for ids in same) * 8

    def error(first, second):
        with torch.no_grad():
            return float(vision.names_loss(torch.stack([first, second])[None], truth, words, names))

    nothing = torch.zeros(256)
    assert error(held, nothing) < 0.3 * error(nothing, nothing) < 0.3 * error(nothing, held)


def test_judging_begins_after_the_places(batches):
    tokenizer = settings.make_tokenizer()
    batch = batches.judgements(20, np.random.default_rng(9))
    assert "pixel_values" not in batch
    for ids, learned in zip(batch["ids"], batch["learned"], strict=True):
        given, follows = tokenizer.decode(ids[~learned]), tokenizer.decode(ids[learned])
        asked, other = next((a, b) for a, b in RELATION_PAIRS if re.match(f", {a} yes, {b} no, ", follows))
        fits = re.fullmatch(r", \w+ yes, \w+ no, (\w+): (yes|no)<\|im_end\|>", follows)
        assert f" {asked} " in given and fits[1] in (asked, other) and (fits[1] == asked) == (fits[2] == "yes")


def test_judging_teaches_the_language_model_alone(batches, tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "WORK", tmp_path)
    monkeypatch.setitem(settings.STAGES["judging"], "steps", 1)
    torch.manual_seed(0)
    model = MiniCPMV(settings.CONFIG)
    before = {key: x.clone() for key, x in model.state_dict().items()}
    language.train_judging(model, batches)
    changed = {key for key, x in model.state_dict().items() if not torch.equal(x, before[key])}
    assert {key.partition(".")[0] for key in changed} == {"llm"}


def test_a_refined_network_is_the_mean_of_before_and_after(batches, monkeypatch):
    def shift(model, batches, stage):
        with torch.no_grad():
            for values in model.parameters():
                values += 2

    monkeypatch.setattr(language, "train_answers", shift)
    torch.manual_seed(0)
    model = MiniCPMV(settings.CONFIG)
    before = {key: values.clone() for key, values in model.named_parameters()}
    language.refine(model, batches, "mixed")
    assert all(torch.allclose(values, before[key] + 1, atol=1e-5) for key, values in model.named_parameters())
