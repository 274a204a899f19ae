"""Answers are those of PyTorch and of openvino_genai; reasoning is kept apart from them; a conversation reads only what
is new; timings, stream, plan."""

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
import pytest
import torch
from PIL import Image

from notebooks.minicpm_v.network import MiniCPMV, load
from notebooks.minicpm_v.pipeline import Answer, Timings, Turn, VisionChat, slicing
from notebooks.minicpm_v.pipeline import chat as pipeline
from tests.minicpm_v import small
from utils import compare
from utils.models.llm import FP32_PROPERTIES

ASKED = "What is it?"
NEW = 20  # tokens of an answer


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


WHOLE, LARGE, LONG = noise(56, 56), noise(170, 112, 1), noise(400, 56, 3)  # LONG: an overview of fewer patches
PLAIN = Image.new("RGB", (112, 112), (200, 30, 90))


@cache
def opened(folder: Path) -> VisionChat:
    return VisionChat(folder, **FP32_PROPERTIES)


@pytest.fixture
def chat(ir_2_6) -> VisionChat:
    return opened(ir_2_6)


def fresh(chat: VisionChat, history: list[Turn], images, question: str, **options) -> Answer:
    """The answer when the whole conversation is read anew."""
    chat.ask(None, "Forget.", max_new_tokens=1)
    answer = chat.ask(images, question, list(history), **options)
    assert chat.timings.cached_tokens == 0
    return answer


def seen_by_pytorch(model: MiniCPMV, image: Image.Image) -> torch.Tensor:
    """[pieces * queries, D]: what the network's own language model would read of a picture."""
    pieces = slicing.cut(image, slicing.plan(image.size, 9, small.SIDE))
    with torch.inference_mode():
        if model.version == 2.6:
            given = slicing.batch(pieces, 24)
            fields = given.pixel_values, given.patch_attention_mask, given.position_ids, given.sizes
            return model.encode_images(*map(torch.from_numpy, fields)).flatten(0, 1)
        pixels = [torch.from_numpy(np.stack([slicing.normalise(x) for x in p])) for p in (pieces[:1], pieces[1:]) if p]
        return torch.cat([model.encode_equal(x).flatten(0, 1) for x in pixels])


@pytest.mark.parametrize("image", [WHOLE, LARGE, LONG], ids=["whole", "large", "long"])
def test_pictures_are_encoded_as_by_pytorch(both, image):
    model, chat = load(both[0]).float(), opened(both[1])
    found = chat._encode(image, True, Timings())
    compare.check([compare.parity("pictures", found, seen_by_pytorch(model, image), 1e-3)])


def by_pytorch(checkpoint: Path, images: list[Image.Image]) -> str:
    """The greedy answer computed by the network alone, every token by reading all that stands before it."""
    model = load(checkpoint).float()
    grids = [slicing.plan(image.size, 9, small.SIDE).grid for image in images]
    texts = [slicing.placeholder(grid, 4, model.version, number) for number, grid in enumerate(grids)]
    seen = [seen_by_pytorch(model, image) for image in images]
    asked = "\n".join([*texts, ASKED])
    if model.version == 2.6:
        text = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
    else:
        text = f"<s><用户>{asked}<AI>"
    ids = torch.tensor([small.tokenizer(model.version)(text, add_special_tokens=False)["input_ids"]])
    with torch.inference_mode():
        read = model.llm.get_input_embeddings()(ids)
        read[ids == small.TOKENS.index("<unk>")] = torch.cat(seen)
        said = []
        while len(said) < NEW:
            token = model.llm(inputs_embeds=read).logits[:, -1].argmax(-1)
            if token == model.config["eos_token_id"]:
                break
            said.append(small.TOKENS[token])
            read = torch.cat([read, model.llm.get_input_embeddings()(token)[:, None]], 1)
    return "".join(said)


@pytest.mark.parametrize("images", [[WHOLE], [LARGE], [noise(60, 40, 2), LONG]])
def test_answers_are_those_of_pytorch(both, images):
    chat = opened(both[1])
    answer = chat.ask(images, ASKED, max_new_tokens=NEW)
    assert answer.text == by_pytorch(both[0], images)
    assert answer != chat.ask([noise(*image.size, 7) for image in images], ASKED, max_new_tokens=NEW)


@pytest.fixture(scope="module")
def vlm(ir_2_6):
    return genai.VLMPipeline(ir_2_6, "CPU", **FP32_PROPERTIES)


