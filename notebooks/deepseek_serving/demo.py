"""The demo: eight clients that ask at once, with the server's live metrics, and a chat with folded thoughts."""

from __future__ import annotations

import atexit
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import gradio as gr
import httpx

from notebooks.deepseek_serving import convert
from notebooks.deepseek_serving.pipeline import Client, ServerError, Stream
from notebooks.deepseek_serving.server import repository, serve
from utils.demo import run_in_background, shown_errors
from utils.tables import Table

MAX_CHARACTERS = 4000  # of a question
UPDATE_S = 0.1  # between two updates of the page while eight answers are streamed
MAX_CONCURRENT = 16  # visitors who get answers at the same time
MAX_RUNS = 6  # that the table of runs shows
SHOWN_ERRORS = (ServerError, ValueError, OSError)  # their messages are for users; others are logged with a traceback
QUESTION = "What is the capital of France?"
# In a wording of `data`; training has no problem with these numbers.
PROBLEM = "Greta has 44 apples. Greta buys 35 more and gives 27 to Bruno. How many apples does Greta have now?"
QUESTIONS = (
    QUESTION,
    "How many legs does a spider have?",
    "What is the chemical formula of water?",
    "Why is the sky blue?",
    "What is the opposite of hot?",
    "What is frozen water called?",
    "Write a poem about the sea.",
    "Tell me a story about a fox.",
)
INSTRUCTIONS = """\
You are the friendly assistant of a public library. Many people ask you questions at the same time, and all of them \
want a short and correct answer. Follow these rules.
1. Answer in one or two short sentences.
2. Use simple words that a child of ten years understands.
3. Begin with the answer itself, and give a reason after it.
4. Be polite. Do not repeat the question.
5. When you are not sure, say that you are not sure, and name a book in which the reader can look it up.
6. Give numbers as digits, lengths in metres, and temperatures in degrees Celsius.
7. Do not give advice about money, law or health; send the reader to a specialist.
8. Answer in English, whatever the language of the question is.
The library is open from Monday to Saturday. It has books about history, science, art, music, animals, plants, stars, \
seas, countries and cities, and stories for children."""
RUNS = [
    "Clients",
    "Prefix caching",
    "First token (median)",
    "All clients together",
    "Each client",
]


def make_demo(model: str = "tiny", device: str = "CPU", url: str | None = None, ir: Path | None = None) -> gr.Blocks:
    """The Blocks of the demo. It uses the server at `url`.

    Without a URL it starts a server of its own with the first question, and ends it with this process. That server has
    the weights of the IR folder `ir`, by default those of `convert.prepare(model)`. The chat of the tiny model has a
    second one, with the weights that think.
    """
    backend = Backend(model, device, url, ir)
    thinker = backend if url or convert.MODELS[model]["thinks"] else Backend(model, device, thinks=True)
    running: dict[tuple[str, str], list[Slot] | list[Stream]] = {}  # by the visitor's session and the tab

    with gr.Blocks(title="A model server") as demo:
        gr.Markdown(
            "# One model server, many clients\n"
            "Eight clients send their questions at the same time. The server answers all of them in one batch, and "
            "streams each answer to its client."
        )
        with gr.Tab("Eight at once"):
            _eight_clients(demo, backend, running)
        with gr.Tab("Chat"):
            _chat(demo, backend, thinker, running)
    return demo


