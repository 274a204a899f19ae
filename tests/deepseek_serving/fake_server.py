"""The server's process with the fake pipeline: `python -m tests.deepseek_serving.fake_server FOLDER ...`.

Its answers repeat the prompt a hundred times. A step takes STEP_MS (by default 5), so that an answer takes seconds. It
leaks LEAK_KB (by default 0) for each request.
"""

import os
import sys

from notebooks.deepseek_serving.server import process, service
from tests.deepseek_serving import fakes


class Engine(fakes.Engine):
    def _load(self) -> None:
        super()._load()
        leak, leaked = int(os.environ.get("LEAK_KB", "0")) * 1024, []

        def answer(prompt: str) -> str:
            leaked.append(b"x" * leak)
            return prompt * 100

        self.pipeline.answer = answer
        self.pipeline.pause = float(os.environ.get("STEP_MS", "5")) / 1000


if __name__ == "__main__":
    service.Engine = Engine
    sys.exit(process.main())
