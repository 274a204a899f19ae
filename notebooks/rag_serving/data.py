"""Documents and questions: the documentation of the installed numpy, scipy and scikit-learn.

The versions are pinned, so the texts are the same everywhere; none is copied into this repository. Known-item
retrieval asks for a document by the first sentence of its documentation, which is removed from the document. Questions
in people's words, and questions with short answers, were written by hand (questions.toml).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

QUESTIONS = Path(__file__).with_name("questions.toml")
NUMPY = (
    "numpy", "numpy.linalg", "numpy.fft", "numpy.random", "numpy.strings", "numpy.char", "numpy.ma",
    "numpy.polynomial", "numpy.polynomial.polynomial", "numpy.polynomial.polyutils", "numpy.lib", "numpy.lib.format",
    "numpy.lib.scimath", "numpy.lib.stride_tricks", "numpy.rec", "numpy.testing", "numpy.exceptions", "numpy.ctypeslib",
)  # fmt: skip
SCIPY = (
    "scipy.cluster.hierarchy", "scipy.cluster.vq", "scipy.constants", "scipy.differentiate", "scipy.fft",
    "scipy.integrate", "scipy.interpolate", "scipy.io", "scipy.linalg", "scipy.ndimage", "scipy.optimize",
    "scipy.signal", "scipy.signal.windows", "scipy.sparse", "scipy.sparse.csgraph", "scipy.sparse.linalg",
    "scipy.spatial", "scipy.spatial.distance", "scipy.spatial.transform", "scipy.special", "scipy.stats",
    "scipy.stats.mstats", "scipy.stats.qmc",
)  # fmt: skip
PRACTICE = SCIPY + (  # what a reranker learns from
    "sklearn.base", "sklearn.calibration", "sklearn.cluster", "sklearn.compose", "sklearn.covariance",
    "sklearn.datasets", "sklearn.decomposition", "sklearn.ensemble", "sklearn.feature_extraction.text",
    "sklearn.feature_selection", "sklearn.gaussian_process", "sklearn.inspection", "sklearn.linear_model",
    "sklearn.manifold", "sklearn.metrics", "sklearn.metrics.pairwise", "sklearn.mixture", "sklearn.naive_bayes",
    "sklearn.neighbors", "sklearn.neural_network", "sklearn.pipeline", "sklearn.preprocessing", "sklearn.svm",
    "sklearn.tree", "sklearn.utils", "skimage.color", "skimage.draw", "skimage.exposure", "skimage.feature",
    "skimage.filters", "skimage.graph", "skimage.measure", "skimage.metrics", "skimage.morphology",
    "skimage.restoration", "skimage.segmentation", "skimage.transform", "skimage.util", "torch", "torch.fft",
    "torch.linalg", "torch.nn", "torch.nn.functional", "torch.optim", "torch.special",
)  # fmt: skip
SIGNATURE = re.compile(r"\w[\w.]*\(.*\)( -> .*)?", re.DOTALL)
SHORTEST = 200  # characters of a document
SUMMARY_WORDS = range(4, 41)
NUMBER = re.compile(r"(?<=\d),(?=\d{3}\b)")  # the comma in 4,898,431
T = TypeVar("T")


@dataclass(frozen=True)
class Document:
    source: str
    text: str


@dataclass(frozen=True)
class Find:
    """A question, and the sources of which each answers it."""

    question: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Ask:
    """A question with a short answer, of which one spelling must occur; words: "text" or "people"."""

    question: str
    source: str
    answers: tuple[str, ...]
    words: str

    def is_right(self, answer: str) -> bool:
        """Whether an answer has one of the expected ones as whole words."""
        text = NUMBER.sub("", answer)
        return any(re.search(rf"(?<![\w.]){re.escape(one)}(?!\w|\.\d)", text, re.IGNORECASE) for one in self.answers)


def numpy_corpus() -> tuple[list[Document], list[Find]]:
    """The documentation of numpy's public objects without their summaries, and these summaries as questions.

    A summary that several objects share is answered by each of them.
    """
    return _corpus(NUMPY)


def practice_corpus() -> tuple[list[Document], list[Find]]:
    """The same of other packages: no examination asks these questions, so a reranker may learn from them."""
    return _corpus(PRACTICE)


def _corpus(modules: Sequence[str]) -> tuple[list[Document], list[Find]]:
    documents, asked = [], {}
    for source, text in _documentation(modules):
        summary, rest = without_summary(text)
        documents.append(Document(source, rest))
        if summary:
            asked.setdefault(summary, []).append(source)
    return documents, [Find(summary, tuple(sources)) for summary, sources in asked.items()]


def scipy_documents() -> list[Document]:
    """The documentation of scipy's public objects, whole. No question asks for it: it makes the search harder."""
    return [Document(source, text) for source, text in _documentation(SCIPY)]


