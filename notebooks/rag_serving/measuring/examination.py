"""The examination that takes too long for a notebook: all of numpy and scipy, all questions, every precision.

`python -m notebooks.rag_serving.measuring` runs it. It keeps its vectors in the folder of models, so that a run that
was stopped goes on. The notebook shows what is stored in results/examination/rag_serving.json.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from notebooks.rag_serving import convert, data
from notebooks.rag_serving.data import Find
from notebooks.rag_serving.measuring import answers, retrieval
from notebooks.rag_serving.measuring.retrieval import METRICS, Found, Kept, KeptTokens, Rerank, TorchEmbedder
from notebooks.rag_serving.pipeline import (
    Answerer,
    CrossEncoder,
    Embedder,
    LateInteraction,
    Passage,
    Retriever,
    TokenVectors,
    open_reranker,
)
from notebooks.rag_serving.pipeline.database import embedded, stop
from notebooks.rag_serving.server import database_folder
from utils import compare, paths, report
from utils.models import llm
from utils.tables import Table, number

CASE = "rag_serving"
VARIANTS = {  # of cutting, compared on the questions for choosing
    "100 tokens with the name of the source": {},
    "100 tokens without it": {"with_source": False},
    "200 tokens with the name of the source": {"tokens": 200, "overlap": 40},
}
CANDIDATES = (10, 20, 50)  # passages that are reranked, compared on the same questions
FP32 = {"INFERENCE_PRECISION_HINT": "f32"}


def run(folder: Path) -> list[dict]:
    """All quality rows; folder: where vectors are kept."""
    url_of = partial(embedded, database_folder("examination"))
    documents, questions = data.numpy_corpus()
    choosing, reporting = data.halves(questions)
    kept = partial(_kept, folder)
    folders = {name: convert.prepare_embedder("tiny", name) for name in ("FP32", "INT4", "INT8")}
    hints = {name: FP32 if name == "FP32" else {} for name in folders}
    embedders = {name: kept(name, Embedder(own, **hints[name])) for name, own in folders.items()}
    token_vectors = {name: TokenVectors(own, **hints[name]) for name, own in folders.items()}
    torch = TorchEmbedder(convert.checkpoint_folder(), embedders["FP32"])
    token_vectors["PyTorch"] = torch.token_vectors
    cls = kept("cls", Embedder(folders["INT8"], pooling="CLS"))
    token_weights = token_vectors["INT8"].weights
    reranker = LateInteraction(KeptTokens(token_vectors["INT8"]), token_weights)
    rows = _variants(url_of, embedders["INT8"], reranker, documents, choosing)
    reference = kept("torch", torch)
    found = retrieval.examine(url_of, embedders, reference, cls, token_vectors, token_weights, documents, reporting)
    rows += found.quality(" on numpy")
    rows += _searches(found.by_precision["INT8"], f"{len(reporting)} questions on numpy")
    retriever = retrieval.fill(url_of("examined_int8"), embedders["INT8"], documents, reranker=reranker)
    rows += _asked(retriever, questions, f"{len(questions)} questions on numpy")
    retriever.store.close()
    retriever = retrieval.fill(url_of("everything"), embedders["INT8"], _everything(), reranker=reranker)
    passages = retriever.store.counts()["chunk"]
    rows += _asked(retriever, questions, f"{len(questions)} questions, {passages:,} passages")
    rows += _asked(retriever, data.people_questions(), f"questions in people's words, {passages:,} passages")
    retriever.store.close()
    stop(database_folder("examination"))
    return rows


def run_answers() -> list[dict]:
    """The quality rows of the answers, from the passages of all documents."""
    embedder = Embedder(convert.prepare_embedder("tiny", "INT8"))
    reranker = open_reranker(convert.prepare_reranker("tiny", "INT8"))
    url = embedded(database_folder("examination"), "everything")
    retriever = retrieval.fill(url, embedder, _everything(), reranker=reranker)
    rows = _answers(retriever)
    retriever.store.close()
    stop(database_folder("examination"))
    return rows


def run_ranking() -> list[dict]:
    """Rows without a threshold: both rerankers on numpy's questions, the cross-encoder at INT8 and INT4."""
    documents, questions = data.numpy_corpus()
    folder = convert.prepare_embedder("tiny", "INT8")
    url = embedded(database_folder("examination"), "ranked")
    retriever, tokens = retrieval.fill(url, Embedder(folder), documents), TokenVectors(folder)
    rerankers = {("token vectors", "INT8"): LateInteraction(KeptTokens(tokens), tokens.weights)}
    for precision in ("INT8", "INT4"):
        rerankers["the cross-encoder", precision] = CrossEncoder(convert.prepare_ranking(precision))
    rows = []
    for about, asked in zip(("other questions", "questions on numpy"), data.halves(questions), strict=True):
        vectors = retrieval.question_vectors(retriever.embedder, asked)
        for (name, precision), retriever.reranker in rerankers.items():
            rerank = _once(retriever.rerank)
            for once, per_document in (("", None), (f", {retrieval.ONE}", 1)):
                found = retrieval.find(retriever.store, asked, vectors, rerank=rerank, per_document=per_document)
                for metric, value in found.values().items():
                    text = f"{metric} of {len(asked)} {about}, reranked by {name}{once}"
                    rows.append(compare.quality(text, precision, value, None, None, "higher"))
                print(f"{len(asked)} {about}, {name}{once}, {precision}: {found.row()}", flush=True)
    retriever.store.close()
    stop(database_folder("examination"))
    return rows


def _everything() -> list[data.Document]:
    return [*data.numpy_corpus()[0], *data.scipy_documents(), *data.descriptions()]