@pytest.mark.parametrize("image", [None, WHOLE, PLAIN], ids=["text", "picture", "slices"])
def test_openvino_genai_opens_the_folder_and_answers_alike(vlm, chat, image):
    config = genai.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=2)
    given = {} if image is None else {"images": [ov.Tensor(np.asarray(image)[None])]}
    theirs = vlm.generate(ASKED, generation_config=config, **given).texts[0]
    assert theirs == chat.ask(image, ASKED, max_new_tokens=NEW).text
    assert chat.timings.slices == (0 if image is None else 1 if image is WHOLE else 5)


@pytest.mark.parametrize("length", [NEW, 3])
def test_a_conversation_reads_only_what_is_new(both, length):
    chat, history = opened(both[1]), []
    options = {"max_new_tokens": length}
    chat.ask(LARGE, ASKED, history, **options)
    first = chat.timings
    assert first.cached_tokens == 0 and first.prompt_tokens > 4 * first.slices == 4 * 7
    chat.ask(None, "And what else?", history, **options)
    second = chat.timings
    assert second.slices == 0 and second.cached_tokens == first.prompt_tokens + first.generated_tokens - (
        first.finish_reason == "length"
    )
    assert second.prompt_tokens < 60
    before = list(history)
    answer = chat.ask(WHOLE, "And this?", history, **options)
    assert (
        chat.timings.slices == 1
        and chat.timings.cached_tokens > second.cached_tokens
        and chat.timings.prompt_tokens < 90
    )
    assert [turn.question for turn in history] == [ASKED, "And what else?", "And this?"]
    assert history[-1].text == answer.text and history[-1].images == (WHOLE,)
    assert answer == fresh(chat, before, WHOLE, "And this?", **options)


def test_conversations_side_by_side_do_not_mix(chat):
    mine, yours = [], []
    expected = fresh(chat, [], WHOLE, ASKED, max_new_tokens=NEW)
    other = fresh(chat, [], LARGE, ASKED, max_new_tokens=NEW)
    assert chat.ask(WHOLE, ASKED, mine, max_new_tokens=NEW) == expected
    assert chat.ask(LARGE, ASKED, yours, max_new_tokens=NEW) == other != expected
    second = fresh(chat, mine, None, "More?", max_new_tokens=NEW)
    assert chat.ask(None, "More?", mine, max_new_tokens=NEW) == second
    assert chat.timings.cached_tokens == 0 or mine[:-1] == [Turn(ASKED, expected.text, (WHOLE,))]


def test_a_changed_history_is_read_anew(chat):
    history = []
    chat.ask(WHOLE, ASKED, history, max_new_tokens=NEW)
    history[0] = Turn(ASKED, "A cat.", history[0].images)
    chat.ask(None, "Sure?", history, max_new_tokens=NEW)
    assert (chat.timings.cached_tokens, chat.timings.slices) == (0, 1)


def test_pictures_are_numbered_through_the_conversation(chat, monkeypatch):
    texts = []
    encode = chat._token_ids
    monkeypatch.setattr(chat, "_token_ids", lambda text: texts.append(text) or encode(text))
    history = []
    chat.ask([WHOLE, WHOLE], ASKED, history, max_new_tokens=2)
    chat.ask(WHOLE, ASKED, history, max_new_tokens=2)
    holder = "<image_id>{}</image_id><image><unk><unk><unk><unk></image>\n"
    user, assistant = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    first = user + holder.format(0) + holder.format(1) + ASKED + assistant
    assert texts[0] == first
    assert texts[1] == first + history[0].text + "<|im_end|>\n" + user + holder.format(2) + ASKED + assistant


def test_slicing_can_be_left_out(chat):
    sliced = chat.ask(LARGE, ASKED, max_new_tokens=NEW)
    assert chat.timings.slices == 7 and chat.plan(LARGE).grid == (3, 2)
    assert chat.ask(LARGE, ASKED, max_new_tokens=NEW, slicing=False) != sliced
    assert chat.timings.slices == 1 and chat.plan(LARGE, slicing=False).grid == (0, 0)


def test_the_answer_comes_in_pieces(chat):
    pieces = []
    answer = chat.ask(WHOLE, ASKED, max_new_tokens=NEW, stream=pieces.append)
    assert "".join(pieces) == answer.text and len(pieces) > 3


def test_a_listener_may_end_the_answer_and_go_on(chat):
    whole = chat.ask(LARGE, ASKED, max_new_tokens=NEW)
    pieces, history = [], []
    answer = chat.ask(LARGE, ASKED, history, NEW, lambda piece: pieces.append(piece) or len(pieces) == 2)
    assert chat.timings.finish_reason == "stopped"
    assert 0 < len(answer.text) < len(whole.text) and whole.text.startswith(answer.text)
    said = chat.ask(None, "Go on.", history, max_new_tokens=NEW)
    assert chat.timings.cached_tokens > 0
    assert said == fresh(chat, history[:1], None, "Go on.", max_new_tokens=NEW)


