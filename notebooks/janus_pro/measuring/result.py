"""`python -m notebooks.janus_pro.measuring.result` draws result.png, right answers and drawings of tiny at INT8, and
thumbnail.jpg, its lower right quarter."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageOps

from notebooks.janus_pro import convert
from notebooks.janus_pro.data import held_out, held_out_prompts
from notebooks.janus_pro.figures import pictures_with_words
from notebooks.janus_pro.measuring.checker import fulfils
from notebooks.janus_pro.pipeline import Janus
from utils.files import replaced

FOLDER = Path(__file__).parents[1]
RESULT, THUMBNAIL = FOLDER / "result.png", FOLDER / "thumbnail.jpg"
QUESTIONS = (("shape", 0), ("count", 2), ("place", 2), ("relation", 5))  # a kind, a held-out trial
PROMPTS = (("place", 1), ("count", 1), ("several", 3), ("relation", 1))


def answered(janus: Janus) -> list[tuple[str, Image.Image, str]]:
    """Questions, pictures and answers. Raises ValueError for a wrong answer."""
    trials = []
    for kind, number in QUESTIONS:
        picture, question = held_out(kind, number + 1)[number]
        answer = janus.understand(picture, question.text).answer
        if answer != question.answer:
            raise ValueError(f"The answer to {question.text!r} is {answer}, not {question.answer}. Choose another.")
        trials.append((question.text, picture, answer))
    return trials


def drawn(janus: Janus) -> list[tuple[str, Image.Image, str]]:
    """Prompts and drawings. Raises ValueError for a drawing that shows something else."""
    drawings = []
    for kind, number in PROMPTS:
        _, prompt = held_out_prompts(kind, number + 1)[number]
        drawing = janus.draw(prompt.text, seed=1)[0]
        if not fulfils(drawing, prompt):
            raise ValueError(f"The drawing of {prompt.text!r} is wrong. Choose another.")
        drawings.append((prompt.text, drawing, "drawn by the model"))
    return drawings


def main() -> None:
    janus = Janus(convert.prepare("tiny", "INT8"))
    figure = pictures_with_words([*answered(janus), *drawn(janus)])
    with replaced(RESULT) as written:
        figure.savefig(written, dpi=100, format="png", bbox_inches="tight")
        with Image.open(written) as whole:
            small = whole.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        small.save(written, "png", optimize=True)
    quarter = small.convert("RGB").crop((small.width // 2, small.height // 2, *small.size))
    with replaced(THUMBNAIL) as written:
        ImageOps.pad(quarter, (320, 200), color="white").save(written, "jpeg", quality=88)


if __name__ == "__main__":
    main()
