/* genai.h over llm.h: the official functions for one greedy answer. What llm.h has no place for (sampling, beams, chats)
 * returns NOT_IMPLEMENTED. The chat template is not applied: C has no interpreter of templates. */
#include "genai.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "llm.h"

#define MAX_TOKENS 4096 /* where the program sets no limit; the official one goes on until the answer ends */

struct ov_genai_generation_config_opaque {
    size_t max_new_tokens;
    bool ignore_eos;
};
struct ov_genai_perf_metrics_opaque {
    llm_result of;
    double load_ms;
};
struct ov_genai_decoded_results_opaque {
    char* text;
    size_t size;
    ov_genai_perf_metrics metrics;
};
struct ov_genai_llm_pipeline_opaque {
    llm_handle model;
    ov_genai_generation_config config;
    double load_ms;
};

static const ov_genai_generation_config defaults = {MAX_TOKENS, false};

/* The official status: a fault of an argument, or an exception of C++. */
static ov_status_e official(llm_status status) {
    return status == LLM_OK ? OK : status == LLM_BAD_ARGUMENT ? INVALID_C_PARAM : UNKNOW_EXCEPTION;
}

#define REFUSE_NULL(condition) \
    if (condition) return INVALID_C_PARAM

/* --- Configuration ------------------------------------------------------------------------------------------------- */

ov_status_e ov_genai_generation_config_create(ov_genai_generation_config** config) {
    REFUSE_NULL(!config);
    *config = malloc(sizeof **config);
    if (!*config) return UNKNOW_EXCEPTION;
    **config = defaults;
    return OK;
}

void ov_genai_generation_config_free(ov_genai_generation_config* config) { free(config); }

ov_status_e ov_genai_generation_config_set_max_new_tokens(ov_genai_generation_config* config, const size_t value) {
    REFUSE_NULL(!config);
    config->max_new_tokens = value;
    return OK;
}

ov_status_e ov_genai_generation_config_get_max_new_tokens(const ov_genai_generation_config* config, size_t* value) {
    REFUSE_NULL(!config || !value);
    *value = config->max_new_tokens;
    return OK;
}

ov_status_e ov_genai_generation_config_set_ignore_eos(ov_genai_generation_config* config, const bool value) {
    REFUSE_NULL(!config);
    config->ignore_eos = value;
    return OK;
}

ov_status_e ov_genai_generation_config_set_do_sample(ov_genai_generation_config* config, const bool value) {
    REFUSE_NULL(!config);
    return value ? NOT_IMPLEMENTED : OK;
}

ov_status_e ov_genai_generation_config_set_num_beams(ov_genai_generation_config* config, const size_t value) {
    REFUSE_NULL(!config);
    return value == 1 ? OK : NOT_IMPLEMENTED;
}

ov_status_e ov_genai_generation_config_set_temperature(ov_genai_generation_config* config, const float value) {
    REFUSE_NULL(!config);
    return value == 1.0f ? OK : NOT_IMPLEMENTED;
}

ov_status_e ov_genai_generation_config_validate(ov_genai_generation_config* config) {
    REFUSE_NULL(!config);
    return config->max_new_tokens ? OK : UNKNOW_EXCEPTION;
}

/* --- Pipeline ------------------------------------------------------------------------------------------------------ */

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

ov_status_e ov_genai_llm_pipeline_create(const char* models_path, const char* device, const size_t property_args_size,
                                         ov_genai_llm_pipeline** pipe, ...) {
    REFUSE_NULL(!models_path || !device || !pipe || property_args_size % 2);
    ov_genai_llm_pipeline* made = calloc(1, sizeof *made);
    const char** properties = calloc(property_args_size + 1, sizeof *properties);
    if (!made || !properties) {
        free(made);
        free(properties);
        return UNKNOW_EXCEPTION;
    }
    va_list arguments;
    va_start(arguments, pipe);
    for (size_t i = 0; i < property_args_size; i++) properties[i] = va_arg(arguments, const char*);
    va_end(arguments);
    double begin = now_ms();
    llm_status status = llm_open(LLM_VERSION, models_path, device, NULL, properties, property_args_size / 2, &made->model);
    made->load_ms = now_ms() - begin;
    made->config = defaults;
    free(properties);
    if (status) free(made);
    else *pipe = made;
    return official(status);
}

void ov_genai_llm_pipeline_free(ov_genai_llm_pipeline* pipe) {
    if (pipe) llm_close(pipe->model);
    free(pipe);
}

ov_status_e ov_genai_llm_pipeline_get_generation_config(const ov_genai_llm_pipeline* pipe,
                                                        ov_genai_generation_config** config) {
    REFUSE_NULL(!pipe || !config);
    ov_status_e status = ov_genai_generation_config_create(config);
    if (status == OK) **config = pipe->config;
    return status;
}

ov_status_e ov_genai_llm_pipeline_set_generation_config(ov_genai_llm_pipeline* pipe, ov_genai_generation_config* config) {
    REFUSE_NULL(!pipe || !config);
    pipe->config = *config;
    return OK;
}

ov_status_e ov_genai_llm_pipeline_start_chat(ov_genai_llm_pipeline* pipe) {
    REFUSE_NULL(!pipe);
    return NOT_IMPLEMENTED;
}

ov_status_e ov_genai_llm_pipeline_finish_chat(ov_genai_llm_pipeline* pipe) {
    REFUSE_NULL(!pipe);
    return NOT_IMPLEMENTED;
}

