"""The demo: its function, over a client, and in a real browser. It runs the tiny model."""

import pytest
from gradio_client import Client

from notebooks.new_case import convert, data, demo


@pytest.fixture(scope="module")
def address(serve_demo):
    convert.prepare()  # without a checkpoint the tests end here
    return serve_demo(demo.make_demo())


def test_it_reads_the_examples():
    for number in demo.EXAMPLES:
        _, scores = demo.read(number)
        assert max(scores, key=scores.get) == str(data.held_out().labels[number])


@pytest.mark.parametrize("number", [None, -1, data.HELD_OUT])
def test_an_unknown_number_is_an_error(number):
    with pytest.raises(ValueError, match=f"There is no picture {number}. Give a number from 0 to 359"):
        demo.read(number)


def test_a_client_gets_answers_and_messages(address):
    client = Client(address, verbose=False)
    expected = str(data.held_out().labels[demo.EXAMPLES[1]])
    assert client.predict(demo.EXAMPLES[1], api_name="/read")[1]["label"] == expected
    with pytest.raises(Exception, match="There is no picture -1"):
        client.predict(-1, api_name="/read")


def test_a_visitor_sees_an_answer_at_once(address, visit):
    from playwright.sync_api import expect

    with visit(address) as page:
        answer = page.get_by_test_id("label-output-value")
        expect(answer).to_have_text(str(data.held_out().labels[demo.EXAMPLES[0]]), timeout=60_000)
