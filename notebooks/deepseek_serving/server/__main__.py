import sys

from notebooks.deepseek_serving.server.process import main

if __name__ == "__main__":
    sys.exit(main())
