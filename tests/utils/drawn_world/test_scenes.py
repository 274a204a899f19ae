"""The drawn world: what a scene says is what its picture and its maps show."""

import numpy as np
import pytest

from utils.drawn_world.scenes import (
    COLOURS,
    LETTERS,
    PLACES,
    SHAPES,
    Scene,
    Thing,
    Word,
    draw,
    label_maps,
    random_scene,
    text_width,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def one(shape: str = "circle", colour: str = "red", **rest) -> Scene:
    return Scene(90, 60, (255, 255, 255), (Thing(shape, colour, 45, 30, 31, cell=4),), **rest)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_thing_is_drawn_in_its_colour_where_it_is(shape, colour):
    picture = np.asarray(draw(one(shape, colour))).astype(int)
    maps = label_maps(one(shape, colour))
    inside = maps[0] == SHAPES.index(shape) + 1
    assert 0.2 * 31**2 < inside.sum() < 1.05 * 31**2
    assert np.array_equal(maps[1] == list(COLOURS).index(colour) + 1, inside)
    rows, columns = np.nonzero(inside)
    assert (columns.min(), columns.max()) == pytest.approx((30, 60), abs=3)
    assert (rows.min(), rows.max()) == pytest.approx((15, 45), abs=3)
    assert np.median(np.abs(picture[inside] - COLOURS[colour]).sum(1)) == 0
    assert (picture[maps[0] == 0] == 255).mean() > 0.97  # the rest are smooth edges


def test_shapes_differ():
    masks = [label_maps(one(shape))[0] > 0 for shape in SHAPES]
    assert all((a != b).sum() > 60 for i, a in enumerate(masks) for b in masks[:i])


def test_each_letter_owns_the_box_that_it_is_printed_in():
    word = Word("OX", 45, 30, 24, "DejaVuSans.ttf")
    scene = Scene(90, 60, (255, 255, 255), (), (word,))
    letters, ink = label_maps(scene)[2], np.asarray(draw(scene))[..., 0] < 128
    assert set(np.unique(letters)) == {0, LETTERS.index("O") + 1, LETTERS.index("X") + 1}
    assert ink.sum() > 60 and (letters[ink] > 0).mean() > 0.95
    owners = [np.nonzero(letters == LETTERS.index(letter) + 1)[1] for letter in "OX"]
    assert owners[0].max() < owners[1].min()
    assert sum(len(set(x)) for x in owners) == pytest.approx(text_width("OX", word.font, 24), abs=2)


def test_random_scenes_keep_things_apart_and_inside():
    for seed in range(60):
        scene = random_scene(rng(seed), 200, 140, things=(2, 6), labels=("AB", "CDE"), label_height=12)
        cells = [thing.cell for thing in scene.things]
        assert 2 <= len(cells) == len(set(cells)) <= 6
        for thing in scene.things:
            row, column = divmod(thing.cell, 3)
            assert column * 200 / 3 <= thing.x - thing.size / 2 and thing.x + thing.size / 2 <= (column + 1) * 200 / 3
            assert row * 140 / 3 <= thing.y - thing.size / 2 and thing.y + thing.size / 2 <= (row + 1) * 140 / 3
            assert thing.place == PLACES[thing.cell]
        labelled = [thing for thing in scene.things if thing.label]
        assert {thing.label for thing in labelled} == {"AB", "CDE"} == {word.text for word in scene.words}
        for thing in labelled:
            word = next(word for word in scene.words if word.text == thing.label)
            assert thing.y + thing.size / 2 <= word.y <= (thing.cell // 3 + 1) * 140 / 3


def test_the_sign_covers_no_thing():
    for seed in range(60):
        scene = random_scene(rng(seed), 112, 112, things=(7, 7), sign="WMWMW")
        assert scene.sign == "WMWMW"
        maps = label_maps(scene)
        assert not ((maps[0] > 0) & (maps[2] > 0)).any()
        assert (maps[2] > 0).any(0).sum() <= 0.9 * 2 * 112 / 3 + 1


def test_a_scene_repeats():
    assert random_scene(rng(3), 112, 112) == random_scene(rng(3), 112, 112)
    assert random_scene(rng(3), 112, 112) != random_scene(rng(4), 112, 112)


@pytest.mark.parametrize("options", [{"things": (10, 10)}, {"things": (8, 8), "sign": "A"}, {"labels": ("A",) * 6}])
def test_what_does_not_fit_is_a_sentence(options):
    with pytest.raises(ValueError, match="do not fit into"):
        random_scene(rng(), 112, 112, **options)
