"""The demo: a chat with folded thoughts, the speed, and a stop button that also stops the server's work."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache

import gradio as gr

from notebooks.deepseek_serving import convert
from notebooks.deepseek_serving.pipeline import Client, ServerError, Stream
from notebooks.deepseek_serving.server import repository, serve

MAX_CHARACTERS = 4000  # of a question
UPDATE_S = 0.05  # between two updates of the page
MAX_CONCURRENT = 16  # visitors who get answers at the same time
SHOWN_ERRORS = (ServerError, ValueError, OSError)  # their messages are for users; others are logged with a traceback


def make_demo(model: str = "tiny", device: str = "CPU", url: str | None = None) -> gr.Blocks:
    """The Blocks of the demo. It uses the server at `url`.

    Without a URL it starts its own server with the first question, and ends it with this process.
    """
    running: dict[str, Stream] = {}  # by the visitor's session

    with gr.Blocks(title="A model server") as demo:
        gr.Markdown(
            "# Chat with a model server\n"
            "The answer streams from an OpenAI-compatible server. DeepSeek-R1 thinks aloud first: its thoughts are "
            "folded away. (The tiny model does not.) **Stop** closes the connection, and the server stops its work."
        )
        chat = gr.Chatbot(label="Conversation", height=420, buttons=["copy", "copy_all"])  # and no sharing
        question = gr.Textbox(label="Question", lines=2, value="What is the capital of France?")
        with gr.Row():
            send = gr.Button("Send", variant="primary")
            stop = gr.Button("Stop", variant="stop")
            clear = gr.ClearButton([chat], value="New conversation")
        with gr.Row():
            length = gr.Slider(16, 2048, value=256, step=16, label="Longest answer, tokens")
            temperature = gr.Slider(0, 1.5, value=0, step=0.1, label="Temperature (0: always the likeliest)")
        speed = gr.Textbox(label="Speed", interactive=False)
        gr.Examples([["Why is the sky blue?"], ["Write a long story about a lighthouse keeper."]], question)

        def respond(text: str, history: list, length: int, temperature: float, request: gr.Request) -> Iterator[tuple]:
            try:
                messages = conversation(history, text)
                client, server = _client(url, model, device)
                with client.stream(messages, max_tokens=int(length), temperature=temperature) as stream:
                    running[request.session_hash] = stream
                    for answer, rate in page(stream):
                        yield "", [*history, {"role": "user", "content": text}, *answer], f"{rate}, by {server}"
            except SHOWN_ERRORS as error:
                raise gr.Error(str(error)) from error
            finally:
                running.pop(request.session_hash, None)

        def end(request: gr.Request) -> None:
            if stream := running.get(request.session_hash):
                stream.close()

        inputs, outputs = [question, chat, length, temperature], [question, chat, speed]
        options = {"api_name": "respond", "concurrency_limit": MAX_CONCURRENT, "concurrency_id": "respond"}
        for event in (send.click, question.submit):
            event(respond, inputs, outputs, **options)
        for event in (stop.click, clear.click):
            event(end, None, None, api_name=False, queue=False)
        demo.unload(end)
    return demo


def conversation(history: list[dict], question: str) -> list[dict]:
    """The messages to send: the earlier ones without thoughts, and the new question.

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
    return [*messages, {"role": "user", "content": question}]


def page(stream: Stream) -> Iterator[tuple[list[dict], str]]:
    """Yield (messages to show, speed) while the answer is streamed; thoughts are a separate message that folds.

    Errors of the stream are raised after all text before them was yielded.
    """
    pieces, errors = 0, []

    def read() -> None:
        nonlocal pieces
        try:
            for _ in stream:
                pieces += 1
        except Exception as error:
            errors.append(error)

    reader = threading.Thread(target=read, daemon=True)  # a slow page must not slow the stream
    reader.start()
    shown = 0
    while reader.is_alive():
        reader.join(UPDATE_S)
        if pieces > shown:
            shown = pieces
            yield _messages(stream, done=False), _speed(stream, pieces)
    if errors:
        raise errors[0]
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
    if reply.tokens_per_second and reply.completion_tokens:
        return f"{reply.completion_tokens} tokens, {reply.tokens_per_second:.0f} tokens/s, {first}"
    spent = reply.seconds - reply.first_token_s
    rate = f", about {(pieces - 1) / spent:.0f} tokens/s" if pieces > 1 and spent > 0 else ""
    return f"about {pieces} tokens{rate}, {first}"


def _text(content) -> str:
    """The text of a message, which Gradio returns as text or as a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if isinstance(part, dict))


@cache
def _client(url: str | None, model: str, device: str) -> tuple[Client, str]:
    """A client, and the name of its server. A server that the demo starts ends with the process."""
    thinks = convert.MODELS[model]["thinks"]
    if url:
        return Client(url, thinks=thinks), url
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(repository.temporary(model, convert.prepare(model), device=device))
    server = stack.enter_context(serve(folder, quiet=True))
    return Client(server.url, server.model, thinks=thinks), server.title
