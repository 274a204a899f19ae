"""The demo: a manager of models (what is on disk, what is in memory, until when) and a chat with any of them."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import gradio as gr
import httpx
import ollama
import psutil

from notebooks.ollama_openvino import convert
from notebooks.ollama_openvino.server import install, serve
from utils.demo import run_in_background, shown_errors
from utils.tables import Table, number

MAX_CHARACTERS = 4000  # of a question or a system message
MAX_CONCURRENT = 16  # visitors who get answers at the same time
QUESTION = "What is the capital of France?"
SYSTEM = "You are a helpful assistant. Answer in one sentence."
SHOWN = (ollama.ResponseError, ConnectionError, httpx.HTTPError, ValueError, OSError)
MINUTES = ("0", "1m", "5m", "-1")


class Backend:
    """The server at `host`, or one of the demo's own with the model at INT4 and INT8, which starts when needed."""

    def __init__(self, model: str = "tiny", device: str = "CPU", host: str | None = None) -> None:
        self.model, self.device, self.host = model, device, host
        self.pid: int | None = None
        self._lock = threading.Lock()

    @property
    def client(self) -> ollama.Client:
        with self._lock:
            if self.host is None:
                self._start()
        return ollama.Client(host=self.host, trust_env=False, timeout=120)

    def _start(self) -> None:
        stack = ExitStack()
        atexit.register(stack.close)
        server = stack.enter_context(serve(Path(stack.enter_context(TemporaryDirectory())), device=self.device))
        for precision in ("INT8", "INT4"):
            install(server.host, f"{self.model}:{precision.lower()}", convert.prepare(self.model, precision))
        self.host, self.pid = server.host, server.pid

    def names(self) -> list[str]:
        """The models on disk, the last created first."""
        return [model.model for model in self.client.list().models]

    def memory_mb(self) -> float | None:
        """The memory of the demo's own server, or None."""
        return psutil.Process(self.pid).memory_info().rss / 1e6 if self.pid else None

    def table(self) -> str:
        """The models as a Markdown table, and the server's memory below it."""
        client = self.client
        running = {model.model: model for model in client.ps().models}
        lines = []
        for model in client.list().models:
            loaded = running.get(model.model)
            size = f"{number(model.size / 1e6)} MB"
            memory = f"{number(loaded.size / 1e6)} MB" if loaded else "not loaded"
            lines.append([model.model, size, memory, _until(loaded.expires_at) if loaded else ""])
        memory = self.memory_mb()
        text = Table(["Model", "On disk", "In memory", "Unloaded in"], lines).markdown()
        return text + (f"\n\nThe server takes **{number(memory)} MB** of memory." if memory else "")

    def load(self, name: str, keep_alive: str) -> None:
        self.client.generate(name, keep_alive=keep_alive)

    def unload(self, name: str) -> None:
        self.client.generate(name, keep_alive=0)


