import sys

from notebooks.ollama_openvino.server.process import main

if __name__ == "__main__":
    sys.exit(main())
