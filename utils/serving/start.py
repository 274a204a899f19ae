"""Between a checked request and its answer: the token ids of the prompt, and the generation that answers it."""

from __future__ import annotations

import asyncio

from utils.serving.engine import Engine, EngineError, Generation
from utils.serving.guard import RequestError, job


async def encode(engine: Engine, messages: list[dict] | None, prompt: str | None = None):
    """Token ids [1, n] of a chat, or of a plain prompt. Raises RequestError where the chat template fails."""
    try:
        return await asyncio.to_thread(engine.encode, messages, prompt)
    except Exception as error:  # a chat template may reject roles or their order
        raise RequestError(400, f"The chat template cannot take these messages: {str(error).strip()}") from error


def submit(engine: Engine, ids, config) -> Generation:
    """Start to generate the answer to the current `job`, which the guard ends with its request. Raises RequestError."""
    try:
        generation = engine.submit(ids, config)
    except EngineError as error:
        raise RequestError(503, str(error)) from error
    job.get().generations.append(generation)
    return generation
