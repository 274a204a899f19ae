"""How fast it is: embedding against PyTorch and ONNX Runtime, the stages of an answer, many clients."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import httpx
import numpy as np
import uvicorn

from notebooks.rag_serving import convert, data
from notebooks.rag_serving.measuring import answers, retrieval
from notebooks.rag_serving.pipeline import Answerer, Embedder, Passage, Retriever, open_reranker
from notebooks.rag_serving.pipeline.database import embedded, stop
from notebooks.rag_serving.pipeline.reranker import CANDIDATES
from notebooks.rag_serving.server import create_app, database_folder
from utils import bench, report
from utils.convert import cached_in_child
from utils.models.llm_speed import TORCH_TYPES, weights_mb
from utils.serving import process
from utils.serving.guard import Limits

LONGEST = 256  # tokens that the embedding model reads
QUESTION, PASSAGES = "one question", "16 passages"
WORKLOADS = [bench.Workload(QUESTION), bench.Workload(PASSAGES, 16, "passages/s")]
SERVICE = "openvino and PostgreSQL"
STAGES = ("the vector of a question", "the SQL statement", "the answer, 3 passages")
RERANKING = f"reranking {CANDIDATES} passages"  # which is switched off by default, and not in the whole
WHOLE = "from the question to the answer"


def texts() -> tuple[str, list[str]]:
    """A question, and 16 passages of about 180 tokens."""
    words = " ".join(document.text for document in data.descriptions()).split()
    return "How do I solve a system of equations?", [" ".join(words[90 * i : 90 * (i + 1)]) for i in range(16)]


def workloads(embed: Callable[[Sequence[str]], object]) -> dict[str, Callable]:
    question, passages = texts()
    return {QUESTION: lambda: embed([question]), PASSAGES: lambda: embed(passages)}


def start_openvino(folder: Path) -> dict[str, Callable]:
    embedder = Embedder(folder)
    question, passages = texts()
    return {QUESTION: lambda: embedder.question(question), PASSAGES: lambda: embedder.documents(passages)}


def start_torch(checkpoint: Path, precision: str) -> dict[str, Callable]:
    return workloads(retrieval.mean_vectors(retrieval.torch_tokens(checkpoint, LONGEST, TORCH_TYPES[precision])))


def start_onnx(checkpoint: Path, folder: Path) -> dict[str, Callable]:
    import onnxruntime
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    names = {port.name for port in session.get_inputs()}

    def embed(own: Sequence[str]) -> np.ndarray:
        inputs = tokenizer(list(own), padding=True, truncation=True, max_length=LONGEST, return_tensors="np")
        (tokens,) = session.run(["tokens"], {name: inputs[name] for name in names})  # [texts, tokens, dimensions]
        mask = inputs["attention_mask"][..., None]
        means = (tokens * mask).sum(1) / mask.sum(1)
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    return workloads(embed)


def to_onnx(checkpoint: Path, folder: Path) -> None:
    """Write the embedding model as ONNX: token vectors of token ids and a mask, with dynamic sizes."""
    import torch
    from transformers import AutoModel

    class Tokens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = AutoModel.from_pretrained(checkpoint, attn_implementation="eager").eval()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            # [texts, 1, 1, n], since the tracer cannot follow how transformers makes it
            hidden = (1.0 - attention_mask[:, None, None].float()) * torch.finfo(torch.float32).min
            return self.network(input_ids=input_ids, attention_mask=hidden).last_hidden_state

    example = (torch.ones(2, 7, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64))
    names = ["input_ids", "attention_mask"]
    axes = {name: {0: "texts", 1: "n"} for name in [*names, "tokens"]}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(Tokens(), example, folder / "model.onnx", input_names=names, output_names=["tokens"],
                          dynamic_axes=axes, dynamo=False)  # fmt: skip


def settings(model: str = "tiny", precisions: Sequence[str] = ("FP32", "INT8")) -> list[bench.Setting]:
    """OpenVINO at each precision, PyTorch at those that are fast here, and ONNX Runtime in FP32."""
    checkpoint = convert.checkpoint_folder(model)
    onnx = cached_in_child(
        "minilm-onnx", to_onnx, checkpoint, checkpoint=checkpoint, versions=("torch", "transformers")
    )
    folders = {precision: convert.prepare_embedder(model, precision) for precision in precisions}
    fastest = bench.torch_precision()  # OpenVINO computes an FP32 model in BF16, too, where the processor can
    ours = [
        bench.Setting("openvino_genai", fastest if name == "FP32" else name, start_openvino, (folder,),
                      weights_mb(folder))
        for name, folder in folders.items()
    ]  # fmt: skip
    torch = [
        bench.Setting("torch eager", precision, start_torch, (checkpoint, precision))
        for precision in bench.torch_precisions()
    ]
    return [*ours, *torch, bench.Setting("onnxruntime", "FP32", start_onnx, (checkpoint, onnx))]


@bench.live
def speed(model: str = "tiny", rounds: int = 5) -> list[dict]:
    """Speed rows of embedding a question and 16 passages."""
    return bench.compare(settings(model), WORKLOADS, rounds)


# --- The whole service --------------------------------------------------------------------------------------------


def stages(retriever: Retriever, answerer: Answerer, asked: Sequence[str], rounds: int = 20) -> list[dict]:
    """Speed rows of a question on its way: its vector, the SQL statement, the answer, all of it, and reranking."""
    found = {own: retriever.search(own, answers.TOP, rerank=False) for own in asked}
    vectors = {own: retriever.embedder.question(own) for own in asked}
    candidates = {own: retriever.store.search(own, vectors[own], CANDIDATES) for own in asked}

    def each(function: Callable[[str], object]) -> Callable[[], object]:
        """Calls a function with the next question each time; all stages get the same ones."""
        questions = itertools.cycle(asked)
        return lambda: function(next(questions))

    def answer(question: str, passages: Sequence[Passage]) -> None:
        answerer.ask(question, passages, max_new_tokens=answers.TOKENS)

    calls = {
        STAGES[0]: each(retriever.embedder.question),
        STAGES[1]: each(lambda own: retriever.store.search(own, vectors[own], answers.TOP)),
        STAGES[2]: each(lambda own: answer(own, found[own])),
        WHOLE: each(lambda own: answer(own, retriever.search(own, answers.TOP, rerank=False))),
        RERANKING: each(lambda own: retriever.rerank(own, candidates[own])),
    }
    timings = bench.interleave(calls, rounds)
    return [bench.row(SERVICE, "INT8", name, timing) for name, timing in timings.items()]


def load(
    retriever: Retriever, answerer: Answerer, asked: Sequence[str], clients: int, count: int, rerank: bool = False
) -> dict:
    """The speed row of `count` searches over HTTP by so many clients at once; the 99th percentile is in its label."""
    app = create_app(retriever, answerer, limits=Limits(waiting=count))
    with _served(app) as url, httpx.Client(trust_env=False, timeout=60) as client, ThreadPoolExecutor(clients) as pool:

        def ask(number: int) -> float:
            begin = perf_counter()
            query = {"question": asked[number % len(asked)], "k": 3, "rerank": rerank}
            client.post(f"{url}/search", json=query).raise_for_status()
            return (perf_counter() - begin) * 1e3

        list(pool.map(ask, range(clients)))  # connections
        begin = perf_counter()
        timing = bench.Timing.of(pool.map(ask, range(count)))
        seconds = perf_counter() - begin
    workload = f"/search{' and reranking' if rerank else ''}, {clients} clients"
    row = bench.row(SERVICE, "INT8", workload, timing, unit="searches/s")
    row |= {"throughput": count / seconds, "measure": "throughput"}
    return row | {"label": f"p99 {np.percentile(timing.samples, 99):.0f} ms"}


@contextmanager
def _served(app) -> Iterator[str]:
    """The address of an application that a thread serves."""
    listener = process.listen(process.LOOPBACK, 0)
    settings = {"log_config": None, "access_log": False, "lifespan": "off"}
    server = uvicorn.Server(uvicorn.Config(app, **settings))
    listener.listen(2048)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield process.address(listener)
    finally:
        server.should_exit = True
        thread.join(10)


def main() -> None:
    """Measure everything into results/bench/rag_serving.json."""
    folder = database_folder("bench")
    with bench.exclusive() as busy:
        rows = bench.compare(settings(precisions=("FP32", "INT8", "INT4")), WORKLOADS, rounds=9)
        embedder_folder, llm = convert.prepare()
        embedder, answerer = Embedder(embedder_folder), Answerer(llm)
        documents = [*data.sample(*data.numpy_corpus(), 400)[0], *data.descriptions()]
        url, reranker = embedded(folder, f"bench_{os.getpid()}"), open_reranker(convert.prepare_reranker())
        begin = perf_counter()
        retriever = retrieval.fill(url, embedder, documents, reranker=reranker)
        seconds, passages = perf_counter() - begin, retriever.store.counts()["chunk"]
        notes = {f"passages ingested in a second ({len(documents)} documents)": round(passages / seconds, 1)}
        asked = [own.question for own in data.answer_questions()]
        own = stages(retriever, answerer, asked)
        rows += own
        notes |= bench.stage_shares(own, WHOLE, dict.fromkeys(STAGES, 1), "an answer")
        rows += [load(retriever, answerer, asked, clients, 400) for clients in (1, 4, 16, 64)]
        rows += [load(retriever, answerer, asked, clients, 100, rerank=True) for clients in (1, 4, 16)]
        retriever.store.close()
        stop(folder)
    report.save_bench("rag_serving", rows, notes | busy)
    bench.explain(own, WHOLE, dict.fromkeys(STAGES, 1))
