"""The pictures: drawn as the sentences say, and what tests ask for was never trained on."""

from collections import Counter

import numpy as np
import pytest

from notebooks.janus_pro import data
from notebooks.janus_pro.data import NEW_PAIRS, QUESTIONS, WISHES, held_out, held_out_wishes
from utils.drawn_world.scenes import COLOURS, PLACES, SHAPES


@pytest.mark.parametrize("kind", WISHES[:-1])
def test_a_scene_fulfils_its_sentence(kind):
    rng = np.random.default_rng(0)
    sizes = set()
    for _ in range(60):
        scene, wish = data.wish(rng, kind)
        things = scene.things
        assert [(thing.colour, thing.shape) for thing in things] == list(wish.pairs)
        assert not set(wish.pairs) & set(NEW_PAIRS)
        assert all(f"{colour} {shape}" in wish.text for colour, shape in wish.pairs)
        if kind == "place":
            assert wish.text.rstrip(".").removesuffix(", please").endswith(f"the {things[0].place}")
            assert wish.place == things[0].place
        if kind == "relation":
            dx, dy = things[0].x - things[1].x, things[0].y - things[1].y
            lies = {"left of": dx < 0, "right of": dx > 0, "above": dy < 0, "below": dy > 0}
            assert lies[wish.beside] and f" {wish.beside} a" in wish.text
        sizes.add(len(things))
    assert sizes == {"count": {2, 3}, "several": {2, 3}, "relation": {2}}.get(kind, {1})


def test_things_to_be_drawn_fill_tokens_and_do_not_touch():
    rng = np.random.default_rng(1)
    for _ in range(60):
        scene, _ = data.wish(rng, "several")
        for thing in scene.things:
            left, top = thing.x - data.TALL / 2, thing.y - data.TALL / 2
            assert (left % data.TOKEN, top % data.TOKEN) == (3, 3)
            assert thing.cell == int(thing.y // 32) * 3 + int(thing.x // 32)
        places = [(thing.x, thing.y) for thing in scene.things]
        assert all(max(abs(a - c), abs(b - d)) >= 32 for a, b in places for c, d in places if (a, b) != (c, d))


def test_any_drawing_has_up_to_six_different_things():
    rng, count = np.random.default_rng(5), Counter()
    for _ in range(200):
        things = data.anything(rng).things
        count[len(things)] += 1
        assert len({(thing.colour, thing.shape) for thing in things}) == len(things)
        count.update((thing.colour, thing.shape) for thing in things)
    assert {*range(7), *data.ALL_PAIRS} == set(count)


def test_twins_are_two_to_four_of_a_pair_and_up_to_two_others():
    rng, seen = np.random.default_rng(7), set()
    for _ in range(100):
        (_, alike), *others = Counter((x.colour, x.shape) for x in data.twins(rng).things).most_common()
        assert {number for _, number in others} <= {1}
        seen.add((alike, len(others)))
    assert seen == {(alike, others) for alike in (2, 3, 4) for others in (0, 1, 2)}


def test_what_is_half_told_is_a_colour_or_a_shape_of_any_pair():
    rng, told, pairs = np.random.default_rng(6), Counter(), set()
    for _ in range(400):
        scene, wish = data.half_told(rng)
        ((colour, shape),) = wish.pairs
        assert [(thing.colour, thing.shape) for thing in scene.things] == [(colour, shape)]
        an = "an" if colour == "orange" else "a"
        assert (f"{an} {colour} thing" in wish.text) != (f"a {shape}" in wish.text)
        assert not (colour in wish.text and shape in wish.text)
        told[colour in wish.text] += 1
        pairs.add(wish.pairs[0])
    assert min(told.values()) > 150 and pairs == set(data.ALL_PAIRS)


def test_how_two_ninths_lie_to_each_other():
    assert data.lies(0, 8) == ["left of", "above"] and data.lies(5, 3) == ["right of"]
    assert data.lies(7, 1) == ["below"] and data.lies(4, 4) == []


def test_things_are_listed_as_one_says_it():
    red, orange, blue = ("red", "circle"), ("orange", "cross"), ("blue", "star")
    assert data.listed([red, red, blue]) == "two red circles and a blue star"
    assert data.listed([orange]) == "an orange cross" and data.listed([orange] * 3) == "three orange crosses"
    assert data.listed([red, orange, blue]) == "a red circle, an orange cross and a blue star"


@pytest.mark.parametrize("kind", QUESTIONS)
def test_held_out_questions_repeat_and_answer_in_the_world_s_words(kind):
    first, again = held_out(kind, 6), held_out(kind, 6)
    assert [q for _, q in first] == [q for _, q in again]
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(first, again, strict=True))
    known = {*COLOURS, *SHAPES, *PLACES, "yes", "no", *"0123456789"}
    assert all(question.kind == kind and question.answer in known for _, question in first)


@pytest.mark.parametrize("kind", WISHES)
def test_held_out_wishes_are_worded_anew_and_repeat(kind):
    wishes = [wish for _, wish in held_out_wishes(kind, 6)]
    assert wishes == [wish for _, wish in held_out_wishes(kind, 6)] and len({wish.text for wish in wishes}) == 6
    begins = [sentence.partition("{a}")[0] for sentence in data.NEW_SENTENCES]
    assert all(wish.kind == kind and wish.text.startswith(tuple(begins)) for wish in wishes)
    assert not set(data.NEW_SENTENCES) & set(data.SENTENCES)
    pairs = {pair for wish in wishes for pair in wish.pairs}
    assert pairs == set(NEW_PAIRS) if kind == "new pair" else not pairs & set(NEW_PAIRS)


def test_scenes_to_ask_about_are_of_many_kinds():
    rng = np.random.default_rng(2)
    scenes = [data.any_scene(rng) for _ in range(80)]
    assert set(Counter(len(scene.things) for scene in scenes)) == {1, 2, 3, 4, 5, 6}
    assert len({scene.background for scene in scenes}) == 6
    tall = [all(thing.size == data.TALL for thing in scene.things) for scene in scenes]
    assert 8 < sum(tall) < 40