def test_a_listener_that_fails_spoils_nothing(chat):
    expected, history = fresh(chat, [], WHOLE, ASKED, max_new_tokens=NEW), []

    def fails(piece: str) -> None:
        raise KeyError(piece)

    with pytest.raises((KeyError, RuntimeError)):
        chat.ask(LARGE, ASKED, history, NEW, fails)
    assert history == []
    assert chat.ask(WHOLE, ASKED, history, NEW) == expected


def test_figures_tell_what_it_took(chat):
    answer = chat.ask(LARGE, ASKED, max_new_tokens=5)
    timings = chat.timings
    assert 0 < timings.image_s < timings.first_token_s <= timings.total_s
    assert timings.generated_tokens == len(answer.text) == 5 and timings.finish_reason == "length"
    assert timings.tokens_per_second == pytest.approx(4 / (timings.total_s - timings.first_token_s))
    chat.ask(None, ASKED, max_new_tokens=1)
    assert chat.timings.tokens_per_second is None and chat.timings.image_s == 0


def test_a_stop_token_ends_the_answer(chat, monkeypatch):
    answer = chat.ask(None, ASKED, max_new_tokens=NEW).text
    third = next(i for i, letter in enumerate(answer) if i >= 3 and letter not in answer[:i])
    monkeypatch.setattr(chat, "_stop_ids", {small.TOKENS.index(answer[third])})
    assert chat.ask(None, ASKED, max_new_tokens=NEW).text == answer[:third]
    assert chat.timings.finish_reason == "stop"


def test_only_the_last_logits_are_computed(ir_2_6):
    model = ov.Core().read_model(ir_2_6 / "openvino_language_model.xml")
    pipeline.only_last(model)
    assert model.output("logits").get_partial_shape()[1].get_max_length() == 1


@pytest.mark.parametrize(
    ("text", "separator", "answer", "reasoning"),
    [
        ("green heart bottom right: COIN", ":", "COIN", "green heart bottom right"),
        ("left, top: centre: 2 ", ":", "2", "left, top: centre"),
        ("black", ":", "black", ""),
        ("It says: open from 9:00 to 17:00.", "", "It says: open from 9:00 to 17:00.", ""),
        ("", ":", "", ""),
    ],
)
def test_reasoning_stands_before_the_separator_if_there_is_one(text, separator, answer, reasoning):
    found = Answer(text, separator)
    assert (found.answer, found.reasoning, str(found), f"{found}") == (answer, reasoning, answer, answer)


def test_only_a_folder_that_says_so_splits_answers(ir_2_6, chat, tmp_path):
    folder = shutil.copytree(ir_2_6, tmp_path / "ir")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    whole = chat.ask(LARGE, ASKED, max_new_tokens=NEW)
    separator = whole.text[len(whole.text) // 2]
    (folder / "config.json").write_text(json.dumps(config | {"answer_separator": separator}), encoding="utf-8")
    split = opened(folder)
    answer, history = split.ask(LARGE, ASKED, max_new_tokens=NEW), []
    assert chat.answer_separator == "" and (whole.answer, whole.reasoning) == (whole.text, "")
    before, _, after = whole.text.rpartition(separator)
    assert (answer.text, answer.answer, answer.reasoning) == (whole.text, after, before) and before
    assert split.ask(LARGE, ASKED, history, NEW) == answer and history[0].text == whole.text


USE = """
import sys
from pipeline import VisionChat
print(VisionChat(sys.argv[1]).ask(sys.argv[2], "What is it?", max_new_tokens=3))
loaded = {name.partition(".")[0] for name in sys.modules}
heavy = {"torch", "transformers", "utils", "notebooks", "nncf", "optimum"} & loaded
sys.exit(f"imported: {heavy}" if heavy else 0)
"""


def test_the_folder_copied_elsewhere_is_enough(ir_2_6, tmp_path):
    shutil.copytree(Path(pipeline.__file__).parent, tmp_path / "pipeline")
    WHOLE.save(tmp_path / "photo.png")
    run = [sys.executable, "-c", USE, ir_2_6, "photo.png"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert 1 <= len(done.stdout.strip()) <= 3


def test_another_folder_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="has no openvino_vision_embeddings_model.xml, .*Give the folder that"):
        VisionChat(tmp_path)


def test_it_runs_on_every_device(ir_2_6, device):
    VisionChat(ir_2_6, device)