def _eight_clients(demo: gr.Blocks, backend: Backend, running: dict) -> None:
    """The tab in which eight clients ask at once; it opens with their example questions being answered."""
    questions, answers = [], []
    for first in (0, 4):
        with gr.Row():
            for number in range(first, first + 4):
                with gr.Column(min_width=200):
                    questions.append(gr.Textbox(QUESTIONS[number], label=f"Client {number + 1}", max_lines=2))
                    answers.append(gr.Textbox(label="Answer", lines=6, max_lines=6, interactive=False))
    with gr.Row():
        send_all = gr.Button("Send to eight at once", variant="primary")
        send_first = gr.Button("Send only the question of client 1")
        stop = gr.Button("Stop", variant="stop")
    tiles = gr.HTML(tiles_html([], {}))
    with gr.Row():
        tokens = gr.Slider(8, 256, value=48, step=8, label="Longest answer, tokens")
        caching = gr.Radio(["on", "off"], value="on", label="Prefix caching", visible=backend.own)
    with gr.Accordion("Instructions that precede every question (prefix caching reads them once)", open=False):
        instructions = gr.Textbox(INSTRUCTIONS, lines=6, max_lines=6, show_label=False)
    table, runs = gr.Markdown(), gr.State([])

    def send(request: gr.Request, tokens: int, instructions: str, runs: list, texts: list[str]) -> Iterator[list]:
        try:
            asked = [Slot(text, conversation([], text, instructions)) for text in texts]
            key = (request.session_hash, "eight")
            running[key] = asked
            for metrics in answer_all(backend, asked, int(tokens)):
                shown = [slot.text for slot in asked] + [""] * (len(QUESTIONS) - len(asked))
                yield [*shown, tiles_html(asked, metrics, backend.title), runs, gr.skip()]
            runs = [*runs, run_row(asked, backend.caching)][-MAX_RUNS:]
            yield [*shown, tiles_html(asked, metrics, backend.title), runs, Table(RUNS, runs).markdown()]
        except SHOWN_ERRORS as error:
            raise gr.Error(str(error)) from error
        finally:
            running.pop((request.session_hash, "eight"), None)

    def ask_all(request: gr.Request, tokens, instructions, runs, *texts) -> Iterator[list]:
        yield from send(request, tokens, instructions, runs, list(texts))

    def ask_first(request: gr.Request, tokens, instructions, runs, *texts) -> Iterator[list]:
        yield from send(request, tokens, instructions, runs, list(texts[:1]))

    def end(request: gr.Request) -> None:
        for slot in running.get((request.session_hash, "eight"), []):
            slot.close()

    def switch(choice: str) -> str:
        with shown_errors(SHOWN_ERRORS):
            backend.switch_caching(choice == "on")
        return tiles_html([], {}, f"The server has loaded the model again, with prefix caching {choice}.")

    inputs, outputs = [tokens, instructions, runs, *questions], [*answers, tiles, runs, table]
    options = {"concurrency_limit": MAX_CONCURRENT, "concurrency_id": "eight"}
    send_all.click(ask_all, inputs, outputs, api_name="ask_all", show_progress="hidden", **options)
    send_first.click(ask_first, inputs, outputs, api_name=False, show_progress="hidden", **options)
    demo.load(ask_all, inputs, outputs, api_name=False, **options)
    caching.input(switch, caching, tiles, api_name="switch")
    stop.click(end, None, None, api_name=False, queue=False)
    demo.unload(end)


