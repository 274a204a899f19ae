"""A drawn world whose ground truth is known: coloured shapes, and printed words, on pictures of any size.

    scene = random_scene(rng, 112, 112)   what is where
    picture = draw(scene)                 as a picture
    maps = label_maps(scene)              what every pixel belongs to

Vision-language models learn to answer questions about it and to draw it. Checks compare their output with the scene.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

COLOURS = {
    "red": (214, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 214),
    "yellow": (240, 205, 30),
    "purple": (140, 50, 170),
    "orange": (245, 130, 20),
    "black": (25, 25, 25),
    "brown": (125, 75, 35),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart")
PLACES = (
    "top left", "top", "top right",
    "left", "centre", "right",
    "bottom left", "bottom", "bottom right",
)  # fmt: skip
BACKGROUNDS = ((255, 255, 255), (238, 238, 232), (226, 234, 244), (244, 230, 226), (228, 242, 228), (250, 243, 214))
INK, PAPER = (20, 20, 20), (255, 255, 255)  # of words and of the sign behind a large one
LETTERS = string.ascii_uppercase
FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")  # come with matplotlib
OVERSAMPLING = 3  # shapes are drawn larger and reduced, for smooth edges


@dataclass(frozen=True)
class Thing:
    """A shape of SHAPES in a colour of COLOURS around (x, y), `size` pixels high and wide; cell: index of PLACES."""

    shape: str
    colour: str
    x: float
    y: float
    size: float
    cell: int
    label: str = ""  # word printed below

    @property
    def place(self) -> str:
        """In which ninth of the picture it is, one of PLACES."""
        return PLACES[self.cell]


@dataclass(frozen=True)
class Word:
    """Capital letters around (x, y) in a font of FONTS, `height` pixels from line to line; sign: on white paper."""

    text: str
    x: float
    y: float
    height: float
    font: str
    sign: bool = False


@dataclass(frozen=True)
class Scene:
    """What a picture of width x height pixels shows. At most one word is a sign; `words` holds the labels, too."""

    width: int
    height: int
    background: tuple[int, int, int]
    things: tuple[Thing, ...]
    words: tuple[Word, ...] = ()

    @property
    def sign(self) -> str:
        """The word on the sign; empty without one."""
        return next((word.text for word in self.words if word.sign), "")


def random_scene(
    rng: np.random.Generator,
    width: int,
    height: int,
    *,
    things: tuple[int, int] = (1, 5),
    sign: str = "",
    labels: tuple[str, ...] = (),
    label_height: float = 12,
) -> Scene:
    """A scene with a random number of things (from, to; at most nine, or seven with a sign), no two in one ninth.

    sign: a word in large print over two ninths. labels: words printed, `label_height` pixels high, under as many
    things. Raises ValueError where they cannot be placed.
    """
    low, high = things
    cells = list(range(9))
    words: list[Word] = []
    if sign:
        left = int(rng.choice([0, 1, 3, 4, 6, 7]))  # the sign lies over this ninth and the one to its right
        for cell in (left, left + 1):
            cells.remove(cell)
        widest = 2 * width / 3 * 0.86
        font = str(rng.choice(FONTS))
        tall = min(height / 3 * rng.uniform(0.42, 0.6), 0.9 * widest / max(0.5, text_width(sign, font, 100) / 100))
        tall = round(2 * tall) / 2  # few sizes, so that fonts are loaded once
        words.append(Word(sign, (left % 3 + 1) * width / 3, (left // 3 + 0.5) * height / 3, tall, font, sign=True))
    high = min(high, len(cells))
    if not 0 <= low <= high or len(labels) > high:
        raise ValueError(f"{low} to {high} things with {len(labels)} labels do not fit into {len(cells)} free ninths.")
    count = max(int(rng.integers(low, high + 1)), len(labels))
    chosen = rng.permutation(cells)[:count]
    placed = []
    for number, cell in enumerate(chosen):
        label = labels[number] if number < len(labels) else ""
        row, column = divmod(int(cell), 3)
        tall = height / 3 - (1.3 * label_height if label else 0)  # what the label leaves
        free = min(width / 3, tall)
        size = free * rng.uniform(0.5, 0.78)
        slack_x, slack_y = (width / 3 - size) / 2 * 0.6, (free - size) / 2 * 0.6
        x = (column + 0.5) * width / 3 + rng.uniform(-slack_x, slack_x) * (0 if label else 1)
        y = row * height / 3 + tall / 2 + rng.uniform(-slack_y, slack_y)
        placed.append(Thing(str(rng.choice(SHAPES)), str(rng.choice(list(COLOURS))), x, y, size, int(cell), label))
        if label:
            below = y + size / 2 + 0.75 * label_height
            words.append(Word(label, (column + 0.5) * width / 3, below, label_height, str(rng.choice(FONTS))))
    background = BACKGROUNDS[rng.integers(len(BACKGROUNDS))]
    return Scene(width, height, background, tuple(placed), tuple(words))


def draw(scene: Scene) -> Image.Image:
    """The scene as an RGB picture."""
    picture = Image.new("RGB", (scene.width, scene.height), scene.background)
    for thing in scene.things:
        side = round(thing.size)
        mask = _mask(thing.shape, side * OVERSAMPLING).reduce(OVERSAMPLING)
        picture.paste(COLOURS[thing.colour], _corner(thing), mask)
    pen = ImageDraw.Draw(picture)
    for word in scene.words:
        if word.sign:
            half = text_width(word.text, word.font, word.height) / 2 + 0.2 * word.height
            box = (word.x - half, word.y - 0.62 * word.height, word.x + half, word.y + 0.62 * word.height)
            pen.rectangle(box, fill=PAPER, outline=INK)
        for letter, left, _ in _letters(word):
            pen.text((left, word.y), letter, INK, _font(word.font, word.height), anchor="lm")
    return picture


def label_maps(scene: Scene) -> np.ndarray:
    """What every pixel belongs to [3, height, width] uint8: shape, colour, letter; 0 for none, else index + 1.

    Shapes and colours are those of SHAPES and COLOURS; a letter of LETTERS owns the whole box that it is printed in.
    """
    maps = [Image.new("L", (scene.width, scene.height)) for _ in range(3)]
    for thing in scene.things:
        mask = _mask(thing.shape, round(thing.size))
        maps[0].paste(SHAPES.index(thing.shape) + 1, _corner(thing), mask)
        maps[1].paste(list(COLOURS).index(thing.colour) + 1, _corner(thing), mask)
    pen = ImageDraw.Draw(maps[2])
    for word in scene.words:
        for letter, left, right in _letters(word):
            box = (
                round(left),
                word.y - 0.45 * word.height,
                max(round(left), round(right) - 1),
                word.y + 0.4 * word.height,
            )
            pen.rectangle(box, fill=LETTERS.index(letter) + 1)
    return np.stack([np.asarray(x) for x in maps])


def text_width(text: str, font: str, height: float) -> float:
    """Width in pixels of a printed word."""
    return sum(_advance(letter, font, height) for letter in text)


def _letters(word: Word) -> list[tuple[str, float, float]]:
    """Each letter of a printed word with its left and right edge in pixels."""
    left = word.x - text_width(word.text, word.font, word.height) / 2
    edges = []
    for letter in word.text:
        right = left + _advance(letter, word.font, word.height)
        edges.append((letter, left, right))
        left = right
    return edges


@cache
def _advance(letter: str, font: str, height: float) -> float:
    return _font(font, height).getlength(letter)


@cache
def _font(name: str, height: float) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_fonts() / name, round(height / 1.15, 1))  # these fonts are 1.15 em from line to line


@cache
def _fonts() -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def _corner(thing: Thing) -> tuple[int, int]:
    side = round(thing.size)
    return round(thing.x - side / 2), round(thing.y - side / 2)


@cache
def _mask(shape: str, side: int) -> Image.Image:
    """The shape in white on black, filling a square of `side` pixels."""
    mask = Image.new("L", (side, side))
    pen = ImageDraw.Draw(mask)
    end = side - 1
    if shape == "circle":
        pen.ellipse((0, 0, end, end), fill=255)
    elif shape == "square":
        pen.rectangle((0.06 * end, 0.06 * end, 0.94 * end, 0.94 * end), fill=255)
    elif shape == "heart":
        pen.ellipse((0, 0.05 * end, 0.54 * end, 0.55 * end), fill=255)
        pen.ellipse((0.46 * end, 0.05 * end, end, 0.55 * end), fill=255)
        pen.polygon(
            [(0.04 * end, 0.4 * end), (0.5 * end, end), (0.96 * end, 0.4 * end), (0.5 * end, 0.3 * end)], fill=255
        )
    else:
        pen.polygon([(x * end, y * end) for x, y in _outline(shape)], fill=255)
    return mask


def _outline(shape: str) -> list[tuple[float, float]]:
    """Corners of a polygon in a unit square."""
    if shape == "triangle":
        return [(0.5, 0.02), (1, 0.95), (0, 0.95)]
    if shape == "cross":
        a, b = 0.32, 0.68
        return [(a, 0), (b, 0), (b, a), (1, a), (1, b), (b, b), (b, 1), (a, 1), (a, b), (0, b), (0, a), (a, a)]
    if shape == "star":
        angles = np.arange(10) * np.pi / 5 - np.pi / 2
        reach = np.where(np.arange(10) % 2, 0.2, 0.5) * 1.05
        return [(0.5 + r * float(np.cos(a)), 0.53 + r * float(np.sin(a))) for r, a in zip(reach, angles, strict=True)]
    raise ValueError(f"There is no shape {shape!r}. Choose one of: {', '.join(SHAPES)}.")
