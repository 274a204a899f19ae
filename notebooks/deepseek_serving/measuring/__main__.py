import sys

from notebooks.deepseek_serving.measuring import bench, quality, thinking

if __name__ == "__main__":
    bench.main()
    if not sys.argv[1:]:  # an option repeats a part of the bench alone
        quality.main()
        thinking.main()