def _chat(demo: gr.Blocks, backend: Backend, thinker: Backend, running: dict) -> None:
    """The tab with the chat; it opens with an example that is answered. thinker: answers while "Think aloud" is on."""
    about = "Thoughts of a model that thinks aloud before it answers are folded away: click on them."
    if thinker is not backend:
        about += (
            " An adapter taught this tiny model to think about word problems of two steps, and about nothing else: "
            "switch thinking off for other questions."
        )
    gr.Markdown(f"{about} **Stop the answer** closes the connection, and the server stops its work.")
    chat = gr.Chatbot(label="Conversation", height=420, buttons=["copy", "copy_all"])  # and no sharing
    question = gr.Textbox(label="Question", lines=2, value=PROBLEM)
    aloud = gr.Checkbox(True, label="Think aloud", visible=thinker is not backend)
    with gr.Row():
        send = gr.Button("Send", variant="primary")
        stop = gr.Button("Stop the answer", variant="stop")
        clear = gr.ClearButton([chat], value="New conversation")
    with gr.Row():
        length = gr.Slider(16, 2048, value=256, step=16, label="Longest answer, tokens")
        temperature = gr.Slider(0, 1.5, value=0, step=0.1, label="Temperature (0: always the likeliest token)")
    speed = gr.Textbox(label="Speed", interactive=False)
    examples = [
        ["A train has 6 wagons with 18 seats each. 41 seats are taken. How many seats are free?", True],
        ["Dario is older than Alma. Henry is older than Dario. Who is the youngest?", True],
        ["Why is the sky blue?", False],
        ["Write a long story about a lighthouse keeper.", False],
    ]
    gr.Examples(examples, [question, aloud])

    def respond(
        text: str, history: list, length: int, temperature: float, aloud: bool, request: gr.Request
    ) -> Iterator[tuple]:
        key, server = (request.session_hash, "chat"), thinker if aloud else backend
        try:
            messages = conversation(history, text)
            with server.client.stream(messages, max_tokens=int(length), temperature=temperature) as stream:
                running[key] = [stream]
                for answer, rate in page(stream):
                    yield "", [*history, {"role": "user", "content": text}, *answer], f"{rate}, by {server.title}"
        except SHOWN_ERRORS as error:
            raise gr.Error(str(error)) from error
        finally:
            running.pop(key, None)

    def end(request: gr.Request) -> None:
        for stream in running.get((request.session_hash, "chat"), []):
            stream.close()

    inputs, outputs = [question, chat, length, temperature, aloud], [question, chat, speed]
    options = {"concurrency_limit": MAX_CONCURRENT, "concurrency_id": "respond"}
    for event in (send.click, question.submit):
        event(respond, inputs, outputs, api_name="respond", **options)
    demo.load(respond, inputs, outputs, api_name=False, **options)
    for event in (stop.click, clear.click):
        event(end, None, None, api_name=False, queue=False)
    demo.unload(end)


class Backend:
    """The server that answers: the one at `url`, or one of the demo's own, which starts when it is first needed.

    Its own serves the IR folder `ir`, by default that of `convert.prepare(model)`; thinks: True has a tiny model that
    thinks in its place. `caching` is "on" or "off" for its own server, and "–" for another.
    """

    def __init__(
        self,
        model: str = "tiny",
        device: str = "CPU",
        url: str | None = None,
        ir: Path | None = None,
        thinks: bool = False,
    ) -> None:
        self.own = url is None
        self.caching = "on" if self.own else "–"
        self._server = url or ""
        self._model, self._device, self._ir = model, device, ir
        self._taught = thinks  # by the adapter
        self._url, self._client, self._repository = url, None, None
        self._lock = threading.Lock()

    @property
    def title(self) -> str:
        """The model and the server, once it has answered."""
        return f"{self._client.model} on {self._server}" if self._client else ""

    @property
    def client(self) -> Client:
        with self._lock:
            if self._client is None:
                thinks = self._taught or convert.MODELS[self._model]["thinks"]
                self._client = self._start(thinks) if self.own else Client(self._url, thinks=thinks)
            return self._client

    def _start(self, thinks: bool) -> Client:
        stack = ExitStack()
        atexit.register(stack.close)
        self._ir = self._ir or (convert.prepare_thinking() if self._taught else convert.prepare(self._model))
        name = f"{self._model}-thinking" if self._taught else self._model
        temporary = repository.temporary(name, self._ir, device=self._device)
        self._repository = stack.enter_context(temporary)
        server = stack.enter_context(serve(self._repository, quiet=True))
        self._url, self._server = server.url, server.title
        client = Client(server.url, server.model, thinks=thinks)
        _warm_up(client)
        return client

    def switch_caching(self, on: bool) -> None:
        """Write the repository of the demo's own server with prefix caching on or off, and let the server reload it.

        Raises ServerError.
        """
        client = self.client
        with self._lock:
            options = {"device": self._device, "enable_prefix_caching": on}
            repository.write(self._repository, client.model, self._ir, **options)
            reply = httpx.post(f"{self._url}/v1/config/reload", timeout=120, trust_env=False)
            if reply.is_error:
                raise ServerError(f"The server did not load the model again: {reply.text}", reply.status_code)
            _warm_up(client)
            self.caching = "on" if on else "off"

    def metrics(self) -> dict[str, float]:
        """The metrics that the server publishes at /metrics, by name; empty where it publishes none."""
        try:
            text = httpx.get(f"{self._url.rstrip('/')}/metrics", timeout=2, trust_env=False).text
        except httpx.HTTPError:
            return {}
        return {name: float(value) for name, value in re.findall(r"^(\w+)(?:\{.*\})? ([\d.e+-]+)$", text, re.MULTILINE)}


