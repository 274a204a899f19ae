"""The demo: its function, and in a real browser."""

import re

import pytest

from notebooks.dynamic_shapes import demo


@pytest.fixture(scope="module")
def address(serve_demo):
    return serve_demo(demo.make_demo())


def test_the_table_compares_three_ways():
    rows, text = demo.serve(20, 30, 3)
    assert [row[0] for row in rows] == ["plain dynamic", "buckets", "padded to the longest"]
    assert rows[0][1] > rows[1][1] >= rows[2][1] == 1
    assert 0 == rows[0][2] < rows[1][2] < rows[2][2] < 100
    assert all(time > 0 for row in rows for time in row[3:])
    assert text.startswith("30 requests")


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((1, 30, 3), "median length is 1"), ((20, None, 3), "number of requests is None"), ((20, 30, 99), "from 1 to 32")],
)
def test_bad_input_is_an_error(numbers, message):
    with pytest.raises(ValueError, match=message):
        demo.serve(*numbers)


def test_a_visitor_finds_an_answered_example_and_asks_on(address, visit):
    from playwright.sync_api import expect

    with visit(address, height=700) as page:
        report = page.get_by_label("What the buckets report")
        expect(report).to_have_value(re.compile("150 requests"), timeout=120_000)
        page.get_by_label("Buckets", exact=True).fill("99")
        page.get_by_role("button", name="Run the requests").click()
        expect(page.get_by_text("The number of buckets is 99. Choose a number from 1 to 32.")).to_be_visible(
            timeout=180_000
        )
