from notebooks.janus_pro.measuring.bench import main

if __name__ == "__main__":
    main()