def descriptions() -> list[Document]:
    """scikit-learn's descriptions of its data sets, as sklearn/NAME.rst."""
    folder = Path(importlib.util.find_spec("sklearn").origin).parent / "datasets" / "descr"
    files = sorted(folder.glob("*.rst"))
    return [Document(f"sklearn/{file.name}", file.read_text(encoding="utf-8")) for file in files]


def people_questions() -> list[Find]:
    """Questions on numpy in people's words."""
    return [Find(question, tuple(sources)) for question, *sources in _written("find")]


def answer_questions() -> list[Ask]:
    """Questions with short answers, on `descriptions`."""
    return [
        Ask(question, f"sklearn/{file}", tuple(answers), words) for question, file, answers, words in _written("answer")
    ]


def sample(documents: Sequence[Document], questions: Sequence[Find], count: int) -> tuple[list[Document], list[Find]]:
    """A part of a corpus that is always the same: `count` documents, and the questions that ask for them only."""
    chosen = sorted(documents, key=lambda document: _digest(document.source))[:count]
    sources = {document.source for document in chosen}
    return chosen, [question for question in questions if sources.issuperset(question.sources)]


def halves(items: Sequence[T]) -> tuple[list[T], list[T]]:
    """Questions for choosing settings, and those for reporting; a question's text decides where it goes."""
    first = [item for item in items if int(_digest(item.question), 16) % 2 == 0]
    return first, [item for item in items if item not in first]


def without_summary(text: str) -> tuple[str, str]:
    """The summary of a docstring, and the docstring without it.

    The summary is the first paragraph, or the second after a signature. It is "" where there is none that could be
    asked: a sentence of 4 to 40 words that is not said again, with enough text left.
    """
    paragraphs = re.split(r"\n\s*\n", text)
    place = 1 if len(paragraphs) > 1 and SIGNATURE.fullmatch(paragraphs[0].strip()) else 0
    summary = " ".join(paragraphs[place].split())
    rest = "\n\n".join(paragraphs[:place] + paragraphs[place + 1 :])
    is_question = len(summary.split()) in SUMMARY_WORDS and re.fullmatch(r"[A-Z`].*\.", summary)
    if not is_question or len(rest) < SHORTEST or summary in " ".join(rest.split()):
        return "", text
    return summary, rest


def _documentation(modules: Sequence[str]) -> list[tuple[str, str]]:
    """(name, docstring) of the public functions and classes of modules; objects and texts come once."""
    found, seen = [], set()
    for name in modules:
        module = importlib.import_module(name)
        for attribute in sorted(getattr(module, "__all__", None) or dir(module)):
            item = getattr(module, attribute, None)
            if attribute.startswith("_") or not callable(item) or getattr(item, "__name__", "") != attribute:
                continue
            text = inspect.getdoc(item) or ""
            if id(item) not in seen and len(text) >= SHORTEST and text not in seen:
                seen |= {id(item), text}
                found.append((f"{name}.{attribute}", text))
    return found


def _written(table: str) -> list[list]:
    return tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))[table]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
