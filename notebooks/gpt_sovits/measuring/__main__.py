from notebooks.gpt_sovits.measuring.bench import main

if __name__ == "__main__":
    main()
