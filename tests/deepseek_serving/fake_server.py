"""The server's process with a model of our own making: `python -m tests.deepseek_serving.fake_server FOLDER ...`.

Its answers are the prompt a hundred times over. A step takes STEP_MS (5 unless set), so that they take seconds; of
each request it keeps LEAK_KB (none unless set) for ever.
"""

import os
import sys

from notebooks.deepseek_serving.server import process, service
from tests.deepseek_serving import fakes


class Engine(fakes.Engine):
    def _load(self) -> None:
        super()._load()
        leak, kept = int(os.environ.get("LEAK_KB", "0")) * 1024, []

        def says(prompt: str) -> str:
            kept.append(b"x" * leak)
            return prompt * 100

        self.pipeline.says = says
        self.pipeline.pause = float(os.environ.get("STEP_MS", "5")) / 1000


if __name__ == "__main__":
    service.Engine = Engine
    sys.exit(process.main())