@dataclass
class Slot:
    """One of the clients that ask at once, and what it has received so far."""

    question: str
    messages: list[dict]
    stream: Stream | None = None
    pieces: int = 0
    error: str = ""
    closed: bool = False

    @property
    def text(self) -> str:
        return self.error or (self.stream.reply.answer if self.stream else "")

    @property
    def tokens(self) -> int:
        """The server's count once the answer is complete, before that the number of pieces."""
        return (self.stream.reply.completion_tokens if self.stream else None) or self.pieces

    def close(self) -> None:
        self.closed = True
        if self.stream:
            self.stream.close()

    def ask(self, client: Client, tokens: int, left: threading.Event) -> None:
        """Stream the answer until it ends, `close` is called or `left` is set. An error becomes the slot's text."""
        try:
            with client.stream(self.messages, max_tokens=tokens, temperature=0) as stream:
                self.stream = stream
                for _ in stream:
                    self.pieces += 1
                    if left.is_set() or self.closed:
                        break
        except SHOWN_ERRORS as error:
            self.error = str(error)


def answer_all(backend: Backend, slots: Sequence[Slot], tokens: int) -> Iterator[dict[str, float]]:
    """Let all slots ask at once; yield the server's metrics ten times a second, and once more at the end."""
    client = backend.client

    def work(left: threading.Event) -> None:
        with ThreadPoolExecutor(len(slots)) as threads:
            list(threads.map(lambda slot: slot.ask(client, tokens, left), slots))

    begin = perf_counter()
    background = run_in_background(work, lambda: int((perf_counter() - begin) / UPDATE_S))
    try:
        for _ in background:
            yield backend.metrics()
    finally:  # also when the visitor has left
        for slot in slots:
            slot.close()
        background.close()
    yield backend.metrics()


def _warm_up(client: Client) -> None:
    """Ask one question: the runtime prepares its kernels, and prefix caching keeps the instructions."""
    client.chat(conversation([], QUESTION, INSTRUCTIONS), max_tokens=4, temperature=0)


def tokens_per_second(slots: Sequence[Slot]) -> float:
    """Of all slots together, from sending the requests to the last text."""
    seconds = max((slot.stream.reply.seconds for slot in slots if slot.stream), default=0)
    return sum(slot.tokens for slot in slots) / seconds if seconds else 0.0


def first_token_s(slots: Sequence[Slot]) -> float | None:
    """The median over the slots that have a token."""
    times = [slot.stream.reply.first_token_s for slot in slots if slot.stream and slot.stream.reply.first_token_s]
    return median(times) if times else None


def run_row(slots: Sequence[Slot], caching: str) -> list[str]:
    """A line of the table of runs."""
    speed, first = tokens_per_second(slots), first_token_s(slots)
    waited = "–" if first is None else f"{first:.2f} s"
    rates = [f"{speed:.0f} tokens/s", f"{speed / len(slots):.0f} tokens/s"]
    return [str(len(slots)), caching, waited, *rates]


