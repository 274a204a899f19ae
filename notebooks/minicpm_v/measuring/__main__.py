from notebooks.minicpm_v.measuring.bench import main

if __name__ == "__main__":
    main()
