"""The questions: what counts as right, that controls cannot win, and that the small model knows some."""

import re

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from notebooks.deepseek_serving import convert
from notebooks.deepseek_serving.measuring import quality
from notebooks.deepseek_serving.pipeline import Client
from tests.deepseek_serving.scripted import Scripted
from utils.models.llm import MODEL_XML


def echo(handler, body):
    """Knows every answer: the first alternative of each pattern, without its anchors."""
    known = {q: p.split("|")[0].replace(r"\b", "") for q, p in quality.QUESTIONS}
    answer = known[body["messages"][0]["content"]]
    assert (body["max_tokens"], body["temperature"]) == (quality.MAX_ANSWER_TOKENS, 0)
    handler.reply(200, {"choices": [{"message": {"content": f"It is {answer}."}}]})


def test_questions_are_distinct_and_do_not_hold_their_answer():
    asked = [question for question, _ in quality.QUESTIONS]
    assert len(set(asked)) == len(asked) == 48
    for question, pattern in quality.QUESTIONS:
        assert not re.search(pattern, question, re.IGNORECASE), question


def test_a_server_that_knows_everything_is_always_right_and_in_order():
    with Scripted(echo) as server, Client(server.url) as client:
        answers = quality.ask_server(client, at_once=8)
    assert quality.count_correct(answers) == 48
    assert quality.count_correct(answers, shift=1) <= 1


def test_an_answer_counts_by_its_word_in_any_case_and_not_by_a_part_of_one():
    answers = ["nothing"] * len(quality.QUESTIONS)
    answers[0] = "the capital is PARIS, of course"
    answers[1] = "Romeo"
    assert quality.count_correct(answers) == 1


def test_answers_must_be_as_many_as_questions():
    with pytest.raises(ValueError, match="48 questions, and 3 answers"):
        quality.count_correct(["a", "b", "c"])


def test_the_small_model_knows_two_thirds_and_the_scrambled_one_nothing(tmp_path):
    assert quality.count_correct(quality.ask_ir(convert.prepare("tiny"))) >= 28
    broken = quality.scramble_weights(convert.prepare("tiny", "FP16"), tmp_path)
    assert quality.count_correct(quality.ask_ir(broken)) <= 3


def test_scrambling_moves_rows_of_the_layers_and_nothing_else(tmp_path):
    before = np.arange(24, dtype=np.float16).reshape(6, 4)
    model_input = ops.parameter([1, 4], np.float32, name="x")
    constants = []
    for name in ("self.model.layers.0.mlp.up_proj.weight", "self.model.embed_tokens.weight"):
        constant = ops.constant(before)
        constant.set_friendly_name(name)
        constants.append(ops.matmul(model_input, ops.convert(constant, "f32"), False, True))
    (tmp_path / "ir").mkdir()
    ov.save_model(ov.Model(constants, [model_input]), tmp_path / "ir" / MODEL_XML)
    (tmp_path / "ir" / "config.json").write_text("{}", encoding="utf-8")
    folder = quality.scramble_weights(tmp_path / "ir", tmp_path / "broken", seed=1)
    request = ov.Core().compile_model(folder / MODEL_XML, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    x = np.array([[1, 0, 2, 0]], np.float32)
    layer, embedding = (request(x)[port][0] for port in request.outputs)
    expected = before.astype(np.float32) @ x[0]
    np.testing.assert_array_equal(embedding, expected)
    np.testing.assert_array_equal(np.sort(layer), np.sort(expected))
    assert (layer != expected).any()
    assert (folder / "config.json").exists()


def test_a_compressed_model_cannot_be_scrambled(tmp_path):
    with pytest.raises(ValueError, match="has no FP16 matrices"):
        quality.scramble_weights(convert.prepare("tiny"), tmp_path)