typedef struct {
    const streamer_callback* streamer;
    ov_genai_decoded_results* results;
    bool out_of_memory;
} receiver;

/* Keep a piece of the text with a final 0, and pass it on. */
static int32_t receive(const char* text, size_t size, void* user) {
    receiver* r = user;
    ov_genai_decoded_results* results = r->results;
    char* longer = realloc(results->text, results->size + size + 1);
    if (!longer) {
        r->out_of_memory = true;
        return 1;
    }
    results->text = longer;
    memcpy(longer + results->size, text, size);
    longer[results->size + size] = 0;
    const char* piece = longer + results->size;
    results->size += size;
    if (!r->streamer || !r->streamer->callback_func) return 0;
    return r->streamer->callback_func(piece, r->streamer->args) != OV_GENAI_STREAMING_STATUS_RUNNING;
}

ov_status_e ov_genai_llm_pipeline_generate(ov_genai_llm_pipeline* pipe, const char* inputs,
                                           const ov_genai_generation_config* config, const streamer_callback* streamer,
                                           ov_genai_decoded_results** results) {
    REFUSE_NULL(!pipe || !inputs || (!streamer && !results));
    if (!config) config = &pipe->config;
    ov_genai_decoded_results* made;
    size_t tokens = config->max_new_tokens;
    if (tokens > 1u << 20) tokens = 1u << 20;
    ov_status_e status = ov_genai_decoded_results_create(&made);
    if (status != OK) return status;
    int64_t* ids = malloc((tokens + 1) * sizeof *ids);
    receiver r = {streamer, made, !ids};
    if (ids) {
        status = official(llm_generate(pipe->model, inputs, strlen(inputs), (uint32_t)tokens, config->ignore_eos, receive,
                                       &r, ids, tokens, &made->metrics.of));
        made->metrics.load_ms = pipe->load_ms;
    }
    free(ids);
    if (r.out_of_memory) status = UNKNOW_EXCEPTION;
    if (status == OK && results) *results = made;
    else ov_genai_decoded_results_free(made);
    return status;
}

/* --- Results ------------------------------------------------------------------------------------------------------- */

ov_status_e ov_genai_decoded_results_create(ov_genai_decoded_results** results) {
    REFUSE_NULL(!results);
    *results = calloc(1, sizeof **results);
    return *results ? OK : UNKNOW_EXCEPTION;
}

void ov_genai_decoded_results_free(ov_genai_decoded_results* results) {
    if (results) free(results->text);
    free(results);
}

ov_status_e ov_genai_decoded_results_get_string(const ov_genai_decoded_results* results, char* output,
                                                size_t* output_size) {
    REFUSE_NULL(!results || !output_size);
    size_t needed = results->size + 1;
    if (output && *output_size < needed) return OUT_OF_BOUNDS;
    if (output) memcpy(output, results->text ? results->text : "", needed);
    *output_size = needed;
    return OK;
}

ov_status_e ov_genai_decoded_results_get_perf_metrics(const ov_genai_decoded_results* results,
                                                      ov_genai_perf_metrics** metrics) {
    REFUSE_NULL(!results || !metrics);
    *metrics = malloc(sizeof **metrics);
    if (!*metrics) return UNKNOW_EXCEPTION;
    **metrics = results->metrics;
    return OK;
}

void ov_genai_decoded_results_perf_metrics_free(ov_genai_perf_metrics* metrics) { free(metrics); }

ov_status_e ov_genai_perf_metrics_get_load_time(const ov_genai_perf_metrics* metrics, float* load_time) {
    REFUSE_NULL(!metrics || !load_time);
    *load_time = (float)metrics->load_ms;
    return OK;
}

ov_status_e ov_genai_perf_metrics_get_num_generation_tokens(const ov_genai_perf_metrics* metrics, size_t* tokens) {
    REFUSE_NULL(!metrics || !tokens);
    *tokens = metrics->of.new_tokens;
    return OK;
}

ov_status_e ov_genai_perf_metrics_get_num_input_tokens(const ov_genai_perf_metrics* metrics, size_t* tokens) {
    REFUSE_NULL(!metrics || !tokens);
    *tokens = metrics->of.prompt_tokens;
    return OK;
}

static ov_status_e mean_of(const ov_genai_perf_metrics* metrics, double value, float* mean, float* std) {
    REFUSE_NULL(!metrics || !mean || !std);
    *mean = (float)value;
    *std = 0; /* of a single answer */
    return OK;
}

static double per_token_ms(const ov_genai_perf_metrics* m) {
    double after_first = m->of.whole_ms - m->of.tokenize_ms - m->of.first_ms;
    return m->of.new_tokens > 1 ? after_first / (double)(m->of.new_tokens - 1) : 0;
}

#define METRIC(name, value)                                                                                            \
    ov_status_e ov_genai_perf_metrics_get_##name(const ov_genai_perf_metrics* metrics, float* mean, float* std) {      \
        return mean_of(metrics, metrics ? (value) : 0, mean, std);                                                     \
    }

METRIC(ttft, metrics->of.tokenize_ms + metrics->of.first_ms)
METRIC(tpot, per_token_ms(metrics))
METRIC(throughput, per_token_ms(metrics) > 0 ? 1e3 / per_token_ms(metrics) : 0)
METRIC(inference_duration, metrics->of.infer_ms)
METRIC(generate_duration, metrics->of.whole_ms)
METRIC(tokenization_duration, metrics->of.tokenize_ms)
METRIC(detokenization_duration, metrics->of.detokenize_ms)
