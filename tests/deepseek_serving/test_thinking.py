"""The model that thinks: its adapter, its chat template, what counts as solved, and that thoughts help."""

import pytest
from safetensors import safe_open

from notebooks.deepseek_serving import convert, data, training
from notebooks.deepseek_serving.measuring import thinking
from notebooks.deepseek_serving.pipeline import split_reasoning
from tests import examinations
from utils.models.questions import load_torch

PROBLEMS = [data.Problem("7 + 9 - 4?", "7 + 9 = 16. 16 - 4 = 12.", "12"), data.Problem("2 * 3 + 1?", "2 * 3 = 6.", "7")]


def test_a_number_in_the_thoughts_is_no_answer():
    replies = ["7 + 9 = 16. 16 - 4 = 12.\n</think>\n\nThe answer is 11.", "6 + 1 = 7.\n</think>\n\nThe answer is 7."]
    assert thinking.count_right(replies, PROBLEMS) == 1
    assert thinking.count_right(["12", "It is 7."], PROBLEMS) == 2
    with pytest.raises(ValueError):
        thinking.count_right(replies[:1], PROBLEMS)


def test_a_precision_may_solve_a_few_less_than_pytorch_and_controls_must_not():
    problems = PROBLEMS * 50
    right, few, wrong = ["12", "7"] * 50, ["12", "7"] * 48 + ["0"] * 4, ["12", "7"] * 47 + ["0"] * 6
    replies, controls = {"FP16": few, "INT8": wrong, "INT4": wrong}, {"answers without thoughts": wrong, "adapter": few}
    made = thinking.rows(problems, replies, right, controls)
    assert [row["pass"] for row in made] == [True, False, None, True, False]
    assert {(row["threshold"], row.get("goal")) for row in made[:2]} == {(96, 80)} and made[2]["threshold"] is None
    assert made[0]["reference"] == 100 and made[0]["metric"] == "right answers of 100 two-step problems"


def test_the_examination_has_every_precision_and_the_stored_one_passes(tmp_path):
    def solve(folder, problems, device="CPU", thinks=True):
        return [own.sentence if thinks and folder != "plain" else "" for own in problems]

    stubs = {
        "solve": solve,
        "load_torch": lambda checkpoint: (checkpoint, None),
        "solve_by_torch": lambda network, tokenizer, problems: solve(network, problems),
        "convert.prepare_thinking": lambda precision: precision,
        "convert.thinking_checkpoint": lambda: "merged",
        "convert.prepare": lambda *_: "plain",
    }
    stored = examinations.check("deepseek_serving", thinking, stubs, tmp_path, part="thinking")
    solved = [row for row in stored if row["metric"] == "right answers of 240 two-step problems"]
    assert {row["precision"] for row in solved} == {*convert.PRECISIONS, None}
    assert {row["goal"] for row in solved if row["precision"]} == {192}


def test_the_chat_template_begins_the_thoughts_of_each_answer():
    template = "{% for message in messages %}{% endfor %}{% if add_generation_prompt %}" + convert.TURN + "{% endif %}"
    assert convert.thinking_template(template).count("<think>") == 1
    with pytest.raises(ValueError, match="not SmolLM2's"):
        convert.thinking_template("{{ messages }}")


def test_training_learns_thoughts_and_answer_in_the_form_of_the_template():
    _, tokenizer = load_torch(convert.checkpoint_of_tiny())
    dialogues, own = training.Dialogues(tokenizer), data.practice(3)
    for thinks in (True, False):
        given, learned = dialogues.branch(own, thinks)
        text = tokenizer.decode([*dialogues.start, *given])
        assert text.endswith("<think>\n" if thinks else "<think>\n\n</think>\n\n") and own.question in text
        answer = tokenizer.decode(learned)
        parts = split_reasoning(answer, inside=thinks)
        assert parts == (own.thoughts if thinks else "", f"{own.sentence}<|im_end|>")
    assert int(dialogues.step(0)["learned"].sum()) > 60


def test_the_committed_adapter_has_both_matrices_of_every_projection():
    with safe_open(convert.ADAPTER, framework="pt") as file:
        assert len(file.keys()) == 30 * 7 * 2
        for side, shape in (("A", [training.RANK, 576]), ("B", [576, training.RANK])):
            name = f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight"
            assert file.get_slice(name).get_shape() == shape
    assert convert.ADAPTER.stat().st_size < 8e6


def test_the_model_solves_most_problems_with_thoughts_and_few_without():
    problems, folder = data.examination(each=1), convert.prepare_thinking("INT8")
    assert thinking.count_right(thinking.solve(folder, problems), problems) >= 20  # of 30
    assert thinking.count_right(thinking.solve(folder, problems, thinks=False), problems) <= 6