def _once(rerank: Rerank) -> Rerank:
    """The same for a question that comes again with the same passages."""
    known: dict[str, Sequence[Passage]] = {}

    def ordered(question: str, passages: Sequence[Passage]) -> Sequence[Passage]:
        if question not in known:
            known[question] = rerank(question, passages)
        return known[question]

    return ordered


def _kept(folder: Path, name: str, embedder) -> Kept:
    digest = hashlib.sha256(embedder.identity.encode()).hexdigest()[:12]
    return Kept(embedder, folder / f"{name.lower()}-{digest}.npz")


def _variants(url_of, embedder, reranker: LateInteraction, documents, questions) -> list[dict]:
    """Each way of cutting, and of reranking with the first of them, on the questions for choosing."""
    rows, vectors = [], retrieval.question_vectors(embedder, questions)
    about = f"{len(questions)} other questions"
    for place, (name, options) in enumerate(VARIANTS.items()):
        retriever = retrieval.fill(url_of(f"variant_{place}"), embedder, documents, reranker=reranker, **options)
        found = retrieval.find(retriever.store, questions, vectors)
        rows.append(_reported(f"recall@10 of {about}, {name}", found.recall(10)))
        if not options:
            rows += _asked(retriever, questions, about)
        for count in CANDIDATES if not options else ():
            found = retrieval.find(retriever.store, questions, vectors, rerank=retriever.rerank, candidates=count)
            for metric, value in (("recall@5", found.recall(5)), ("MRR", found.mrr)):
                rows.append(_reported(f"{metric} of {about}, {count} passages reranked", value))
        retriever.store.close()
    return rows


def _asked(retriever: Retriever, questions: Sequence[Find], about: str) -> list[dict]:
    vectors = retrieval.question_vectors(retriever.embedder, questions)
    return _searches(retrieval.methods(retriever, questions, vectors), about)


def _reported(metric: str, value: float) -> dict:
    return compare.quality(metric, "INT8", value, None, None, "higher")


def _searches(found: dict[str, Found], about: str) -> list[dict]:
    """Rows without a threshold: each kind of search."""
    rows = []
    for mode, own in found.items():
        for metric, value in own.values().items():
            rows.append(_reported(f"{metric}, {about}, {retrieval.SEARCHES[mode]}", value))
    return rows


def _answers(retriever: Retriever) -> list[dict]:
    """All questions with short answers, at every precision of the language model, with and without its adapter."""
    asked = data.answer_questions()
    given = answers.contexts(retriever, asked)
    passages = given.pop(f"top {answers.TOP} passages")
    right, controls = {}, {}
    for precision in ("FP16", "INT4", "INT8"):
        answerer = Answerer(convert.prepare_llm("tiny", precision))
        reply = answers.by_openvino(answerer)
        right[precision] = answers.right(reply, asked, passages)
        if precision == "INT8":
            controls = {name: answers.right(reply, asked, own) for name, own in given.items()}
    reference = answers.right(answers.by_torch(convert.llm_checkpoint(), answerer), asked, passages)
    rows = answers.quality(right, reference, controls)
    reranked = [retriever.search(own.question, answers.TOP) for own in asked]
    own = answers.right(reply, asked, reranked)
    metric = f"right answers of {len(asked)}, {answers.TOP} passages, reranked"
    rows.append(compare.quality(metric, "INT8", sum(own) / len(own), None, None, "higher", of=len(own)))
    plain = answers.by_openvino(Answerer(llm.ir_folder("smollm2", convert.plain_llm(), "INT8")))
    own = answers.right(plain, asked, passages)
    metric = f"right answers of {len(asked)}, {answers.TOP} passages, without the reading adapter"
    rows.append(compare.quality(metric, "INT8", sum(own) / len(own), None, None, "higher", of=len(own)))
    for words in ("text", "people"):
        own = [is_right for is_right, one in zip(right["INT8"], asked, strict=True) if one.words == words]
        metric = f"right answers of {len(own)}, in the words of {'the text' if words == 'text' else 'people'}"
        rows.append(compare.quality(metric, "INT8", sum(own) / len(own), None, None, "higher", of=len(own)))
    found = [any(one.source == own.source for own in given) for one, given in zip(asked, passages, strict=True)]
    metric = f"questions of {len(asked)} whose document is among {answers.TOP} passages"
    return [*rows, compare.quality(metric, "INT8", sum(found) / len(found), None, None, "higher", of=len(found))]


def table() -> Table:
    """What the searches of the last examination found, as a folded table with a line for each kind of search and set of
    questions; a line that says how to run it where there was none."""
    if not (report.EXAMINATIONS / f"{CASE}.json").is_file():
        return Table(["not examined yet"], [[f"`make bench CASE={CASE}` does it, in about an hour and a half."]])
    stored = report.examination(CASE)
    values = {row["metric"]: row["value"] for row in stored["quality"] if row["precision"] == "INT8"}
    first = METRICS[0]
    searches = [metric.removeprefix(f"{first}, ") for metric in values if metric.startswith(f"{first}, ")]
    lines = [[own, *(number(values[f"{metric}, {own}"]) for metric in METRICS)] for own in searches]
    where = stored["cpu"].partition(" (")[0]
    title = f"Measured on {stored['date']} by `make bench` ({where}), INT8: {len(lines)} searches"
    return Table(["questions and search", *METRICS], lines, folded=title)


def main() -> None:
    """Run the examination and store it. Raises AssertionError, after storing, when a row fails."""
    report.save_examination(CASE, "tiny", run(paths.models_dir() / f"{CASE}-examination"))


def main_answers() -> None:
    """The same of the answers."""
    report.save_examination(CASE, "tiny", run_answers(), part="answers")


def main_ranking() -> None:
    """The same of the rerankers."""
    report.save_examination(CASE, "tiny", run_ranking(), part="ranking")
