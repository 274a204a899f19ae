"""The demo: against a scripted server that thinks, over gradio_client, in a browser, and on the real server."""

import re
import threading

import gradio as gr
import httpx
import pytest
from gradio_client import Client as Visitor

from notebooks.deepseek_serving import convert, demo
from notebooks.deepseek_serving.pipeline import Client
from notebooks.deepseek_serving.server import repository, serve
from tests.deepseek_serving.scripted import Scripted, event
from utils.demo import start

ROLE = event({"role": "assistant", "content": None})
THOUGHT = [event({"content": text}) for text in ("17 times 3:", " 30 + 21.", "</think>", "\n\nIt is", " **51**.")]
USAGE = event(usage={"prompt_tokens": 7, "completion_tokens": 5})
DONE = b"data: [DONE]\n\n"


def thinker(handler, body):
    """Answers like DeepSeek-R1; "forever" goes on until the client hangs up; "fail" is refused."""
    question = body["messages"][-1]["content"]
    if question == "fail":
        handler.reply(503, {"error": "too many requests"}, Retry_After="2")
    elif question == "forever":
        handler.stream(ROLE, *THOUGHT, whole=False)
        handler.wait_for_hang_up()
    else:
        handler.stream(ROLE, *THOUGHT, event({}, "stop"), USAGE, DONE)


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setitem(convert.MODELS["tiny"], "thinks", True)
    with Scripted(thinker) as server:
        yield server


@pytest.fixture
def address(scripted, serve_demo):
    return serve_demo(demo.make_demo(url=scripted.url))


def test_thoughts_and_answer_are_messages_of_their_own(scripted):
    with Client(scripted.url, thinks=True) as client, client.stream("17 * 3?") as stream:
        *_, (messages, speed) = demo.page(stream)
    thoughts, answer = messages
    assert thoughts["content"] == "17 times 3: 30 + 21." and thoughts["metadata"]["status"] == "done"
    assert answer == {"role": "assistant", "content": "It is **51**."}
    assert re.fullmatch(r"5 tokens, [\d,]+ tokens/s, first after \d+\.\d\d s", speed)


def test_thoughts_are_not_sent_back():
    history = [
        {"role": "user", "content": [{"type": "text", "text": "17 * 3?"}]},
        {"role": "assistant", "content": "30 + 21", "metadata": {"title": "Thoughts"}},
        {"role": "assistant", "content": "51", "metadata": {"title": None}},
    ]
    assert demo.conversation(history, "And * 2?") == [
        {"role": "user", "content": "17 * 3?"},
        {"role": "assistant", "content": "51"},
        {"role": "user", "content": "And * 2?"},
    ]


@pytest.mark.parametrize(("question", "message"), [(" \n", "is empty"), ("x" * 4001, "4001 characters")])
def test_a_question_that_will_not_do_is_an_error(question, message):
    with pytest.raises(ValueError, match=message):
        demo.conversation([], question)


def test_a_visitor_gets_the_answer_and_error_messages(address, scripted):
    visitor = Visitor(address, verbose=False)
    cleared, chat, speed = visitor.predict("17 * 3?", [], 64, 0, api_name="/respond")
    assert cleared == "" and [message["role"] for message in chat] == ["user", "assistant", "assistant"]
    assert chat[1]["metadata"]["title"] == "Thoughts" and "51" in str(chat[2]["content"])
    assert "5 tokens" in speed and scripted.url in speed
    sent = scripted.requests[-1][2]
    assert (sent["max_tokens"], sent["temperature"]) == (64, 0)
    with pytest.raises(Exception, match="busy: too many requests. Try again in 2 seconds"):
        visitor.predict("fail", [], 64, 0, api_name="/respond")
    with pytest.raises(Exception, match="The question is empty"):
        visitor.predict(" ", [], 64, 0, api_name="/respond")


