"""The engine: tokens become text without broken characters, requests come and go, failures reach everybody."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from tests.utils.serving.fakes import Engine, Tokenizer, settings, wait_for
from utils import weights
from utils.models import llm
from utils.serving import engine

EMOJI = "Naïve — 日本語 👩‍🚀🏳️‍🌈!"


@pytest.fixture
def running():
    one = Engine(settings())
    one.start()
    assert one.loaded.wait(10) and one.problem is None
    yield one
    one.pipeline.hold.set()
    one.close()


def config(tokens: int = 300, **settings):
    return SimpleNamespace(max_new_tokens=tokens, **settings)


def start(one: Engine, text: str, tokens: int = 300) -> engine.Generation:
    return one.submit(one.encode(None, text), config(tokens))


async def read_all(generation: engine.Generation) -> list[engine.Piece]:
    pieces = [await generation.read()]
    while pieces[-1].finish_reason is None:
        pieces.append(await generation.read())
    return pieces


def test_characters_of_several_tokens_are_never_cut(running):
    async def ask():
        return await read_all(start(running, EMOJI))

    pieces = asyncio.run(ask())
    assert "".join(piece.text for piece in pieces) == EMOJI
    assert all("\ufffd" not in piece.text for piece in pieces)
    assert pieces[-1].finish_reason == "stop" and pieces[-1].tokens == len(EMOJI.encode()) + 1


def test_an_answer_cut_within_a_character_ends_with_one_replacement(running):
    async def ask():
        return await read_all(start(running, "ab日", tokens=4))

    pieces = asyncio.run(ask())
    assert "".join(piece.text for piece in pieces) == "ab\ufffd" and pieces[-1].finish_reason == "length"


def test_what_was_not_read_in_time_comes_at_once(running):
    async def ask():
        generation = start(running, "hello")
        while not generation.done:
            await asyncio.sleep(0.005)
        return await read_all(generation)

    assert asyncio.run(ask()) == [engine.Piece("hello", 6, "stop")]


def test_answers_computed_together_do_not_mix(running):
    async def ask():
        running.pipeline.hold.clear()
        generations = [start(running, f"request {i}") for i in range(2)]
        running.pipeline.hold.set()
        return [await read_all(generation) for generation in generations]

    first, second = asyncio.run(ask())
    assert "".join(piece.text for piece in first) == "request 0"
    assert "".join(piece.text for piece in second) == "request 1"
    assert running.pipeline.most_at_once == 2 and (running.running, running.waiting, running.finished) == (0, 0, 2)


def test_what_does_not_fit_the_batch_waits(running):
    """The batch has two sequences, whatever the pipeline would compute at once."""

    async def ask():
        running.pipeline.hold.clear()
        generations = [start(running, text) for text in ("a", "bcdefgh", "ij")]
        running.pipeline.hold.set()
        return [await read_all(generation) for generation in generations]

    answers = asyncio.run(ask())
    assert ["".join(piece.text for piece in pieces) for pieces in answers] == ["a", "bcdefgh", "ij"]
    assert running.pipeline.most_at_once == 2 and running.waiting == 0


def test_an_aborted_request_stops_and_the_others_go_on(running):
    async def ask():
        running.pipeline.pause = 0.002
        running.pipeline.answer = lambda prompt: prompt * 20
        gone, stays = start(running, "abcdefgh"), start(running, "12345678")
        await gone.read()
        gone.abort()
        return await read_all(stays)

    pieces = asyncio.run(ask())
    assert "".join(piece.text for piece in pieces) == "12345678" * 20
    assert running.pipeline.handles[0].status == "CANCEL" and len(running.pipeline.handles[0].left) > 100
    assert (running.aborted, running.finished) == (1, 1)


def test_a_request_aborted_before_its_first_step_is_never_computed(running):
    async def ask():
        running.pipeline.hold.clear()
        first = start(running, "a")
        assert wait_for(lambda: running.pipeline.handles)  # the engine is in the step of this one
        second = start(running, "b")
        second.abort()
        running.pipeline.hold.set()
        await read_all(first)

    asyncio.run(ask())
    assert wait_for(lambda: running.aborted == 1) and len(running.pipeline.handles) == 1


def test_a_request_that_the_pipeline_refuses_fails_alone(running):
    async def ask():
        other = start(running, "fine")
        with pytest.raises(engine.EngineError, match="refused: top_k of 7 is bad luck"):
            await running.submit(running.encode(None, "x"), config(top_k=7)).read()
        return await read_all(other)

    assert "".join(piece.text for piece in asyncio.run(ask())) == "fine" and running.problem is None


def test_a_prompt_that_the_cache_cannot_hold_is_reported(running):
    async def ask():
        with pytest.raises(engine.EngineError, match="does not fit the KV cache"):
            await start(running, "too big for the cache").read()

    asyncio.run(ask())
    assert running.problem is None


def test_a_failing_step_reaches_everybody_and_turns_the_engine_red(running):
    async def ask():
        running.pipeline.hold.clear()
        generations = [start(running, "a" * 50), start(running, "b" * 50), start(running, "waits")]
        running.pipeline.fail = RuntimeError("out of memory")
        running.pipeline.hold.set()
        for generation in generations:
            with pytest.raises(engine.EngineError, match="The engine has failed: out of memory"):
                await generation.read()
        with pytest.raises(engine.EngineError, match="out of memory"):
            start(running, "too late")

    asyncio.run(ask())
    assert running.problem == "The engine has failed: out of memory"


def test_a_model_that_cannot_be_loaded_turns_the_engine_red():
    broken = engine.Engine(settings())  # the real one; there is no such model
    broken.start()
    assert broken.loaded.wait(60) and broken.problem.startswith("The engine has failed: ")


def test_a_step_that_never_ends_turns_the_engine_red(running, monkeypatch):
    async def ask():
        running.pipeline.hold.clear()
        generation = start(running, "a")
        assert wait_for(lambda: running._busy_since is not None) and running.problem is None
        monkeypatch.setattr(engine, "STALLED_S", 0.01)
        assert wait_for(lambda: running.problem is not None)
        assert "in one step for more than" in running.problem
        running.pipeline.hold.set()
        await read_all(generation)

    asyncio.run(ask())
    assert running.problem is None


def test_closing_tells_who_still_waits_and_draining_answers_first():
    async def ask(drain: bool):
        one = Engine(settings())
        one.start()
        one.loaded.wait(10)
        one.pipeline.hold.clear()
        generation = start(one, "answer")
        assert wait_for(lambda: one.pipeline.handles)
        closing = threading.Thread(target=one.close, kwargs={"drain": drain})
        closing.start()
        assert wait_for(lambda: one._closing or one._draining)
        one.pipeline.hold.set()
        try:
            return "".join(piece.text for piece in await read_all(generation))
        except engine.EngineError as error:
            return str(error)
        finally:
            closing.join(10)

    assert asyncio.run(ask(drain=True)) == "answer"
    assert asyncio.run(ask(drain=False)) == "The server is stopping."


def test_a_tokenizer_that_is_not_byte_level_is_refused():
    class Pieces(Tokenizer):
        def decode(self, ids):
            text = super().decode(ids)
            return text.replace("q", " q") if isinstance(text, str) else text

    class Cleaning(Tokenizer):  # single tokens are right, spaces before punctuation are lost
        def decode(self, ids):
            text = super().decode(ids)
            return text.replace(" .", ".") if isinstance(text, str) else text

    for kind in (Pieces, Cleaning):
        with pytest.raises(ValueError, match="not byte-level"):
            engine.token_bytes(kind(), "toy")
    assert engine.token_bytes(Tokenizer(), "toy")[EMOJI.encode()[0]] == b"N"


def test_the_table_is_exact_for_the_real_tokenizer():
    import openvino_genai

    ir = llm.ir_folder("smollm2", llm.transformers_folder("smollm2", weights.resolve("smollm2")))
    tokenizer = openvino_genai.Tokenizer(ir)
    table = engine.token_bytes(tokenizer, ir)
    ids = tokenizer.encode(EMOJI * 3, add_special_tokens=False).input_ids.data[0].tolist()
    assert b"".join(table[token] for token in ids).decode() == EMOJI * 3 == tokenizer.decode(ids)
    assert table[tokenizer.get_eos_token_id()] == b""