def make_demo(model: str = "tiny", device: str = "CPU", host: str | None = None) -> gr.Blocks:
    """The Blocks of the demo, which opens with an answer. host: of a server that runs already."""
    backend = Backend(model, device, host)
    with gr.Blocks(title="OpenVINO for Ollama clients") as demo:
        gr.Markdown("# Models for Ollama clients\nThe server loads a model when it is asked, and unloads it again.")
        with gr.Row():
            with gr.Column(scale=1, min_width=460):
                chosen = gr.Dropdown([], label="Model", allow_custom_value=True)
                keep = gr.Radio(list(MINUTES), value="5m", label="Stays in memory (keep_alive; -1: for ever)")
                with gr.Row():
                    load, unload = gr.Button("Load"), gr.Button("Unload")
                table = gr.Markdown()
            with gr.Column(scale=1, min_width=400):
                chat = gr.Chatbot(label="Conversation", height=320, buttons=["copy"])
                question = gr.Textbox(QUESTION, label="Question", lines=2)
                with gr.Row():
                    send, stop = gr.Button("Send", variant="primary"), gr.Button("Stop", variant="stop")
                speed = gr.Textbox(label="Speed", interactive=False)
                with gr.Accordion("Options", open=False):
                    system = gr.Textbox(SYSTEM, label="System message", lines=2)
                    temperature = gr.Slider(0, 1.5, value=0, step=0.1, label="temperature")
                    length = gr.Slider(16, 512, value=128, step=16, label="num_predict")

        def respond(name, text, history, keep_alive, message, heat, tokens) -> Iterator[tuple]:
            with shown_errors(SHOWN):
                options = {"temperature": heat, "num_predict": int(tokens), "repeat_penalty": 1.0}
                messages = conversation(history, text, message)
                before = [*history, {"role": "user", "content": text}]
                for answer, rate in stream(backend.client, name, messages, options, keep_alive):
                    yield "", [*before, {"role": "assistant", "content": answer}], rate, gr.skip()
                yield "", [*before, {"role": "assistant", "content": answer}], rate, backend.table()

        def begin(keep_alive, message, heat, tokens) -> Iterator[tuple]:
            with shown_errors(SHOWN):
                names = backend.names()
                name = names[0] if names else ""
                yield gr.update(choices=names, value=name), gr.skip(), gr.skip(), gr.skip(), backend.table()
            for shown in respond(name, QUESTION, [], keep_alive, message, heat, tokens):
                yield gr.skip(), *shown

        def change(work) -> str:
            with shown_errors(SHOWN):
                work()
                return backend.table()

        inputs = [chosen, question, chat, keep, system, temperature, length]
        outputs = [question, chat, speed, table]
        options = {"concurrency_limit": MAX_CONCURRENT, "concurrency_id": "respond"}
        sent = [
            event(respond, inputs, outputs, api_name="respond", **options) for event in (send.click, question.submit)
        ]
        started = demo.load(begin, inputs[3:], [chosen, *outputs], api_name=False, **options)
        stop.click(None, None, None, cancels=[*sent, started], api_name=False)
        load.click(lambda n, k: change(lambda: backend.load(n, k)), [chosen, keep], table, api_name="load")
        unload.click(lambda n: change(lambda: backend.unload(n)), chosen, table, api_name="unload")
        gr.Timer(5).tick(lambda: change(lambda: None), None, table, api_name=False, show_progress="hidden")
    return demo


def stream(
    client: ollama.Client, name: str, messages: list, options: dict, keep_alive: str
) -> Iterator[tuple[str, str]]:
    """Yield (answer so far, speed). Closing the generator closes the connection, and the server stops its work."""
    answer, last = "", None
    pieces = client.chat(name, messages, options=options, keep_alive=keep_alive, stream=True)

    def read(left: threading.Event) -> None:
        nonlocal answer, last
        for piece in pieces:
            answer += piece.message.content or ""
            last = piece
            if left.is_set():
                pieces.close()
                break

    background = run_in_background(read, lambda: len(answer))
    try:
        for _ in background:
            yield answer, "..."
    finally:
        background.close()
    yield answer, _speed(last)


def conversation(history: list[dict], question: str, system: str = "") -> list[dict]:
    """The messages to send. Raises ValueError for a question that is empty or too long."""
    for what, text in (("question", question), ("system message", system)):
        if len(text) > MAX_CHARACTERS:
            raise ValueError(
                f"The {what} has {len(text)} characters; the demo takes up to {MAX_CHARACTERS}. Shorten it."
            )
    if not question.strip():
        raise ValueError("The question is empty: type one first.")
    first = [{"role": "system", "content": system}] if system.strip() else []
    earlier = [{"role": message["role"], "content": _text(message["content"])} for message in history]
    return [*first, *earlier, {"role": "user", "content": question}]


def _speed(last) -> str:
    if last is None or not last.done or not last.eval_duration:
        return "stopped"
    rate = last.eval_count / (last.eval_duration + last.prompt_eval_duration) * 1e9
    first = (last.load_duration + last.prompt_eval_duration) / 1e9
    return f"{last.eval_count} tokens, {rate:.0f} tokens/s, loaded and read in {first:.2f} s"


def _until(moment: datetime) -> str:
    seconds = (moment - datetime.now(UTC)).total_seconds()
    return "never" if seconds > 365 * 86400 else f"{max(0, seconds):.0f} s"


def _text(content) -> str:
    """The text of a message, which Gradio returns as text or as a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if isinstance(part, dict))
