"""Documents and questions: no question stands in its document, and every answer does."""

import pytest

from notebooks.rag_serving import data


@pytest.fixture(scope="module")
def corpus():
    return data.numpy_corpus()


def test_no_question_stands_in_a_document_that_answers_it(corpus):
    documents, questions = corpus
    texts = {document.source: " ".join(document.text.split()) for document in documents}
    assert len(documents) == len(texts) >= 600 and len(questions) >= 500
    assert not [(own, source) for own in questions for source in own.sources if own.question in texts[source]]


def test_questions_of_people_name_documents_that_there_are(corpus):
    sources = {document.source for document in corpus[0]}
    asked = data.people_questions()
    assert len(asked) >= 60
    assert not [(own.question, source) for own in asked for source in own.sources if source not in sources]


def test_every_answer_stands_in_its_document_and_half_of_the_questions_are_in_peoples_words():
    texts = {document.source: document.text for document in data.descriptions()}
    asked = data.answer_questions()
    assert len(asked) == len({own.question for own in asked}) >= 48
    assert not [own for own in asked if not own.is_right(" ".join(texts[own.source].split()))]
    assert sum(own.words == "people" for own in asked) >= len(asked) / 2


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("It has 150 rows.", True),
        ("1500", False),
        ("It is 150.", True),
        ("150.5", False),
        ("2150", False),
        ("About 1,150 rows", False),
        ("fifteen", False),
    ],
)
def test_an_answer_is_right_as_a_whole_word(answer, right):
    assert data.Ask("How many?", "a", ("150",), "text").is_right(answer) is right


def test_commas_of_numbers_do_not_count():
    assert data.Ask("How many?", "a", ("4898431",), "text").is_right("There are 4,898,431 samples.")


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (f"Return the sum of all values.\n\n{'x ' * 150}", "Return the sum of all values."),
        (f"f(x, y)\n\nReturn the sum of all values.\n\n{'x ' * 150}", "Return the sum of all values."),
        (f"f(x, y)\n\n{'x ' * 150}", ""),
        (f"Sum it.\n\n{'x ' * 150}", ""),
        ("Return the sum of all values.\n\nShort.", ""),
    ],
)
def test_summaries(text, summary):
    found, rest = data.without_summary(text)
    assert found == summary and (rest == text if not summary else summary not in rest)


def test_halves_and_samples_are_always_the_same(corpus):
    documents, questions = corpus
    first, second = data.halves(questions)
    assert abs(len(first) - len(second)) < len(questions) / 5 and len(first) + len(second) == len(questions)
    chosen, asked = data.sample(documents, questions, 100)
    assert data.sample(list(reversed(documents)), questions, 100)[0] == chosen and len(chosen) == 100
    assert {source for own in asked for source in own.sources} <= {document.source for document in chosen}
