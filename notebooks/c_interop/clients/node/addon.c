/* llm.h for Node: open(folder), generate(handle, prompt, tokens, onText), cancel(handle), close(handle).
 *
 * Node cannot call C by itself. Node-API, whose functions are the same in every version of Node, lets C make functions of
 * JavaScript. A handle is a BigInt. */
#include <node_api.h>
#include <stdlib.h>

#include "llm.h"

typedef struct {
    napi_env env;
    napi_value on_text;
    bool thrown; /* onText threw something */
} receiver;

static int32_t receive(const char* text, size_t size, void* user) {
    receiver* r = user;
    napi_handle_scope scope;
    napi_value piece, nothing;
    int32_t stop = 0;
    napi_open_handle_scope(r->env, &scope);
    napi_get_undefined(r->env, &nothing);
    napi_create_string_utf8(r->env, text, size, &piece);
    if (napi_call_function(r->env, nothing, r->on_text, 1, &piece, NULL) != napi_ok) {
        r->thrown = true; /* what was thrown stays pending, and Node throws it when `generate` has returned */
        stop = 1;
    }
    napi_close_handle_scope(r->env, scope);
    return stop;
}

static napi_value failed(napi_env env) {
    char sentence[1024];
    llm_last_error(sentence, sizeof sentence);
    napi_throw_error(env, NULL, sentence);
    return NULL;
}

/* A text of JavaScript as UTF-8 with a final 0, which the caller frees; NULL for anything else. */
static char* text_of(napi_env env, napi_value value, size_t* size) {
    char* text = NULL;
    if (napi_get_value_string_utf8(env, value, NULL, 0, size) == napi_ok && (text = malloc(*size + 1)))
        napi_get_value_string_utf8(env, value, text, *size + 1, size);
    if (!text) napi_throw_type_error(env, NULL, "Give a text.");
    return text;
}

static napi_value open_model(napi_env env, napi_callback_info info) {
    napi_value argument, value = NULL;
    size_t count = 1, size;
    llm_handle handle;
    napi_get_cb_info(env, info, &count, &argument, NULL, NULL);
    char* folder = text_of(env, argument, &size);
    if (!folder) return NULL;
    llm_status status = llm_open(LLM_VERSION, folder, "CPU", NULL, NULL, 0, &handle);
    free(folder);
    if (status) return failed(env);
    napi_create_bigint_uint64(env, handle, &value);
    return value;
}

static void set(napi_env env, napi_value object, const char* name, double number) {
    napi_value value;
    napi_create_double(env, number, &value);
    napi_set_named_property(env, object, name, value);
}

static napi_value generate(napi_env env, napi_callback_info info) {
    napi_value arguments[4], answer, list, value;
    size_t count = 4, size;
    llm_handle handle;
    bool lossless;
    uint32_t tokens;
    napi_valuetype kind;
    llm_result result;
    napi_get_cb_info(env, info, &count, arguments, NULL, NULL);
    if (count < 4 || napi_typeof(env, arguments[3], &kind) != napi_ok || kind != napi_function ||
        napi_get_value_bigint_uint64(env, arguments[0], &handle, &lossless) != napi_ok ||
        napi_get_value_uint32(env, arguments[2], &tokens) != napi_ok || tokens < 1 || tokens > 1u << 20)
        return napi_throw_type_error(env, NULL, "Give a handle, a prompt, a number of tokens and a function."), NULL;
    char* prompt = text_of(env, arguments[1], &size);
    if (!prompt) return NULL;
    int64_t* ids = calloc(tokens, sizeof *ids);
    receiver r = {env, arguments[3], false};
    llm_status status = llm_generate(handle, prompt, size, tokens, 0, receive, &r, ids, ids ? tokens : 0, &result);
    free(prompt);
    if (status && !r.thrown) failed(env);
    if (!status && !r.thrown) {
        napi_create_object(env, &answer);
        napi_create_array(env, &list);
        for (uint32_t i = 0; i < result.new_tokens; i++) {
            napi_create_int64(env, ids[i], &value);
            napi_set_element(env, list, i, value);
        }
        napi_set_named_property(env, answer, "ids", list);
        set(env, answer, "perTokenMs", (result.whole_ms - result.tokenize_ms) / (double)result.new_tokens);
        set(env, answer, "inferMs", result.infer_ms / (double)result.new_tokens);
    }
    free(ids);
    return r.thrown || status ? NULL : answer;
}

static napi_value with_handle(napi_env env, napi_callback_info info, llm_status (*call)(llm_handle)) {
    napi_value argument;
    size_t count = 1;
    llm_handle handle;
    bool lossless;
    napi_get_cb_info(env, info, &count, &argument, NULL, NULL);
    if (napi_get_value_bigint_uint64(env, argument, &handle, &lossless) != napi_ok)
        return napi_throw_type_error(env, NULL, "Give a handle."), NULL;
    return call(handle) ? failed(env) : NULL;
}

static napi_value cancel(napi_env env, napi_callback_info info) { return with_handle(env, info, llm_cancel); }

static napi_value close_model(napi_env env, napi_callback_info info) { return with_handle(env, info, llm_close); }

NAPI_MODULE_INIT() {
    struct {
        const char* name;
        napi_callback function;
    } all[] = {{"open", open_model}, {"generate", generate}, {"cancel", cancel}, {"close", close_model}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        napi_value function;
        napi_create_function(env, all[i].name, NAPI_AUTO_LENGTH, all[i].function, NULL, &function);
        napi_set_named_property(env, exports, all[i].name, function);
    }
    return exports;
}
