"""The reading adapter's training: sheets whose answers stand in them, and the pipeline's own prompt."""

import re

import numpy as np
from safetensors import safe_open

from notebooks.rag_serving import convert, data
from notebooks.rag_serving.pipeline import Answerer
from notebooks.rag_serving.training import reading, sheets
from utils.models.questions import load_torch

TASKS = [sheets.task(seed, 6) for seed in range(200)]


def test_every_answer_stands_in_one_passage():
    for own in TASKS:
        assert len(own.passages) == 3 and own.questions
        for question, answer, value in own.questions:
            assert value.lower() in answer.lower()
            assert any(value.lower() in text.lower() for _, text in own.passages), (question, own.passages)


def test_no_two_sheets_of_a_task_contradict_each_other():
    for own in TASKS:
        by_source: dict[str, list[str]] = {}
        for source, text in own.passages:
            by_source.setdefault(source.partition("/")[2].partition(".")[0], []).append(text)
        for texts in by_source.values():
            labels = [label for text in texts for label in re.findall(r"^:?\**([A-Z][\w ,]+):", text, re.MULTILINE)]
            assert len(labels) == len(set(labels)), labels


def test_tasks_differ_and_are_always_the_same():
    assert len({own.questions for own in TASKS}) == len(TASKS)
    assert sheets.task(7, 6) == TASKS[7]
    assert len({question for own in TASKS for question, *_ in own.questions}) > 400


def test_no_document_or_question_of_the_examination_is_trained():
    trained = {question for own in TASKS for question, *_ in own.questions}
    assert not trained & {own.question for own in data.answer_questions()}
    texts = " ".join(document.text for document in data.descriptions())
    names = re.findall(r'"([^"]+)"', re.search(r"names = \[(.*)\]", sheets.FILE.read_text(encoding="utf-8"))[1])
    assert names and not [name for name in names if name in texts]


def test_values_have_the_form_that_is_asked_for():
    rng = np.random.default_rng(0)
    assert all(3 <= int(sheets.value(rng, "number 3 9").replace(",", "")) <= 9 for _ in range(50))
    assert re.fullmatch(r"\d+\.\d", sheets.value(rng, "decimal 1 20"))
    assert re.fullmatch(r"[A-Z][a-z]+,? 19\d\d", sheets.value(rng, "month 1950 1990"))
    assert re.fullmatch(r"(\d+)x\1", sheets.value(rng, "size 8 64"))
    assert sheets.value(rng, "city") in sheets.CITIES and sheets.value(rng, "black|white") in ("black", "white")


def test_training_has_the_prompt_of_the_pipeline():
    answerer = Answerer(convert.prepare_llm("tiny", "INT8"))
    _, tokenizer = load_torch(convert.plain_llm())
    own = TASKS[0]
    batch = reading.Prompts(tokenizer, answerer).packed(own)
    question, answer, _ = own.questions[0]
    passages = reading.passages_of(own)
    expected = answerer.prompt(question, passages) + answer + tokenizer.eos_token
    text = tokenizer.decode(batch["input_ids"][0])
    assert text.startswith(expected)
    learned = tokenizer.decode(batch["input_ids"][0][batch["learned"]])
    assert learned == "".join(answer + tokenizer.eos_token for _, answer, _ in own.questions)


def test_the_committed_adapter_has_both_matrices_of_every_projection():
    with safe_open(convert.READING, framework="pt") as file:
        assert len(file.keys()) == 30 * 7 * 2
    assert convert.READING.stat().st_size < 8e6
