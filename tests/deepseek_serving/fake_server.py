"""The server's process with a model of our own making: `python -m tests.deepseek_serving.fake_server FOLDER ...`.

Its answers are the prompt a hundred times over, and take seconds.
"""

import sys

from notebooks.deepseek_serving import server, service
from tests.deepseek_serving import fakes


class Engine(fakes.Engine):
    def _load(self) -> None:
        super()._load()
        self.pipeline.says = lambda prompt: prompt * 100
        self.pipeline.pause = 0.005


if __name__ == "__main__":
    service.Engine = Engine
    sys.exit(server.main())
