// genai FOLDER < prompt: a program for OpenVINO GenAI's C interface, which prints what each function answers.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "genai.h"

static char streamed[1 << 16];
static int pieces;

static ov_genai_streaming_status_e keep(const char* text, void* args) {
    pieces++;
    strncat(streamed, text, sizeof streamed - strlen(streamed) - 1);
    return *(int*)args && pieces == *(int*)args ? OV_GENAI_STREAMING_STATUS_CANCEL : OV_GENAI_STREAMING_STATUS_RUNNING;
}

static void ask(ov_genai_llm_pipeline* pipe, const char* prompt, size_t tokens, int cancel_after) {
    ov_genai_generation_config* config;
    ov_genai_decoded_results* results = NULL;
    ov_genai_perf_metrics* metrics;
    streamer_callback streamer = {keep, &cancel_after};
    streamed[0] = 0, pieces = 0;
    ov_genai_generation_config_create(&config);
    printf("max_new_tokens: %d\n", ov_genai_generation_config_set_max_new_tokens(config, tokens));
    ov_genai_generation_config_set_ignore_eos(config, true);
    printf("generate: %d\n", ov_genai_llm_pipeline_generate(pipe, prompt, config, &streamer, &results));

    size_t needed, small = 1, made, read;
    char letter;
    printf("size: %d\n", ov_genai_decoded_results_get_string(results, NULL, &needed));
    printf("too small: %d\n", ov_genai_decoded_results_get_string(results, &letter, &small));
    char* text = malloc(needed);
    printf("string: %d\n", ov_genai_decoded_results_get_string(results, text, &needed));
    printf("streamed all: %d\n", !strcmp(text, streamed));
    printf("text of %zu bytes: %s\n", strlen(text), text);
    free(text);

    ov_status_e status;
    float mean, std, load;
    printf("metrics: %d\n", ov_genai_decoded_results_get_perf_metrics(results, &metrics));
    ov_genai_perf_metrics_get_num_generation_tokens(metrics, &made);
    ov_genai_perf_metrics_get_num_input_tokens(metrics, &read);
    printf("tokens: %zu after %zu, pieces: %d\n", made, read, pieces);
    status = ov_genai_perf_metrics_get_ttft(metrics, &mean, &std);
    printf("ttft: %d %d\n", status, mean > 0);
    status = ov_genai_perf_metrics_get_tpot(metrics, &mean, &std);
    printf("tpot: %d %d\n", status, mean >= 0);
    status = ov_genai_perf_metrics_get_load_time(metrics, &load);
    printf("load time: %d %d\n", status, load > 0);
    ov_genai_decoded_results_perf_metrics_free(metrics);
    ov_genai_decoded_results_free(results);
    ov_genai_generation_config_free(config);
}

int main(int argc, char** argv) {
    static char prompt[1 << 16];
    ov_genai_llm_pipeline* pipe = NULL;
    if (argc < 2) return 2;
    fread(prompt, 1, sizeof prompt - 1, stdin);
    printf("no folder: %d\n", ov_genai_llm_pipeline_create("nowhere", "CPU", 0, &pipe));
    printf("NULL folder: %d\n", ov_genai_llm_pipeline_create(NULL, "CPU", 0, &pipe));
    printf("create: %d\n", ov_genai_llm_pipeline_create(argv[1], "CPU", 2, &pipe, "INFERENCE_PRECISION_HINT", "f32"));
    printf("NULL prompt: %d\n", ov_genai_llm_pipeline_generate(pipe, NULL, NULL, NULL, NULL));
    printf("no results: %d\n", ov_genai_llm_pipeline_generate(pipe, prompt, NULL, NULL, NULL));
    ask(pipe, prompt, 12, 0);
    ask(pipe, prompt, 1000, 4);
    ov_genai_llm_pipeline_free(pipe);
    return 0;
}
