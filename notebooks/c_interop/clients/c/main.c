// main FOLDER TOKENS [fail] < prompt: stream an answer, then print its token ids and what each token took.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llm.h"

typedef struct {
    int pieces, fail;
} stream;

static int32_t on_text(const char* text, size_t size, void* user) {
    stream* s = user;
    fwrite(text, 1, size, stdout);
    fflush(stdout);
    return s->fail && ++s->pieces == 3;  // C has no exceptions: the client stops
}

static int failed(void) {
    char sentence[1024];
    llm_last_error(sentence, sizeof sentence);
    fprintf(stderr, "%s\n", sentence);
    return 1;
}

int main(int argc, char** argv) {
    if (argc < 3) return fprintf(stderr, "Use: main FOLDER TOKENS [fail] < prompt\n"), 2;
    char* prompt = malloc(1 << 20);
    size_t size = fread(prompt, 1, 1 << 20, stdin);
    uint32_t tokens = (uint32_t)atoi(argv[2]);
    int64_t* ids = calloc(tokens, sizeof *ids);

    llm_handle model;
    if (llm_open(LLM_VERSION, argv[1], "CPU", NULL, NULL, 0, &model)) return failed();

    llm_result result;
    stream s = {0, argc > 3};
    if (llm_generate(model, prompt, size, tokens, 0, on_text, &s, ids, tokens, &result)) return failed();
    if (result.reason == LLM_STOPPED) {
        fprintf(stderr, "The callback failed: at the third piece\n");
        s.fail = 0;
        printf("\n");
        if (llm_generate(model, prompt, size, tokens, 0, on_text, &s, ids, tokens, &result)) return failed();
    }

    printf("\nids:");
    for (uint64_t i = 0; i < result.new_tokens; i++) printf(" %lld", (long long)ids[i]);
    printf("\nms per token: %.3f, in the model: %.3f\n", (result.whole_ms - result.tokenize_ms) / result.new_tokens,
           result.infer_ms / result.new_tokens);
    if (llm_close(model)) return failed();
    free(ids);
    free(prompt);
    return 0;
}
