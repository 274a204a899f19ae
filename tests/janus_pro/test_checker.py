"""The geometric checker: right about true pictures, blurred and noisy ones too, and not to be fooled."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from notebooks.janus_pro import data
from notebooks.janus_pro.data import PROMPT_KINDS
from notebooks.janus_pro.measuring import checker
from utils.drawn_world.scenes import COLOURS, PLACES, SHAPES, Scene, Thing, draw


def spoilt(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """As a lossy autoencoder might give it back: soft, with noise."""
    soft = np.asarray(picture.filter(ImageFilter.GaussianBlur(1)), np.float64)
    return Image.fromarray((soft + rng.normal(0, 12, soft.shape)).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("kind", PROMPT_KINDS)
def test_true_pictures_are_told_right(kind):
    pairs = data.HELD_OUT_PAIRS if kind == "new pair" else data.TRAINING_PAIRS
    rng = np.random.default_rng(3)
    clear, soft = [], []
    for _ in range(60):
        scene, prompt = data.random_prompt(rng, kind, pairs=pairs)
        clear.append(checker.fulfils(draw(scene), prompt))
        soft.append(checker.fulfils(spoilt(draw(scene), rng), prompt))
    assert np.mean(clear) > 0.95 and np.mean(soft) > 0.95


def test_things_are_found_with_colour_shape_and_place():
    things = tuple(
        Thing(shape, colour, 16 + 32 * (cell % 3), 16 + 32 * (cell // 3), 26, cell)
        for cell, (shape, colour) in enumerate(zip([*SHAPES, "heart", "star"], COLOURS, strict=True))
    )
    found = checker.things(draw(Scene(96, 96, (255, 255, 255), things)))
    assert {(x.shape, x.colour, x.cell) for x in found} == {(x.shape, x.colour, x.cell) for x in things}


def one(kind: str) -> tuple[Scene, data.Prompt]:
    return data.random_prompt(np.random.default_rng(4), kind)


def test_what_is_missing_too_much_or_elsewhere_does_not_do():
    scene, prompt = one("several")
    assert checker.fulfils(draw(scene), prompt)
    assert not checker.fulfils(draw(replace(scene, things=scene.things[1:])), prompt)
    more = replace(scene.things[0], x=scene.things[0].x, shape="cross", colour="black")
    free = next(cell for cell in range(9) if cell not in [thing.cell for thing in scene.things])
    more = replace(more, cell=free, x=16 + 32 * (free % 3), y=16 + 32 * (free // 3))
    assert not checker.fulfils(draw(replace(scene, things=(*scene.things, more))), prompt)
    scene, prompt = one("place")
    elsewhere = next(place for place in PLACES if place != prompt.place)
    assert checker.fulfils(draw(scene), prompt) and not checker.fulfils(draw(scene), replace(prompt, place=elsewhere))
    scene, prompt = one("relation")
    other_way = replace(prompt, pairs=prompt.pairs[::-1])
    assert checker.fulfils(draw(scene), prompt) and not checker.fulfils(draw(scene), other_way)
    scene, prompt = one("count")
    assert not checker.fulfils(draw(scene), replace(prompt, pairs=prompt.pairs[1:]))


def test_another_colour_or_shape_does_not_do():
    scene, prompt = one("thing")
    thing = scene.things[0]
    for colour in set(COLOURS) - {thing.colour}:
        assert not checker.fulfils(draw(replace(scene, things=(replace(thing, colour=colour),))), prompt)
    for shape in set(SHAPES) - {thing.shape}:
        assert not checker.fulfils(draw(replace(scene, things=(replace(thing, shape=shape),))), prompt)


def test_a_blot_is_like_no_shape_and_a_speck_is_nothing():
    picture = Image.new("RGB", (96, 96), "white")
    pen = ImageDraw.Draw(picture)
    pen.rectangle((10, 10, 40, 16), COLOURS["red"])
    pen.rectangle((60, 60, 64, 64), COLOURS["blue"])
    assert checker.things(picture) == [checker.DetectedThing("red", "", 0)]
    assert checker.things(Image.new("RGB", (96, 96), "white")) == []
