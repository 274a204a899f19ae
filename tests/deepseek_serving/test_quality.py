"""The questions: what counts as right, that controls cannot win, and that the small model knows some."""

import re
from contextlib import contextmanager

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch

from notebooks.deepseek_serving import convert
from notebooks.deepseek_serving.measuring import bench, quality
from notebooks.deepseek_serving.pipeline import Client
from tests import examinations
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
        few = quality.ask_server(client, quality.NOTEBOOK_QUESTIONS)
    assert quality.count_correct(answers) == 48
    assert quality.count_correct(answers, shift=1) <= 1
    assert quality.count_correct(few, quality.NOTEBOOK_QUESTIONS) == 12
    assert quality.count_correct(few, quality.NOTEBOOK_QUESTIONS, shift=1) == 0


def test_an_answer_counts_by_its_word_in_any_case_and_not_by_a_part_of_one():
    answers = ["nothing"] * len(quality.QUESTIONS)
    answers[0] = "the capital is PARIS, of course"
    answers[1] = "Romeo"
    assert quality.count_correct(answers) == 1


def test_answers_must_be_as_many_as_questions():
    with pytest.raises(ValueError, match="48 questions, and 3 answers"):
        quality.count_correct(["a", "b", "c"])


def test_a_precision_may_have_a_few_answers_fewer_than_pytorch():
    correct = [pattern.split("|")[0].replace(r"\b", "") for _, pattern in quality.QUESTIONS]
    worse = ["nothing"] * 6 + correct[6:]
    int4, fp16, *controls = quality.answer_rows({"INT4": worse, "FP16": correct}, correct, worse)
    assert (int4["value"], int4["reference"], int4["threshold"]) == (42, 48, 43)
    assert (int4["goal"], int4["of"]) == (43, 48)
    assert (int4["pass"], fp16["pass"]) == (False, True)
    assert [(row["control"], row["value"]) for row in controls][0] == ("scrambled weights", 42)
    assert controls[1]["control"] == "the next question" and controls[1]["value"] <= 1


def test_a_precision_may_have_a_little_more_perplexity_than_pytorch():
    fp16, int4, control = quality.perplexity_rows({"FP16": 20.5, "INT4": 20.5}, 20.0, 1e6)
    assert (fp16["pass"], int4["pass"], control["pass"]) == (False, True, True)
    assert int4["threshold"] == control["threshold"] == 24


@pytest.fixture
def stubbed_models(monkeypatch, tmp_path):
    """Every answer is correct, and every perplexity 20; those of the scrambled model are wrong, and a million."""
    correct = [pattern.split("|")[0].replace(r"\b", "") for _, pattern in quality.QUESTIONS]

    @contextmanager
    def our_server(model, precision):
        with Scripted(echo) as server:
            yield bench.Target(f"{server.url}/v3", model)

    wrong = tmp_path / "scrambled"
    stubs = {
        "our_server": our_server,
        "load_torch": lambda checkpoint: (torch.nn.Identity(), None),
        "ask_torch": lambda *_: correct,
        "ask_ir": lambda folder, device: ["nothing"] * 48 if folder == wrong else correct,
        "save_scrambled": lambda *_: wrong,
        "scrambled": lambda ir: None,
        "tokenize": lambda *_: np.zeros((1, 1000), int),
        "ir_perplexity": lambda model, text, device: 20.0 if model else 1e6,
        "perplexity": lambda *_: 20.0,
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(quality, name, stub)
    monkeypatch.setattr(quality.convert, "prepare", lambda model, precision: tmp_path / precision)
    monkeypatch.setattr(quality.convert, "checkpoint_folder", lambda model: tmp_path)


def test_the_examination_has_every_precision_and_the_stored_one_passes(stubbed_models, tmp_path):
    stored = examinations.check("deepseek_serving", quality, {}, tmp_path)
    for metric in ("right answers of 48", "perplexity"):
        assert {row["precision"] for row in stored if row["metric"] == metric} == {*convert.PRECISIONS, None}


def test_the_small_model_knows_two_thirds_and_the_scrambled_one_nothing(tmp_path):
    assert quality.count_correct(quality.ask_ir(convert.prepare("tiny"))) >= 28
    broken = quality.save_scrambled(convert.prepare("tiny", "FP16"), tmp_path)
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
    folder = quality.save_scrambled(tmp_path / "ir", tmp_path / "broken", seed=1)
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
        quality.save_scrambled(convert.prepare("tiny"), tmp_path)
    assert not list(tmp_path.iterdir())
