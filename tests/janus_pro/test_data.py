"""The pictures: drawn as the sentences say, and what tests ask for was never trained on."""

from collections import Counter

import numpy as np
import pytest

from notebooks.janus_pro import data
from notebooks.janus_pro.data import (
    DEVELOPMENT,
    EXAMINATION,
    HELD_OUT_PAIRS,
    PROMPT_KINDS,
    QUESTION_KINDS,
    held_out,
    held_out_prompts,
)
from notebooks.janus_pro.measuring import quality
from utils.drawn_world.scenes import COLOURS, PLACES, SHAPES


@pytest.mark.parametrize("kind", PROMPT_KINDS[:-1])
def test_a_scene_fulfils_its_sentence(kind):
    rng = np.random.default_rng(0)
    sizes = set()
    for _ in range(60):
        scene, prompt = data.random_prompt(rng, kind)
        things = scene.things
        assert [(thing.colour, thing.shape) for thing in things] == list(prompt.pairs)
        assert not set(prompt.pairs) & set(HELD_OUT_PAIRS)
        assert all(f"{colour} {shape}" in prompt.text for colour, shape in prompt.pairs)
        if kind == "place":
            assert prompt.text.rstrip(".").removesuffix(", please").endswith(f"the {things[0].place}")
            assert prompt.place == things[0].place
        if kind == "relation":
            dx, dy = things[0].x - things[1].x, things[0].y - things[1].y
            holds = {"left of": dx < 0, "right of": dx > 0, "above": dy < 0, "below": dy > 0}
            assert holds[prompt.relation] and f" {prompt.relation} a" in prompt.text
        sizes.add(len(things))
    assert sizes == {"count": {2, 3}, "several": {2, 3}, "relation": {2}}.get(kind, {1})


def test_things_to_be_drawn_fill_tokens_and_do_not_touch():
    rng = np.random.default_rng(1)
    for _ in range(60):
        scene, _ = data.random_prompt(rng, "several")
        for thing in scene.things:
            left, top = thing.x - data.THING_PX / 2, thing.y - data.THING_PX / 2
            assert (left % data.TOKEN_PX, top % data.TOKEN_PX) == (3, 3)
            assert thing.cell == int(thing.y // 32) * 3 + int(thing.x // 32)
        places = [(thing.x, thing.y) for thing in scene.things]
        assert all(max(abs(a - c), abs(b - d)) >= 32 for a, b in places for c, d in places if (a, b) != (c, d))


def test_any_drawing_has_up_to_six_different_things():
    rng, count = np.random.default_rng(5), Counter()
    for _ in range(200):
        things = data.any_drawable_scene(rng).things
        count[len(things)] += 1
        assert len({(thing.colour, thing.shape) for thing in things}) == len(things)
        count.update((thing.colour, thing.shape) for thing in things)
    assert {*range(7), *data.ALL_PAIRS} == set(count)


def test_duplicates_are_two_to_four_of_a_pair_and_up_to_two_others():
    rng, seen = np.random.default_rng(7), set()
    for _ in range(100):
        (_, alike), *others = Counter((x.colour, x.shape) for x in data.scene_with_duplicates(rng).things).most_common()
        assert {number for _, number in others} <= {1}
        seen.add((alike, len(others)))
    assert seen == {(alike, others) for alike in (2, 3, 4) for others in (0, 1, 2)}


def test_a_partial_prompt_is_a_colour_or_a_shape_of_any_pair():
    rng, mentioned, pairs = np.random.default_rng(6), Counter(), set()
    for _ in range(400):
        scene, prompt = data.partial_prompt(rng)
        ((colour, shape),) = prompt.pairs
        assert [(thing.colour, thing.shape) for thing in scene.things] == [(colour, shape)]
        an = "an" if colour == "orange" else "a"
        assert (f"{an} {colour} thing" in prompt.text) != (f"a {shape}" in prompt.text)
        assert not (colour in prompt.text and shape in prompt.text)
        mentioned[colour in prompt.text] += 1
        pairs.add(prompt.pairs[0])
    assert min(mentioned.values()) > 150 and pairs == set(data.ALL_PAIRS)


def test_how_two_ninths_lie_to_each_other():
    assert data.relations_between(0, 8) == ["left of", "above"] and data.relations_between(5, 3) == ["right of"]
    assert data.relations_between(7, 1) == ["below"] and data.relations_between(4, 4) == []


def test_things_are_listed_as_one_says_it():
    red, orange, blue = ("red", "circle"), ("orange", "cross"), ("blue", "star")
    assert data.in_words([red, red, blue]) == "two red circles and a blue star"
    assert data.in_words([orange]) == "an orange cross" and data.in_words([orange] * 3) == "three orange crosses"
    assert data.in_words([red, orange, blue]) == "a red circle, an orange cross and a blue star"


@pytest.mark.parametrize("kind", QUESTION_KINDS)
def test_held_out_questions_repeat_and_answer_in_the_world_s_words(kind):
    first, again = held_out(kind, 6), held_out(kind, 6)
    assert [q for _, q in first] == [q for _, q in again]
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(first, again, strict=True))
    known = {*COLOURS, *SHAPES, *PLACES, "yes", "no", *"0123456789"}
    assert all(question.kind == kind and question.answer in known for _, question in first)


@pytest.mark.parametrize("kind", QUESTION_KINDS)
def test_the_examination_has_other_scenes_than_development(kind):
    developed, examined = (
        {picture.tobytes() for picture, _ in held_out(kind, 20, seed)} for seed in (DEVELOPMENT, EXAMINATION)
    )
    assert len(examined) == 20 and not examined & developed
    assert {picture.tobytes() for picture, _ in quality.trials(20, [kind])} == examined


def test_the_examination_has_prompts_of_its_own():
    developed, examined = (
        [prompt.text for kind in PROMPT_KINDS for _, prompt in held_out_prompts(kind, 6, seed)]
        for seed in (DEVELOPMENT, EXAMINATION)
    )
    assert [prompt.text for _, prompt in quality.prompts(6)] == examined
    assert len({*examined} - {*developed}) > 24  # of 36; there are few new pairs
    counts = [len(prompt.pairs) for _, prompt in quality.prompts(6, ["count"])]
    assert {*counts} == {2, 3}


@pytest.mark.parametrize("kind", PROMPT_KINDS)
def test_held_out_prompts_have_other_wordings_and_repeat(kind):
    prompts = [prompt for _, prompt in held_out_prompts(kind, 6)]
    assert (
        prompts == [prompt for _, prompt in held_out_prompts(kind, 6)] and len({prompt.text for prompt in prompts}) == 6
    )
    begins = [sentence.partition("{a}")[0] for sentence in data.HELD_OUT_TEMPLATES]
    assert all(prompt.kind == kind and prompt.text.startswith(tuple(begins)) for prompt in prompts)
    assert not set(data.HELD_OUT_TEMPLATES) & set(data.PROMPT_TEMPLATES)
    pairs = {pair for prompt in prompts for pair in prompt.pairs}
    assert pairs == set(HELD_OUT_PAIRS) if kind == "new pair" else not pairs & set(HELD_OUT_PAIRS)


def test_scenes_to_ask_about_are_of_many_kinds():
    rng = np.random.default_rng(2)
    scenes = [data.any_scene(rng) for _ in range(80)]
    assert set(Counter(len(scene.things) for scene in scenes)) == {1, 2, 3, 4, 5, 6}
    assert len({scene.background for scene in scenes}) == 6
    tall = [all(thing.size == data.THING_PX for thing in scene.things) for scene in scenes]
    assert 8 < sum(tall) < 40
