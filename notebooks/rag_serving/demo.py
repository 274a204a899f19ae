"""The demo: ask, see the answer stream with its sources, give a document and ask about it at once."""

from __future__ import annotations

import html
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import gradio as gr

from notebooks.rag_serving import convert
from notebooks.rag_serving.data import descriptions, numpy_corpus, sample
from notebooks.rag_serving.pipeline import Answer, Answerer, Passage, Retriever, read_text
from notebooks.rag_serving.pipeline.database import embedded
from notebooks.rag_serving.server.process import database_folder, retriever_of
from utils.demo import run_in_background, shown_errors

DOCUMENTS = 100  # of numpy, besides the descriptions of data sets
QUESTION = "Which country do the wines come from?"
EXAMPLES = [
    [QUESTION],
    ["How many samples does RCV1 have in total?"],
    ["How many of the breast tumours were malignant?"],
    ["Which baseball team decided to change its name?"],
]
COLUMNS = [
    "", "source", "fused score", "cosine", "place by vector", "BM25", "place by words", "reranker",
]  # fmt: skip
MODES = {"vectors and words": "hybrid", "vectors only": "dense", "words only": "words"}
MARK = '<mark style="background:#ffe3bd;color:#23303f">{}</mark>'


class Service:
    """The retriever and the language model, which are loaded when they are first needed.

    url: of the database; by default an embedded one, which keeps what visitors gave until they remove it.
    """

    def __init__(self, model: str, device: str, url: str | None = None) -> None:
        self._model, self._device, self._url = model, device, url
        self._loaded: tuple[Retriever, Answerer] | None = None
        self._lock = threading.Lock()

    def load(self) -> tuple[Retriever, Answerer]:
        with self._lock:
            if self._loaded is None:
                embedder, llm = convert.prepare(self._model)
                reranker, url = convert.prepare_reranker(self._model), self._url or embedded(database_folder("demo"))
                retriever = retriever_of(embedder, reranker, url, self._device)
                for document in [*sample(*numpy_corpus(), DOCUMENTS)[0], *descriptions()]:
                    retriever.ingest(document.source, document.text)
                self._loaded = retriever, Answerer(llm, self._device)
            return self._loaded


def sources_html(passages: Sequence[Passage], support: Sequence[Sequence[tuple[int, int]]] = ()) -> str:
    """The numbered passages; what the answer shares with them is marked."""
    parts = []
    for number, passage in enumerate(passages, 1):
        text, place = "", 0
        for begin, end in support[number - 1] if support else ():
            text += html.escape(passage.text[place:begin]) + MARK.format(html.escape(passage.text[begin:end]))
            place = end
        text += html.escape(passage.text[place:])
        title = f"[{number}] {html.escape(passage.source)}"
        parts.append(f'<p><b>{title}</b></p><div style="white-space:pre-wrap;font-size:0.9em">{text}</div>')
    return "".join(parts) or "<p>No passages: the model answers from memory.</p>"


def scores(passages: Sequence[Passage]) -> list[list]:
    """Rows of COLUMNS."""
    return [
        [f"[{number}]", own.source, f"{own.score:.4f}", *(_shown(value) for value in _stages(own))]
        for number, own in enumerate(passages, 1)
    ]


def _stages(own: Passage) -> tuple:
    return own.similarity, own.dense_rank, own.bm25, own.words_rank, own.rerank_score


def _shown(value: float | int | None) -> str:
    return "–" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"


def make_demo(model: str = "tiny", device: str = "CPU", url: str | None = None) -> gr.Blocks:
    """The Blocks of the demo, which show an answered example when the page opens."""
    service = Service(model, device, url)

    def ask(question: str, retrieval: bool, mode: str, rerank: bool, k: float) -> Iterator[tuple]:
        with shown_errors():
            retriever, answerer = service.load()
            passages = retriever.search(question, int(k), MODES[mode], rerank) if retrieval else []
            yield "", sources_html(passages), scores(passages), "…"
            pieces: list[str] = []
            done: list[Answer] = []

            def work(left: threading.Event) -> None:
                done.append(answerer.ask(question, passages, lambda piece: pieces.append(piece) or left.is_set()))

            for _ in run_in_background(work, lambda: len(pieces)):
                yield "".join(pieces), gr.skip(), gr.skip(), gr.skip()
            answer = done[0]
            took = f"{answer.prompt_tokens} tokens read, first text after {answer.first_token_s:.2f} s, whole answer "
            yield answer.text, sources_html(passages, answer.support), gr.skip(), took + f"after {answer.seconds:.2f} s"

    def give(path: str | None, own: list[str]) -> tuple[str, list[str]]:
        with shown_errors():
            if not path:
                raise ValueError("There is no file. Choose one first.")
            name = Path(path).name
            status = service.load()[0].ingest(name, read_text(Path(path).read_bytes(), name))
            return f"{name}: {status}. Ask about it.", [*own, name]

    def remove(own: list[str]) -> tuple[str, list[str]]:
        with shown_errors():
            removed = [name for name in dict.fromkeys(own) if service.load()[0].delete(name)]
            return f"Removed: {', '.join(removed) or 'nothing'}.", []

    with gr.Blocks(title="Answers from documents") as demo:
        gr.Markdown(
            "# Ask your documents\n"
            "PostgreSQL finds passages by vector and by words, and a small language model answers from them. Marked "
            "words of a passage stand in the answer, too. The documents are a part of numpy's documentation and "
            "scikit-learn's descriptions of data sets."
        )
        own = gr.State([])
        with gr.Row():
            with gr.Column(scale=2):
                question = gr.Textbox(QUESTION, label="Question")
                with gr.Row():
                    retrieval = gr.Checkbox(True, label="With retrieval")
                    mode = gr.Radio(list(MODES), value="vectors and words", label="Search by")
                    rerank = gr.Checkbox(False, label="Rerank")
                    k = gr.Slider(1, 5, value=3, step=1, label="Passages")
                send = gr.Button("Ask", variant="primary")
                answer = gr.Textbox(label="Answer", lines=2)
                took = gr.Textbox(label="Time", lines=1)
            with gr.Column(scale=1):
                file = gr.File(label="A text file of your own", type="filepath", file_count="single", height=120)
                status = gr.Textbox(label="Documents")
                clear = gr.Button("Remove my documents")
        gr.Examples(EXAMPLES, question)
        table = gr.Dataframe(headers=COLUMNS, label="What each stage says", interactive=False)
        sources = gr.HTML(label="Sources")
        inputs, outputs = [question, retrieval, mode, rerank, k], [answer, sources, table, took]
        options = {"concurrency_id": "model", "concurrency_limit": 1, "show_progress": "hidden"}
        for event in (send.click, question.submit):
            event(ask, inputs, outputs, api_name="ask", **options)
        demo.load(ask, inputs, outputs, api_name=False, **options)
        file.upload(give, [file, own], [status, own], api_name="give")
        clear.click(remove, own, [status, own], api_name="remove")
    return demo
