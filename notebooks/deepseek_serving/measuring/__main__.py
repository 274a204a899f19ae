from notebooks.deepseek_serving.measuring.bench import main

if __name__ == "__main__":
    main()
