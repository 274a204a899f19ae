import sys

from notebooks.wav2lip.measuring import bench, quality

if __name__ == "__main__":
    bench.main()
    if not sys.argv[1:]:  # an option repeats a part of the bench alone
        quality.main()