def test_a_conversation_can_be_copied_but_not_shared(scripted):
    blocks = demo.make_demo(url=scripted.url)
    (chat,) = [block for block in blocks.blocks.values() if isinstance(block, gr.Chatbot)]
    assert chat.buttons == ["copy", "copy_all"]


def test_the_stop_button_hangs_up_and_thoughts_fold(address, scripted, visit):
    from playwright.sync_api import expect

    with visit(address, height=1100) as page:
        page.get_by_role("tab", name="Chat").click()
        expect(page.get_by_text(demo.PROBLEM, exact=True)).to_be_visible(timeout=180_000)
        expect(page.get_by_text("It is 51.")).to_be_visible(timeout=180_000)  # the example that it opens with
        expect(page.get_by_text("30 + 21.")).not_to_be_visible()
        page.get_by_text("Thoughts", exact=True).click()
        expect(page.get_by_text("30 + 21.")).to_be_visible()
        page.get_by_label("Question").fill("17 * 3?")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.get_by_text("It is 51.")).to_have_count(2, timeout=180_000)
        page.get_by_label("Question").fill("forever")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.get_by_text("It is 51.")).to_have_count(3, timeout=180_000)
        assert not scripted.hung_up.is_set()
        page.get_by_role("button", name="Stop the answer").click()
        assert scripted.hung_up.wait(10), "the connection to the server is still open"
        expect(page.get_by_label("Speed")).to_have_value(re.compile("stopped"))


class Company:
    """Answers no request until `full` are under way together."""

    def __init__(self, full: int):
        self.all_here = threading.Barrier(full)

    def __call__(self, handler, body):
        question = body["messages"][-1]["content"]
        self.all_here.wait(20)
        if question == "fail":
            handler.reply(503, {"error": "too many requests"}, Retry_After="2")
        else:
            handler.stream(ROLE, event({"content": f"Re: {question}"}), event({}, "stop"), USAGE, DONE)


def test_eight_clients_ask_at_once_and_the_error_of_one_is_its_answer():
    texts = [f"question {number}" for number in range(7)] + ["fail"]
    with Scripted(Company(8)) as server:
        slots = [demo.Slot(text, demo.conversation([], text, "Be brief.")) for text in texts]
        *_, metrics = demo.answer_all(demo.Backend(url=server.url), slots, 16)
        sent = [body for path, _, body in server.requests if path.endswith("/completions")]
    assert [slot.text for slot in slots[:7]] == [f"Re: {text}" for text in texts[:7]]
    assert "busy: too many requests. Try again in 2 seconds" in slots[7].text
    assert all(body["messages"][0] == {"role": "system", "content": "Be brief."} for body in sent)
    assert {body["max_tokens"] for body in sent} == {16} and len(sent) == 8
    assert metrics == {}, "this server publishes none"
    assert demo.tokens_per_second(slots) > 0 and demo.run_row(slots, "–")[:2] == ["8", "–"]


def test_the_page_opens_with_eight_answers_and_takes_the_visitors_questions(visit):
    from playwright.sync_api import expect

    def echo(handler, body):
        thinker(handler, body) if body["messages"][-1]["content"] == "fail" else Company(1)(handler, body)

    with Scripted(echo) as server:
        blocks = demo.make_demo(url=server.url)
        with visit(start(blocks)) as page:
            answers = page.get_by_label("Answer", exact=True)
            for number, question in enumerate(demo.QUESTIONS):
                expect(answers.nth(number)).to_have_value(f"Re: {question}", timeout=180_000)
            runs = page.locator("table tbody tr")
            expect(runs).to_have_count(1)
            expect(runs.first).to_contain_text("tokens/s")
            page.get_by_label("Client 2").fill("And mine?")
            page.get_by_label("Client 3").fill("fail")
            page.get_by_role("button", name="Send to eight at once").click()
            expect(answers.nth(1)).to_have_value("Re: And mine?", timeout=180_000)
            expect(answers.nth(2)).to_have_value(re.compile("is busy: too many requests"), timeout=180_000)
            expect(runs).to_have_count(2)
            page.get_by_role("button", name="Send only the question of client 1").click()
            expect(runs).to_have_count(3, timeout=180_000)
            expect(answers.nth(7)).to_have_value("")
            page.get_by_label("Client 1").fill(" ")
            page.get_by_role("button", name="Send to eight at once").click()
            expect(page.get_by_text("The question is empty")).to_be_visible(timeout=180_000)
        blocks.close()


