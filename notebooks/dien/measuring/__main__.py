"""`python -m notebooks.dien.measuring` measures the speed of what takes minutes."""

from notebooks.dien.measuring import bench

if __name__ == "__main__":
    bench.main()