def tiles_html(slots: Sequence[Slot], metrics: Mapping[str, float], message: str = "") -> str:
    """The speed of all slots and the server's metrics, as tiles."""
    first = first_token_s(slots)
    shown = {
        "tokens/s, all clients": f"{tokens_per_second(slots):.0f}" if first else "–",
        "first token, median": f"{first:.2f} s" if first else "–",
        "running": _metric(metrics, "llm_requests_running", "{:.0f}"),
        "waiting": _metric(metrics, "llm_requests_waiting", "{:.0f}"),
        "KV cache in use": _metric(metrics, "llm_kv_cache_usage_ratio", "{:.1%}"),
        "tokens since the start": _metric(metrics, "llm_generated_tokens_total", "{:,.0f}"),
    }
    style = "flex:1;padding:8px 12px;border:1px solid var(--border-color-primary);border-radius:8px"
    parts = [
        f'<div style="{style}"><div style="font-size:1.5em;font-weight:600">{value}</div><div>{name}</div></div>'
        for name, value in shown.items()
    ]
    return f'<div style="display:flex;gap:8px;flex-wrap:wrap">{"".join(parts)}</div><div>{message}</div>'


def _metric(metrics: Mapping[str, float], name: str, form: str) -> str:
    return form.format(metrics[name]) if name in metrics else "–"


def conversation(history: list[dict], question: str, instructions: str = "") -> list[dict]:
    """The messages to send: the instructions if there are any, the earlier ones without thoughts, the new question.

    Raises ValueError for a question that is empty or too long.
    """
    if not question.strip():
        raise ValueError("The question is empty: type one first.")
    if len(question) > MAX_CHARACTERS:
        raise ValueError(
            f"The question has {len(question)} characters; the demo takes up to {MAX_CHARACTERS}. Shorten it."
        )
    messages = [
        {"role": message["role"], "content": _text(message["content"])}
        for message in history
        if not (message.get("metadata") or {}).get("title")
    ]
    system = [{"role": "system", "content": instructions}] if instructions.strip() else []
    return [*system, *messages, {"role": "user", "content": question}]


def page(stream: Stream) -> Iterator[tuple[list[dict], str]]:
    """Yield (messages to show, speed) while the answer is streamed; thoughts are a separate message that folds.

    Errors of the stream are raised after all text before them was yielded.
    """
    pieces = 0

    def read(left: threading.Event) -> None:
        nonlocal pieces
        for _ in stream:
            pieces += 1
            if left.is_set():
                break

    background = run_in_background(read, lambda: pieces)
    try:
        for _ in background:
            yield _messages(stream, done=False), _speed(stream, pieces)
    finally:  # also when the visitor has left; a closed stream ends the reading thread
        stream.close()
        background.close()
    yield _messages(stream, done=True), _speed(stream, pieces) + (", stopped" if stream.closed else "")


def _messages(stream: Stream, done: bool) -> list[dict]:
    reply, messages = stream.reply, []
    if reply.reasoning:
        thinking = not (done or reply.answer)
        metadata = {"title": "Thinking" if thinking else "Thoughts", "status": "pending" if thinking else "done"}
        messages.append({"role": "assistant", "content": reply.reasoning, "metadata": metadata})
    if reply.answer or done:
        messages.append({"role": "assistant", "content": reply.answer})
    return messages


def _speed(stream: Stream, pieces: int) -> str:
    reply = stream.reply
    if reply.first_token_s is None:
        return "nothing yet"
    first = f"first after {reply.first_token_s:.2f} s"
    if reply.completion_tokens:
        return f"{reply.completion_tokens} tokens, {reply.completion_tokens / reply.seconds:,.0f} tokens/s, {first}"
    return f"about {pieces} tokens, about {pieces / reply.seconds:,.0f} tokens/s, {first}"


def _text(content) -> str:
    """The text of a message, which Gradio returns as text or as a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if isinstance(part, dict))
