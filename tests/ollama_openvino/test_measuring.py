"""Measuring sees the difference between good and bad; the real model passes."""

import pytest

from notebooks.ollama_openvino import convert, measuring
from utils import compare


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"name": "ant", "legs": 6, "flies": false}', True),
        ('{"name": "ant", "legs": "six", "flies": false}', False),
        ('{"name": "ant", "legs": 6}', False),
        ('{"name": "ant", "legs": 6, "flies": false} and more', False),
        ("The ant has six legs.", False),
    ],
)
def test_a_reply_is_valid_when_it_follows_the_schema(text, valid):
    assert measuring.is_valid(text) is valid


def test_the_questions_for_json_differ():
    assert len(set(measuring.JSON_QUESTIONS)) == len(measuring.JSON_QUESTIONS) == 24


def test_tokens_and_counts_over_http_are_exact():
    rows = measuring.parity(convert.checkpoint_folder(), convert.prepare("tiny", "FP16"), convert.gguf_file())
    compare.check(rows)
    assert len(rows) == 5
