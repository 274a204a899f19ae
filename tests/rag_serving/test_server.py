"""The service over HTTP, with a real database and fake models."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from notebooks.rag_serving.pipeline import LateInteraction, Retriever, database
from notebooks.rag_serving.server import create_app, serve
from tests.rag_serving.fakes import Answerer, Embedder, token_vectors, token_weights
from tests.utils.serving.fakes import http, served, wait_for
from utils.serving.guard import Limits

WINE = {"source": "wine", "text": "The grapes of this wine grow in Italy."}


@pytest.fixture
def answerer() -> Answerer:
    return Answerer()


@pytest.fixture
def address(retriever, answerer):
    with served(create_app(retriever, answerer, limits=Limits(waiting=2, body=4_000_000))) as (url, _):
        yield url


def events(reply: httpx.Response) -> list[tuple[str, object]]:
    """The server-sent events of a reply."""
    blocks = [block.split("\n", 1) for block in reply.text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def post(address: str, path: str, **body) -> httpx.Response:
    return http.post(address + path, json=body)


def test_documents_come_and_go(address):
    assert post(address, "/ingest", **WINE).json() == {"status": "new"}
    assert post(address, "/ingest", **WINE).json() == {"status": "unchanged"}
    assert http.get(address + "/documents").json() == {"sources": ["wine"]}
    assert http.get(address + "/health").json() == {"status": "ok", "document": 1, "chunk": 1, "posting": 4}
    assert http.delete(address + "/documents", params={"source": "wine"}).json() == {"status": "deleted"}
    again = http.delete(address + "/documents", params={"source": "wine"})
    assert again.status_code == 404 and "There is no document 'wine'" in again.json()["error"]
    assert post(address, "/search", question="wine").json() == {"passages": []}


def test_a_search_shows_the_scores_of_each_stage(address):
    post(address, "/ingest", **WINE)
    (found,) = post(address, "/search", question="grapes of Italy", k=3).json()["passages"]
    assert (found["source"], found["text"], found["dense_rank"], found["words_rank"]) == ("wine", WINE["text"], 1, 1)
    assert found["score"] == pytest.approx(2 / 61) and found["similarity"] > 0 and found["bm25"] > 0
    (dense,) = post(address, "/search", question="grapes of Italy", k=3, mode="dense").json()["passages"]
    assert dense["bm25"] is None and dense["words_rank"] is None


def test_a_document_can_be_limited_to_one_passage(retriever, answerer):
    retriever.ingest("cellar", "Wine lies here. " * 40)
    retriever.ingest("ship", "Wine is on the ship.")
    with served(create_app(retriever, answerer)) as (url, _):
        sources = {}
        for most in (None, 1):
            found = post(url, "/search", question="wine lies here", k=3, per_document=most).json()["passages"]
            sources[most] = [own["source"] for own in found]
        assert sources == {None: ["cellar"] * 3, 1: ["cellar", "ship"]}


def test_reranking_can_be_switched_on(store, answerer):
    reranked = Retriever(store, Embedder(), reranker=LateInteraction(token_vectors, token_weights))
    with served(create_app(reranked, answerer)) as (url, _):
        post(url, "/ingest", **WINE)
        (found,) = post(url, "/search", question="grapes of Spain", rerank=True).json()["passages"]
        assert 0.5 < found["rerank_score"] < 1.5 and found["score"] == pytest.approx(2 / 61)
        for path in ("/search", "/answer"):
            reply = post(url, path, question="grapes of Italy")
            assert '"rerank_score": null' in reply.text or '"rerank_score":null' in reply.text
            assert "null" not in post(url, path, question="grapes of Italy", rerank=True).text


def test_an_answer_streams_after_its_passages(address):
    post(address, "/ingest", **WINE)
    reply = post(address, "/answer", question="Where do the grapes grow?")
    assert reply.headers["content-type"].startswith("text/event-stream")
    (first, passages), *pieces, (last, done) = events(reply)
    assert (first, last) == ("passages", "done") and [own["source"] for own in passages] == ["wine"]
    assert "".join(data["text"] for name, data in pieces).strip() == WINE["text"] == done["text"]
    assert done["support"] == [[[0, 1]]] and done["finish_reason"] == "stop"


def test_without_retrieval_there_are_no_passages(address):
    post(address, "/ingest", **WINE)
    reply = events(post(address, "/answer", question="Where do the grapes grow?", k=0))
    assert reply[0] == ("passages", []) and reply[-1][1]["text"] == "nothing"


def test_a_document_answers_at_once_and_a_deleted_one_never_again(address):
    post(address, "/ingest", source="flat", text="The flat has number 4711.")
    assert "4711" in events(post(address, "/answer", question="Which number has the flat?"))[-1][1]["text"]
    http.delete(address + "/documents", params={"source": "flat"})
    assert "4711" not in post(address, "/answer", question="Which number has the flat?").text


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/ingest", {"source": "a"}, 400, "text: Field required"),
        ("/ingest", {"source": "a", "text": ""}, 400, "a is empty"),
        ("/ingest", {"source": "a", "text": "\x00"}, 400, "a has a NUL"),
        ("/ingest", {"source": "a", "text": "x" * 2_000_001}, 400, "2,000,001 characters"),
        ("/ingest", {"source": "a", "text": "x" * 4_000_000}, 413, "larger than"),
        ("/search", {"question": ""}, 400, "The question is empty"),
        ("/search", {"question": "a", "k": 0}, 400, "k: Input should be greater"),
        ("/search", {"question": "a", "mode": "fast"}, 400, "mode: "),
        ("/answer", {"question": " "}, 400, "The question is empty"),
        ("/answer", {"question": " ", "k": 0}, 400, "The question is empty"),
        ("/answer", {"question": "a", "k": 9}, 400, "k: Input should be less"),
        ("/answer", ["question"], 400, "valid dictionary"),
        ("/nothing", {}, 404, "Not Found"),
    ],
)
def test_bad_requests_are_messages(address, path, body, status, message):
    reply = http.post(address + path, json=body)
    assert reply.status_code == status and message in reply.json()["error"]


def test_only_this_machine_is_answered(address):
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        reply = http.post(address + "/search", json={"question": "a"}, headers=headers)
        assert reply.status_code == 403


def test_no_other_address_is_served(retriever):
    with pytest.raises(ValueError, match="0.0.0.0 can be reached by others.*serve on 127.0.0.1"):
        serve(retriever, "nowhere", host="0.0.0.0")


def test_a_full_queue_sends_away_and_nobody_else_waits_in_vain(address, answerer):
    post(address, "/ingest", **WINE)
    answerer.go.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(post, address, "/answer", question="grapes") for _ in range(8)]
        assert wait_for(lambda: sum(reply.done() for reply in asked) == 5, 60)
        refused = [reply.result() for reply in asked if reply.done()]
        assert wait_for(lambda: answerer.prompted == 3, 60)
        wait_for(lambda: answerer.busy > 1, 1)  # time for a second answer to begin, which it must not
        answerer.go.set()
        answered = [reply.result() for reply in asked if reply.result() not in refused]
    assert {reply.status_code for reply in refused} == {503}
    assert all(
        reply.headers["Retry-After"] == "1" and "Too many requests" in reply.json()["error"] for reply in refused
    )
    assert len(answered) == 3 and all(events(reply)[-1][0] == "done" for reply in answered)
    assert answerer.most_at_once == 1


def test_a_client_that_leaves_frees_the_model(address, answerer):
    post(address, "/ingest", **WINE)
    answerer.go.clear()
    with http.stream("POST", address + "/answer", json={"question": "grapes"}) as reply:
        lines = reply.iter_lines()  # closing it would close the connection
        next(lines)
        assert wait_for(lambda: answerer.busy == 1, 60)
    assert wait_for(lambda: answerer.cancelled == 1 and answerer.busy == 0, 60)
    answerer.go.set()
    assert events(post(address, "/answer", question="grapes"))[-1][0] == "done"


def test_a_database_that_is_down_is_503_until_it_is_back(address, cluster):
    post(address, "/ingest", **WINE)
    database.stop(cluster)
    try:
        for reply in (
            post(address, "/search", question="grapes"),
            post(address, "/answer", question="grapes"),
            post(address, "/ingest", source="b", text="text"),
            http.get(address + "/health"),
        ):
            assert reply.status_code == 503 and reply.headers["Retry-After"] == "1"
            assert "The database is not available" in reply.json()["error"]
        assert events(post(address, "/answer", question="grapes", k=0))[-1][0] == "done"
    finally:
        database.embedded(cluster)
    assert post(address, "/search", question="grapes").json()["passages"][0]["source"] == "wine"
    assert http.get(address + "/health").json()["document"] == 1


def test_an_error_of_the_model_ends_the_stream_with_a_message(address, answerer):
    def fail(*_):
        raise RuntimeError("out of memory")

    answerer.ask = fail
    reply = events(post(address, "/answer", question="grapes", k=0))
    assert reply[-1] == ("error", {"error": "The answer ended early: out of memory"})


def test_the_description_needs_no_other_server(address):
    schema = http.get(address + "/openapi.json").json()
    assert {"/ingest", "/search", "/answer", "/documents", "/health"} <= set(schema["paths"])
    page = http.get(address + "/docs").text
    assert "POST /answer" in page and "<script" not in page and "http" not in page.lower().replace("http-equiv", "")


def test_many_clients_at_once_find_what_they_ask_for(retriever, answerer):
    with served(create_app(retriever, answerer)) as (url, _):
        for number in range(4):
            post(url, "/ingest", source=f"d{number}", text=f"The flat {number} has the word unique{number}.")
        start = threading.Barrier(8)

        def ask(number: int) -> str:
            start.wait()
            return post(url, "/search", question=f"unique{number % 4}", k=1).json()["passages"][0]["source"]

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, range(8))) == [f"d{number % 4}" for number in range(8)]
