from notebooks.graph_customization.measuring import bench, quality

if __name__ == "__main__":
    bench.main()
    quality.main()
