module llm

go 1.19
