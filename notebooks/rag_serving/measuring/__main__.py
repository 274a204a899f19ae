"""`python -m notebooks.rag_serving.measuring` measures speed, then retrieval, answers and rerankers; a name of PARTS as
argument measures that part alone."""

import sys

from notebooks.rag_serving.measuring import bench, examination, scaling, vectors

PARTS = {
    "speed": bench.main,
    "vectors": vectors.main,
    "ingestion": scaling.main,
    "examination": examination.main,
    "answers": examination.main_answers,
    "ranking": examination.main_ranking,
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        if part not in PARTS:
            sys.exit(f"There is no part {part!r}. Choose from: {', '.join(PARTS)}.")
        PARTS[part]()