def test_a_visitor_who_leaves_ends_all_eight_answers(scripted):
    slots = [demo.Slot("forever", demo.conversation([], "forever")) for _ in range(8)]
    answering = demo.answer_all(demo.Backend(url=scripted.url), slots, 16)
    while not all(slot.pieces for slot in slots):
        next(answering)
    answering.close()
    assert scripted.hung_up.wait(10) and all(slot.stream.closed for slot in slots)


def test_eight_run_together_on_the_real_server_and_its_prefix_caching_is_switched():
    backend = demo.Backend()
    texts = ["Write a long story about the sea."] * 8
    length = 128  # so that the first answer is not over before the last begins, however busy the cores are
    speeds = {}
    for caching in ("on", "off"):
        if caching == "off":
            backend.switch_caching(False)
        slots = [demo.Slot(text, demo.conversation([], text)) for text in texts]
        seen = list(demo.answer_all(backend, slots, length))
        assert max(metrics.get("llm_requests_running", 0) for metrics in seen) == 8
        assert sum(slot.tokens for slot in slots) == 8 * length < seen[-1]["llm_generated_tokens_total"]
        assert all(len(slot.text.split()) > 20 for slot in slots)  # which words, depends on the processor's rounding
        speeds[caching] = demo.tokens_per_second(slots)
        assert repository.read(backend._repository).options.enable_prefix_caching == (caching == "on")
        assert backend.caching == caching and "smollm2" not in backend.title and "local server" in backend.title
    assert all(speeds.values())
    assert f"{seen[-1]['llm_generated_tokens_total']:,.0f}" in demo.tiles_html(slots, seen[-1])


def test_the_taught_model_thinks_aloud_and_solves_the_problem_that_the_chat_opens_with():
    backend = demo.Backend(thinks=True)
    reply = backend.client.chat(demo.conversation([], demo.PROBLEM), max_tokens=256, temperature=0)
    assert "44 + 30 = 74." in reply.reasoning and reply.answer == "The answer is 52."
    assert "tiny-thinking on the local server" in backend.title


def test_the_chat_has_a_switch_where_the_model_itself_does_not_think():
    def switch(blocks: gr.Blocks) -> gr.Checkbox:
        return next(block for block in blocks.blocks.values() if isinstance(block, gr.Checkbox))

    assert switch(demo.make_demo()).visible and not switch(demo.make_demo(url="http://127.0.0.1:9")).visible


def test_stopping_ends_the_generation_on_the_server(tmp_path):
    """On the real server: the request counts as aborted, and no more tokens are generated."""
    repository.write(tmp_path / "models", "tiny", convert.prepare("tiny"))
    with serve(tmp_path / "models", kind="local", quiet=True) as server, Client(server.url) as client:
        stream = client.stream("Write a long story about the sea.", max_tokens=2000, ignore_eos=True)
        begun = threading.Event()

        def read() -> None:
            for _ in demo.page(stream):
                begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(60)
        stream.close()
        reader.join(10)
        for _ in range(100):
            metrics = httpx.get(f"{server.url}/metrics", trust_env=False).text
            values = dict(re.findall(r"^(llm_\w+)\{.*\} (\S+)$", metrics, re.MULTILINE))
            if float(values["llm_requests_aborted_total"]) == 1:
                break
            threading.Event().wait(0.05)
    assert float(values["llm_requests_aborted_total"]) == 1
    assert float(values["llm_requests_running"]) == 0
    assert float(values["llm_generated_tokens_total"]) < 1900
    assert not reader.is_alive() and stream.reply.answer
