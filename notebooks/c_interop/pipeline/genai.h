/* A part of the C interface of OpenVINO GenAI: the names, types and arguments of its release 2026, written down here
 * because no Python package has its headers. A program that includes this file can be linked with genai.c and llm.c, or
 * with the official libopenvino_genai_c, without a change. */
#ifndef GENAI_H
#define GENAI_H

#include <stdbool.h>
#include <stddef.h>

#include "openvino/c/ov_common.h"

#define GENAI_API __attribute__((visibility("default")))

typedef struct ov_genai_generation_config_opaque ov_genai_generation_config;
typedef struct ov_genai_perf_metrics_opaque ov_genai_perf_metrics;
typedef struct ov_genai_decoded_results_opaque ov_genai_decoded_results;
typedef struct ov_genai_llm_pipeline_opaque ov_genai_llm_pipeline;

typedef enum {
    OV_GENAI_STREAMING_STATUS_RUNNING = 0,
    OV_GENAI_STREAMING_STATUS_STOP = 1,
    OV_GENAI_STREAMING_STATUS_CANCEL = 2
} ov_genai_streaming_status_e;

typedef struct {
    ov_genai_streaming_status_e(OPENVINO_C_API_CALLBACK* callback_func)(const char* str, void* args);
    void* args;
} streamer_callback;

/* Configuration */
GENAI_API ov_status_e ov_genai_generation_config_create(ov_genai_generation_config** config);
GENAI_API void ov_genai_generation_config_free(ov_genai_generation_config* config);
GENAI_API ov_status_e ov_genai_generation_config_set_max_new_tokens(ov_genai_generation_config* config, const size_t value);
GENAI_API ov_status_e ov_genai_generation_config_set_ignore_eos(ov_genai_generation_config* config, const bool value);
GENAI_API ov_status_e ov_genai_generation_config_set_do_sample(ov_genai_generation_config* config, const bool value);
GENAI_API ov_status_e ov_genai_generation_config_set_num_beams(ov_genai_generation_config* config, const size_t value);
GENAI_API ov_status_e ov_genai_generation_config_set_temperature(ov_genai_generation_config* config, const float value);
GENAI_API ov_status_e ov_genai_generation_config_get_max_new_tokens(const ov_genai_generation_config* config,
                                                                    size_t* max_new_tokens);
GENAI_API ov_status_e ov_genai_generation_config_validate(ov_genai_generation_config* config);

/* Pipeline; `property_args_size` counts names and values, which follow as texts. */
GENAI_API ov_status_e ov_genai_llm_pipeline_create(const char* models_path, const char* device,
                                                   const size_t property_args_size, ov_genai_llm_pipeline** pipe, ...);
GENAI_API void ov_genai_llm_pipeline_free(ov_genai_llm_pipeline* pipe);
GENAI_API ov_status_e ov_genai_llm_pipeline_generate(ov_genai_llm_pipeline* pipe, const char* inputs,
                                                     const ov_genai_generation_config* config,
                                                     const streamer_callback* streamer,
                                                     ov_genai_decoded_results** results);
GENAI_API ov_status_e ov_genai_llm_pipeline_start_chat(ov_genai_llm_pipeline* pipe);
GENAI_API ov_status_e ov_genai_llm_pipeline_finish_chat(ov_genai_llm_pipeline* pipe);
GENAI_API ov_status_e ov_genai_llm_pipeline_get_generation_config(const ov_genai_llm_pipeline* pipe,
                                                                  ov_genai_generation_config** config);
GENAI_API ov_status_e ov_genai_llm_pipeline_set_generation_config(ov_genai_llm_pipeline* pipe,
                                                                  ov_genai_generation_config* config);

/* Results */
GENAI_API ov_status_e ov_genai_decoded_results_create(ov_genai_decoded_results** results);
GENAI_API void ov_genai_decoded_results_free(ov_genai_decoded_results* results);
GENAI_API ov_status_e ov_genai_decoded_results_get_string(const ov_genai_decoded_results* results, char* output,
                                                          size_t* output_size);
GENAI_API ov_status_e ov_genai_decoded_results_get_perf_metrics(const ov_genai_decoded_results* results,
                                                                ov_genai_perf_metrics** metrics);
GENAI_API void ov_genai_decoded_results_perf_metrics_free(ov_genai_perf_metrics* metrics);

/* Times in ms; a mean and its standard deviation. */
GENAI_API ov_status_e ov_genai_perf_metrics_get_load_time(const ov_genai_perf_metrics* metrics, float* load_time);
GENAI_API ov_status_e ov_genai_perf_metrics_get_num_generation_tokens(const ov_genai_perf_metrics* metrics, size_t* tokens);
GENAI_API ov_status_e ov_genai_perf_metrics_get_num_input_tokens(const ov_genai_perf_metrics* metrics, size_t* tokens);
GENAI_API ov_status_e ov_genai_perf_metrics_get_ttft(const ov_genai_perf_metrics* metrics, float* mean, float* std);
GENAI_API ov_status_e ov_genai_perf_metrics_get_tpot(const ov_genai_perf_metrics* metrics, float* mean, float* std);
GENAI_API ov_status_e ov_genai_perf_metrics_get_throughput(const ov_genai_perf_metrics* metrics, float* mean, float* std);
GENAI_API ov_status_e ov_genai_perf_metrics_get_inference_duration(const ov_genai_perf_metrics* metrics, float* mean,
                                                                   float* std);
GENAI_API ov_status_e ov_genai_perf_metrics_get_generate_duration(const ov_genai_perf_metrics* metrics, float* mean,
                                                                  float* std);
GENAI_API ov_status_e ov_genai_perf_metrics_get_tokenization_duration(const ov_genai_perf_metrics* metrics, float* mean,
                                                                      float* std);
GENAI_API ov_status_e ov_genai_perf_metrics_get_detokenization_duration(const ov_genai_perf_metrics* metrics, float* mean,
                                                                        float* std);
#endif
