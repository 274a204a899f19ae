"""How well passages are found: recall and mean reciprocal rank, with negative controls, and parity with PyTorch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import psycopg

from notebooks.rag_serving.data import Document, Find
from notebooks.rag_serving.pipeline import (
    Embedder,
    LateInteraction,
    OtherEmbedder,
    Passage,
    Retriever,
    Store,
    TokenVectors,
)
from notebooks.rag_serving.pipeline.reranker import CANDIDATES
from notebooks.rag_serving.pipeline.retriever import at_most
from notebooks.rag_serving.pipeline.store import FOUND, MODES
from utils import compare
from utils.files import replaced
from utils.models import llm

DEPTH = 10  # passages that are looked at
SAVED_EVERY = 512  # passages, so that a run that was stopped goes on
LOSS = 0.95  # of PyTorch's value that a metric must reach
ANOTHER = "passages of another question"  # a negative control
GOALS = {"recall@10": 0.85, "recall@5": 0.78}
SHUFFLED = "candidates in random order"  # another one
ONE = "one passage a document"
SEARCHES = {  # what a reader calls them
    "reranked documents": f"vectors and words, reranked, {ONE}",
    "documents": f"vectors and words, {ONE}",
    "reranked": "vectors and words, reranked",
    "hybrid": "vectors and words",
    "dense": "vectors only",
    "words": "words only",
}
METRICS = ("recall@1", "recall@5", "recall@10", "MRR")  # of each search
Tokens = Callable[[Sequence[str]], Sequence[np.ndarray]]  # from texts to the vectors [tokens, dimensions] of each
Rerank = Callable[[str, Sequence[Passage]], Sequence[Passage]]  # from a question and passages to their new order


def torch_tokens(checkpoint: Path, max_tokens: int, dtype: str = "float32") -> Callable[[Sequence[str]], tuple]:
    """A function from texts to their token vectors [texts, tokens, dimensions] by transformers, and the mask
    [texts, tokens] of those that are no padding; both are tensors. dtype: torch's name of the type it computes in."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    network = AutoModel.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).eval()

    def read(texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        options = {"padding": True, "truncation": True, "max_length": max_tokens, "return_tensors": "pt"}
        inputs = tokenizer(list(texts), **options)
        with torch.inference_mode():
            return network(**inputs).last_hidden_state.float(), inputs["attention_mask"]

    return read


def mean_vectors(read: Callable[[Sequence[str]], tuple]) -> Callable[[Sequence[str]], np.ndarray]:
    """A function from texts to their vectors [texts, dimensions]: the mean of the token vectors, normalised.

    read: what `torch_tokens` returns.
    """
    import torch

    @torch.inference_mode()
    def embed(texts: Sequence[str]) -> np.ndarray:
        tokens, mask = read(texts)
        mask = mask[..., None]
        return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1)).cpu().numpy()

    return embed


