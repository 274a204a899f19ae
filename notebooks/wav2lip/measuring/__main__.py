from notebooks.wav2lip.measuring.bench import main

if __name__ == "__main__":
    main()
