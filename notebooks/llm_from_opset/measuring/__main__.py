from notebooks.llm_from_opset.measuring import main

if __name__ == "__main__":
    main()