class TorchEmbedder:
    """The same vectors by transformers, in FP32, for a `Retriever`."""

    def __init__(self, checkpoint: Path, like: Embedder) -> None:
        self.identity = f"PyTorch, {checkpoint.name}"
        self.dimensions, self.max_tokens, self.count_tokens = like.dimensions, like.max_tokens, like.count_tokens
        self._read = torch_tokens(checkpoint, like.max_tokens)
        self._embed = mean_vectors(self._read)

    def documents(self, texts: Sequence[str]) -> np.ndarray:
        return np.concatenate([self._embed(texts[begin : begin + 16]) for begin in range(0, len(texts), 16)])

    def question(self, text: str) -> np.ndarray:
        return self._embed([text])[0]

    def token_vectors(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As `pipeline.TokenVectors`, one text at a time."""
        read = (self._read([text])[0][0].numpy() for text in texts)
        return [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in read]


class Kept:
    """An embedder that keeps the vectors of passages in a file, so that an examination embeds each one once."""

    def __init__(self, embedder, file: Path) -> None:
        self._embedder, self._file = embedder, file
        self.identity, self.dimensions, self.max_tokens = embedder.identity, embedder.dimensions, embedder.max_tokens
        self.count_tokens, self.question = embedder.count_tokens, embedder.question
        self.seconds = 0.0  # spent on embedding in this run
        self.embedded = 0  # passages in this run
        self._vectors: dict[str, np.ndarray] = {}
        if file.is_file():
            with np.load(file) as kept:
                self._vectors = dict(zip(kept["keys"].tolist(), kept["vectors"], strict=True))

    def documents(self, texts: Sequence[str]) -> np.ndarray:
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._vectors}
        if new:
            begin = perf_counter()
            self._vectors |= dict(zip(new, self._embedder.documents(list(new.values())), strict=True))
            self.seconds += perf_counter() - begin
            before, self.embedded = self.embedded, self.embedded + len(new)
            if before // SAVED_EVERY < self.embedded // SAVED_EVERY:
                self.save()
        return np.stack([self._vectors[key] for key in keys])

    def save(self) -> None:
        with replaced(self._file) as partial, partial.open("wb") as file:
            np.savez(file, keys=np.array(list(self._vectors)), vectors=np.stack(list(self._vectors.values())))


class KeptTokens:
    """Token vectors that are kept in memory, since questions share candidates: FP16 halves them."""

    def __init__(self, token_vectors: Tokens) -> None:
        self._token_vectors = token_vectors
        self._kept: dict[str, np.ndarray] = {}

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray]:
        new = [text for text in dict.fromkeys(texts) if text not in self._kept]
        vectors = self._token_vectors(new) if new else []
        self._kept |= {text: own.astype(np.float16) for text, own in zip(new, vectors, strict=True)}
        return [self._kept[text].astype(np.float32) for text in texts]


@dataclass(frozen=True)
class Found:
    """The places (from 1) of the first right passage for each question; None where none of DEPTH passages is right."""

    ranks: tuple[int | None, ...]

    def recall(self, k: int) -> float:
        """The share of questions with a right passage among the first k."""
        return float(np.mean([rank is not None and rank <= k for rank in self.ranks]))

    @property
    def mrr(self) -> float:
        """The mean of 1 / rank; a question without a right passage counts as 0."""
        return float(np.mean([0.0 if rank is None else 1 / rank for rank in self.ranks]))

    def values(self) -> dict[str, float]:
        """By the names in METRICS."""
        return dict(zip(METRICS, (*map(self.recall, (1, 5, 10)), self.mrr), strict=True))

    def row(self) -> list[str]:
        return [f"{value:.3f}" for value in self.values().values()]


def rank(passages: Sequence[Passage], sources: Sequence[str]) -> int | None:
    """The place, from 1, of the first passage of one of the sources."""
    return next((place for place, passage in enumerate(passages, 1) if passage.source in sources), None)


def find(
    store: Store,
    questions: Sequence[Find],
    vectors: np.ndarray,
    mode: str = "hybrid",
    rerank: Rerank | None = None,
    candidates: int = CANDIDATES,
    per_document: int | None = None,
) -> Found:
    """The ranks of all questions; vectors: theirs, [questions, dimensions].

    rerank: orders the first candidates. per_document: as for `Retriever.search`.
    """
    ranks = []
    for own, vector in zip(questions, vectors, strict=True):
        passages = store.search(own.question, vector, FOUND, mode)
        if rerank:
            passages = [*rerank(own.question, passages[:candidates]), *passages[candidates:]]
        if per_document:
            passages = at_most(passages, per_document)
        ranks.append(rank(passages[:DEPTH], own.sources))
    return Found(tuple(ranks))


def question_vectors(embedder, questions: Sequence[Find]) -> np.ndarray:
    """[questions, dimensions]."""
    return np.stack([embedder.question(own.question) for own in questions])


def fill(url: str, embedder, documents: Sequence[Document], **options) -> Retriever:
    """A retriever with these documents, and no others, in the database at `url`; options: of `Retriever`.

    A database that another model filled is emptied.
    """
    store = Store(url, embedder.identity, embedder.dimensions)
    try:
        store.counts()
    except OtherEmbedder:
        with psycopg.connect(url) as connection:
            connection.execute("drop schema public cascade; create schema public")
    retriever = Retriever(store, embedder, **options)
    for document in documents:
        retriever.ingest(document.source, document.text)
    for source in set(retriever.store.sources()) - {document.source for document in documents}:
        retriever.delete(source)
    return retriever


def methods(retriever: Retriever, questions: Sequence[Find], vectors: np.ndarray) -> dict[str, Found]:
    """The reranked search, if there is a reranker, and each kind of search without it; vectors and words also with one
    passage of each document."""
    asked = partial(find, retriever.store, questions, vectors)
    found = {"documents": asked(per_document=1)} | {mode: asked(mode) for mode in MODES}
    if retriever.reranker:
        reranked = partial(asked, rerank=retriever.rerank)
        found |= {"reranked documents": reranked(per_document=1), "reranked": reranked()}
    return {mode: found[mode] for mode in SEARCHES if mode in found}


# --- Negative controls --------------------------------------------------------------------------------------------


def by_chance(store: Store, questions: Sequence[Find], dimensions: int, seed: int = 0) -> Found:
    """Random vectors in place of those of the questions, and no words."""
    drawn = np.random.default_rng(seed).standard_normal((len(questions), dimensions), np.float32)
    return find(store, questions, drawn / np.linalg.norm(drawn, axis=1, keepdims=True), "dense")


def of_another(store: Store, questions: Sequence[Find], vectors: np.ndarray, per_document: int | None = None) -> Found:
    """Each question is answered with the passages of the next one."""
    shifted = [replace(own, question=other.question) for own, other in zip(questions, _rolled(questions), strict=True)]
    return find(store, shifted, np.roll(vectors, -1, 0), per_document=per_document)


def _rolled(items: Sequence) -> list:
    return [*items[1:], *items[:1]]


def in_random_order(
    store: Store, questions: Sequence[Find], vectors: np.ndarray, per_document: int | None = None, seed: int = 0
) -> Found:
    """The candidates of the hybrid search in random order, in place of the reranker's."""
    rng = np.random.default_rng(seed)

    def rerank(question: str, passages: Sequence[Passage]) -> list[Passage]:
        return [passages[place] for place in rng.permutation(len(passages))]

    return find(store, questions, vectors, rerank=rerank, per_document=per_document)


def keeping_questions(retriever: Retriever, questions: Sequence[Find], vectors: np.ndarray) -> Found:
    """The published design: every question is stored as a passage. All are asked twice; these are the second ranks.

    The questions are removed at the end.
    """
    names = [f"question {number}" for number in range(len(questions))]
    writer = Retriever(retriever.store, retriever.embedder, with_source=False)
    try:
        for name, own in zip(names, questions, strict=True):
            writer.ingest(name, own.question)
        return find(retriever.store, questions, vectors, "dense")
    finally:
        for name in names:
            retriever.delete(name)


def parity(
    embedder: Embedder,
    token_vectors: TokenVectors,
    reference: TorchEmbedder,
    texts: Sequence[str],
    ir: Path,
    checkpoint: Path,
) -> list[dict]:
    """Vectors of texts and of their tokens, the reranker, and the language model's logits for one text, in FP32.

    embedder, token_vectors: at f32. ir, checkpoint: the FP16 IR folder and the transformers folder of the language
    model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    question = texts[0][:60]
    ours, theirs = (
        {
            "vectors of passages": own.documents(texts),
            "vector of a question": own.question(question),
            "token vectors of passages": np.concatenate(tokens(texts)),
            f"reranker, {len(texts)} passages": LateInteraction(tokens, token_vectors.weights).scores(question, texts),
        }
        for own, tokens in ((embedder, token_vectors), (reference, reference.token_vectors))
    )
    rows = [compare.parity(name, values, theirs[name], 1e-4) for name, values in ours.items()]
    ids = np.array([AutoTokenizer.from_pretrained(checkpoint)(texts[0][:300])["input_ids"]])
    ours = llm.Session(ir / llm.MODEL_XML, **llm.FP32_PROPERTIES).prefill(ids)
    network = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = network(torch.from_numpy(ids)).logits
    return [*rows, compare.parity(f"logits of the language model, {ids.shape[1]} tokens", ours, expected, 1e-2)]


# --- The examination ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Examination:
    """What was found. by_precision: kinds of search by precision; reference: the same with PyTorch's vectors;
    controls: of the hybrid search; shuffled: its candidates in random order; document_controls: with one passage of
    each document, ANOTHER and SHUFFLED; cls: vectors of the first token, by vectors only."""

    by_precision: Mapping[str, Mapping[str, Found]]
    reference: Mapping[str, Found]
    controls: Mapping[str, Found]
    shuffled: Found
    document_controls: Mapping[str, Found]
    cls: Found

    def shown(self, precision: str = "INT8") -> dict[str, Found]:
        """Kinds of search, and controls, by what a reader calls them."""
        own = {SEARCHES[mode]: found for mode, found in self.by_precision[precision].items()}
        return (
            own
            | {"control: random order": self.shuffled, "control: first token (CLS)": self.cls}
            | {f"control: {name}": found for name, found in self.controls.items()}
        )

    def quality(self, about: str = "") -> list[dict]:
        """Quality rows; about: of the questions, for the names of the metrics.

        A control whose name says that questions are kept is judged by recall@1. A metric needs LOSS of PyTorch's value.
        """
        count = f"{len(self.cls.ranks)} questions{about}"
        rows = []
        for k in (1, 5, 10):
            metric = f"recall@{k} of {count}"
            controls = {name: found.recall(k) for name, found in self.controls.items() if k == 1 or "kept" not in name}
            rows += self._rows(metric, "hybrid", lambda found, k=k: found.recall(k), controls, GOALS.get(f"recall@{k}"))
        rows += self._rows(
            f"recall@10 of {count}, vectors only",
            "dense",
            lambda found: found.recall(10),
            {"first token (CLS)": self.cls.recall(10)},
        )
        for k in (1, 5, 10):
            metric = f"recall@{k} of {count}, reranked"
            controls = {SHUFFLED: self.shuffled.recall(k)}
            if k == 10:  # among ten of 20 candidates there is often a right one in any order
                controls[ANOTHER] = self.controls[ANOTHER].recall(k)
            rows += self._rows(
                metric, "reranked", lambda found, k=k: found.recall(k), controls, GOALS.get(f"recall@{k}")
            )
        metric, controls = f"MRR of {count}, reranked", {SHUFFLED: self.shuffled.mrr}
        rows += self._rows(metric, "reranked", lambda found: found.mrr, controls)
        for mode, how in (("documents", ONE), ("reranked documents", f"reranked, {ONE}")):
            for k in (5, 10):
                controls = {name: found.recall(k) for name, found in self.document_controls.items()}
                if mode == "documents" or k == 10:  # 20 candidates have about ten documents, which any order finds
                    del controls[SHUFFLED]
                metric, goal = f"recall@{k} of {count}, {how}", GOALS[f"recall@{k}"]
                rows += self._rows(metric, mode, lambda found, k=k: found.recall(k), controls, goal)
        return rows

    def _rows(
        self,
        metric: str,
        mode: str,
        value: Callable[[Found], float],
        controls: Mapping[str, float],
        goal: float | None = None,
    ) -> list[dict]:
        """The rows of a metric of one kind of search: every precision, then the controls."""
        expected = value(self.reference[mode])
        limits = (LOSS * expected, "higher")
        rows = [
            compare.quality(metric, precision, value(own[mode]), expected, *limits, goal=goal)
            for precision, own in self.by_precision.items()
        ]
        return rows + [compare.control(metric, name, found, *limits) for name, found in controls.items()]


def examine(
    url_of: Callable[[str], str],
    embedders: Mapping[str, Embedder],
    reference,
    cls,
    token_vectors: Mapping[str, Tokens],
    token_weights: Callable[[str], np.ndarray],
    documents: Sequence[Document],
    questions: Sequence[Find],
) -> Examination:
    """Fill a database for each embedder, and ask all questions.

    url_of: the address of an empty database for a name; one is emptied if it holds something else. embedders: by
    precision; the controls use the last one. reference: with PyTorch's vectors; cls: with those of the first token.
    token_vectors: for reranking, by precision and of "PyTorch"; they are kept in memory while one embedder is examined.
    token_weights: see `LateInteraction`.
    """
    found, controls, mixed, of_documents = {}, {}, None, {}
    for name, embedder in {**embedders, "PyTorch": reference, "CLS": cls}.items():
        reranker = None
        if name in token_vectors:
            reranker = LateInteraction(KeptTokens(token_vectors[name]), token_weights)
        retriever = fill(url_of(f"examined_{name.lower()}"), embedder, documents, reranker=reranker)
        vectors = question_vectors(embedder, questions)
        found[name] = methods(retriever, questions, vectors)
        if name == list(embedders)[-1]:
            controls = {
                "random vectors": by_chance(retriever.store, questions, embedder.dimensions),
                ANOTHER: of_another(retriever.store, questions, vectors),
                "questions are kept": keeping_questions(retriever, questions, vectors),
            }
            mixed = in_random_order(retriever.store, questions, vectors)
            of_documents = {
                ANOTHER: of_another(retriever.store, questions, vectors, per_document=1),
                SHUFFLED: in_random_order(retriever.store, questions, vectors, per_document=1),
            }
        retriever.store.close()
    by_precision = {name: found[name] for name in embedders}
    return Examination(by_precision, found["PyTorch"], controls, mixed, of_documents, found["CLS"]["dense"])
