from notebooks.sambert_hifigan.measuring.bench import main

if __name__ == "__main__":
    main()
