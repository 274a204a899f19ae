"""The demo: its function, and in a real browser."""

import re

import pytest

from notebooks.sdpa_enabling import demo
from notebooks.sdpa_enabling.convert import to_onnx
from notebooks.sdpa_enabling.network import Attention


@pytest.fixture(scope="module")
def address(serve_demo):
    return serve_demo(demo.make_demo())


@pytest.mark.parametrize(
    ("spelling", "fused", "report"),
    [
        ("masked_fill", ["no", "yes"], "1 changed"),
        ("soft cap", ["no", "no"], "Tanh"),
        ("einsum", ["no", "yes"], "Einsum"),
    ],
)
def test_the_table_shows_the_executed_graph_and_the_result(spelling, fused, report):
    rows, text, figure = demo.measure(spelling, 40)
    assert [row[1] for row in rows] == fused
    assert all(row[2] > 0 and row[3] > 0 and row[4] == "under 0.00001" for row in rows)
    assert report in text and len(figure.axes) == 2


@pytest.mark.parametrize(
    ("spelling", "tokens", "message"),
    [("nothing", 40, "Choose one of"), ("einsum", 5, "from 16 to 4,096"), ("einsum", None, "from 16 to 4,096")],
)
def test_bad_input_is_an_error(spelling, tokens, message):
    with pytest.raises(ValueError, match=message):
        demo.measure(spelling, tokens)


def test_a_visitor_finds_an_answered_example_and_asks_on(address, visit):
    from playwright.sync_api import expect

    with visit(address, height=1500) as page:
        report = page.get_by_label("What fuse_attention() reports")
        fused = "1 changed: MatMul, Multiply, Select, Softmax, MatMul -> ScaledDotProductAttention"
        expect(report).to_have_value(fused, timeout=120_000)
        expect(page.locator("img")).to_have_count(1, timeout=180_000)
        page.get_by_label("Tokens of the text").fill("5")
        page.get_by_role("button", name="Convert and run").click()
        expect(page.get_by_text("The text has 5 tokens. Choose a number from 16 to 4,096.")).to_be_visible(
            timeout=180_000
        )


def test_a_visitor_sends_a_model(address, visit, tmp_path):
    from playwright.sync_api import expect

    to_onnx(Attention("einsum"), tmp_path / "layer.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with visit(address, height=1500) as page:
        answer = page.get_by_label("Its attention, before and after the passes")
        expect(page.get_by_label("What fuse_attention() reports")).to_have_value(re.compile("changed"), timeout=120_000)
        page.locator("input[accept='.onnx']").set_input_files(tmp_path / "layer.onnx")
        expect(answer).to_have_value(re.compile("executed after: 1 ScaledDotProductAttention with"), timeout=180_000)
        page.get_by_label("Clear").last.click()
        page.locator("input[accept='.onnx']").set_input_files(tmp_path / "broken.onnx")
        expect(page.get_by_text("broken.onnx is no model that runs on CPU")).to_be_visible(timeout=180_000)
